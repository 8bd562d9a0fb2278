"""What the pod of the role `prepare` is told, and what its sidecar does: copy, hash and store bytes.

`copying` runs before the program of the pod (`updraft_data`), which unpacks archives, fetches git and judges tables;
`keeping` runs after it. Neither reads what the bytes mean. The platform imports the documents, and lists buckets by
`buckets` to see whether there is anything to do.
"""
