"""What brings a role of a job to its end: launch, judge, decide, launch again, halt, wait for its turn.

Plain functions without Airflow; each writes what it is about to do to the ledger before it does it and may be called
twice, by two processes at once too. `updraft.triggers.gang` calls them in the order that the ledger asks for
(`next_action`), `updraft.operators` at the beginning and the end of a task.
"""
