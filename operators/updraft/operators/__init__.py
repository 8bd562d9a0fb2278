"""Define Airflow operators for the tasks of a job: each builds, submits or re-attaches, waits, and cleans up."""
