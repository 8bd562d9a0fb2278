"""The fault lab: breaks a running platform in every way it knows and proves what became of the jobs.

`make faults` (see `cli`). `plan` says which runs, `run` does one, `kinds` holds the faults, `program` what the jobs
run, `facts` reads what is there afterwards, `checks` judges it, `report` tells it. Nothing of the platform imports
this.
"""
