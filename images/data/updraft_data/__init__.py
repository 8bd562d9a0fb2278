"""The program of the pod of the role `prepare`, which runs without the platform's credentials: it unpacks archives,
fetches git repositories, and judges tables with Great Expectations.

The platform imports the modules that describe suites and results (`expectations`, `suite`, `result`). Great
Expectations, pandas and pyarrow are only in the image (the extra `judge`).
"""
