"""Report the rounds in which elastic jobs got other sizes: what changed, why, what it should bring, what it brought."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from updraft.services import UsesServices
from updraft.triggers.rounds import RoundTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from updraft.ledger.records import ResizeRow


class ReportRoundOperator(UsesServices, BaseOperator):
    """Report the next round of sizes, once its results are known.

    Defers to RoundTrigger until then. Returns a sentence for each job whose size changed, by job id.
    """

    ui_color = "#eceff1"

    def execute(self, context: Context) -> None:
        """Defer until the results of a round are known."""
        self.defer(trigger=RoundTrigger(), method_name="finished")

    def finished(self, context: Context, event: dict[str, Any]) -> dict[str, str]:
        """Log the round, and return it."""
        found = [each for each in self.services.ledger.queue.round_to_show() if each.round == event["round"]]
        told = {each.job_id: sentence(each) for each in found}
        if found:
            self.log.info("Round %s, decided at %s:", found[0].round, f"{found[0].at:%Y-%m-%d %H:%M:%S}")
        for job_id, text in told.items():
            self.log.info("%s: %s", job_id, text)
        self.services.ledger.queue.mark_shown(event["round"])
        return told


def sentence(change: ResizeRow) -> str:
    """Return what changed for a job, why, what was expected, and what was measured.

    Args:
        change: The job's row of the round.
    """
    parts = [change.reason]
    if change.before:
        if change.expected is not None and "times as fast" not in change.reason:
            parts.append(f"expected to be {change.expected:.2f} times as fast")
        parts.append("not measured" if change.gained is None else f"was {change.gained:.2f} times as fast")
        if change.pause_seconds is not None:
            pause = change.pause_seconds
            stood = f"{1000 * pause:.0f} ms" if pause < 1 else f"{pause:.0f} s"
            parts.append(f"{stood} without a step")
    return "; ".join(parts)
