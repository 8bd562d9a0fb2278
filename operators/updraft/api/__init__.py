"""The plugin's routes: what people and the CLI read and upload, inside Airflow's api-server, behind its log-in.

app.py        puts the FastAPI application together
access.py     who is asking, and which tenants are theirs
parts.py      what the routes reach: ledger, store, MLflow, cluster; made once per process
deadline.py   no part is waited for longer than a few seconds
errors.py     every failure as the same JSON body
views.py      pure: records become answers
html.py       pure: records become pages
routes/       one router per resource
"""
