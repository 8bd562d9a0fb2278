"""Serve the plugin's routes, inside Airflow's api-server and behind its log-in: what users and the CLI read and upload.

app.py        build the FastAPI application
access.py     authenticate the caller, and decide which tenants are the caller's
parts.py      the ledger, store, MLflow and cluster that the routes use; made once per process
deadline.py   limit the time for each part's answer to a few seconds
errors.py     answer every failure with the same JSON body
views.py      pure: convert records to answers
pages/        convert records to HTML pages
routes/       one router per resource
"""
