"""What the pod of the role `prepare` runs without any of the platform's credentials: it unpacks archives, fetches git
and judges tables by Great Expectations.

The platform imports what describes suites and results (`expectations`, `suite`, `result`); Great Expectations, pandas
and pyarrow are in the image alone (the extra `judge`).
"""
