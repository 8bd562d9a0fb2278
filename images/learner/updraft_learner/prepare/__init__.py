"""Define what the pod of the role `prepare` is asked for, and what its sidecar does: copy, hash and store bytes.

`copying` runs before the pod's program (`updraft_data`), which unpacks archives, fetches git and judges tables.
`keeping` runs after it. Neither interprets the bytes. The platform imports the documents, and lists buckets with
`buckets` to see whether there is anything to do.
"""
