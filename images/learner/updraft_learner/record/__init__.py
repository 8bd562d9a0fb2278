"""Hold what a learner records for MLflow: the journal of metrics, the spool of artifacts, and the senders of both.

The sidecar writes and sends them while the pod runs (`updraft_learner.sidecar`); the platform sends the rest afterwards
(`updraft.tracking.replay`).
"""
