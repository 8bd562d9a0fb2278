"""Serve a job's data from the object store while it is read, without a copy of all of it (`data.mode: stream`).

`listing` names the objects, `remote` reads ranges of them, `blocks` keeps what was read on the disk, and `reader` puts
them together. The sidecar's endpoint serves it over HTTP; `updraft_learner.data` is the program's side.
"""
