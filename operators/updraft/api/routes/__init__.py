"""Define one router per resource. `updraft.api.app` puts authorisation on all of them."""
