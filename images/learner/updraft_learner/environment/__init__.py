"""Build the packages that a job adds to its image, in the pod of the role `build`.

The sidecar lays out the work (`laying`), the image's own Python runs `builder` with the sidecar's uv, and the sidecar
stores what was made (`keeping`). The platform imports the documents.
"""
