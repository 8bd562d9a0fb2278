"""What a learner records and MLflow gets: the journal of metrics, the spool of artifacts, and what sends both.

The sidecar writes and sends them while the pod lives (`updraft_learner.sidecar`); the platform sends what is left
afterwards (`updraft.tracking.replay`).
"""
