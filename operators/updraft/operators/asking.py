"""Put a question into Airflow's list of required actions, for the task that asks it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow.sdk import Context

    from updraft.controller.approval import Question


def ask_person(context: Context, question: Question) -> None:
    """Write the question of this task instance; a second call replaces it. The task then has to defer.

    Airflow's own operators for this wait in the state `awaiting_input`, in which nothing of ours runs: a cancelled job
    would wait on. A task that is deferred gets the answer in the same way, from Airflow's api-server.
    """
    from airflow.sdk.execution_time.hitl import HITLUser, upsert_hitl_detail

    upsert_hitl_detail(
        ti_id=context["ti"].id,
        options=list(question.options),
        subject=question.subject,
        body=question.body,
        params=dict(question.params),
        assigned_users=[HITLUser(id=user, name=user) for user in question.approvers] or None,
    )
