"""What the platform replaces in Airflow, and what it uses of Airflow without a promise that it stays.

registry.py         a list of both: the seams, and the private names; whether a seam applies here
<name>.py           one module per seam, named after it

Everything works without the seams, only slower: each is left out on a version of Airflow that it was not tried with,
and where `UPDRAFT_AIRFLOW_SEAMS_OFF` names it. No other package assigns to a name of Airflow's modules; a test holds
that. See `docs/design/0011-airflow-seams.md`.
"""
