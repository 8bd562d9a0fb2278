"""Hold all changes to Airflow, and list the private names of Airflow that the platform uses.

registry.py         the list of both: seams and private names
switch.py           decides whether a seam applies
<name>.py           one module per seam, named after it

Everything works without the seams, only slower. A seam is left out on a version of Airflow that it was not tried with,
and if `UPDRAFT_AIRFLOW_SEAMS_OFF` names it. No other package assigns to names of Airflow's modules; a test checks that.
See `docs/design/0011-airflow-seams.md`.
"""
