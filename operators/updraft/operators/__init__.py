"""Airflow verbs: each task of a job stores its arguments, builds, submits or re-attaches, waits and frees."""
