"""Drive a role of a job to its end: launch, judge, relaunch, halt, and wait in the queue.

These are plain functions without Airflow. Each writes what it is about to do to the ledger before it does it, and may
be called twice, also by two processes at once. `updraft.triggers.gang` calls them as `next_action` says;
`updraft.operators` calls them when a task begins and ends.
"""
