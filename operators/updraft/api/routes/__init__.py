"""One router per resource. `updraft.api.app` puts the authorisation on every one of them."""
