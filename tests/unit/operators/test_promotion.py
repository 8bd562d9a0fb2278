"""Approval of a model by a person, the alias of the version before, and roll-backs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from unit.operators.airflow_fakes import APPROVED, Platform, until

from updraft.controller import promotion
from updraft.controller.idempotency import PROMOTION, Promotion
from updraft.exceptions import RefusedError, UnavailableError
from updraft.ledger import SeriesEvent
from updraft.lifecycle import State
from updraft.settings import settings
from updraft.triggers.approval import HALT_ANSWER, look

Make = Callable[..., Platform]
ASKED = {"register_as": "digits", "promote_if": {"acc": ">= champion"}, "approval": "required"}
WAIT_SECONDS = 3600.0


def champion(platform: Platform, version: str, acc: float) -> None:
    """Another job's version becomes the champion."""
    mlflow = platform.mlflow
    run = mlflow.create_run(mlflow.experiments["digits"], tags={}, run_name=f"other {version}")
    mlflow.runs[run.info.run_id].data.metrics["acc"] = acc
    made = mlflow.create_model_version("digits", source="x", run_id=run.info.run_id, model_id=None)
    mlflow.aliases["digits", "champion"] = made.version


def outcome(platform: Platform) -> Promotion:
    found = platform.ledger.idempotency.get(platform.job.id, PROMOTION)
    assert found is not None
    return found


def events(platform: Platform) -> list[tuple[str, str | None, str | None]]:
    return [(e.kind, e.version, e.by) for e in platform.ledger.series.of_series("default", "digits")]


def aliases(platform: Platform) -> dict[str, str]:
    return {alias: version for (_, alias), version in platform.mlflow.aliases.items()}


def roll_back(platform: Platform, to: str | None = None, key: str = "run 1") -> SeriesEvent:
    return promotion.roll_back(
        platform.services, tenant="default", model="digits", to=to, by="eve", reason="it is slow", key=key
    )


def test_the_champion_before_is_kept_as_previous(make_platform: Make) -> None:
    platform = until(make_platform(), "promote")
    champion(platform, "2", 0.1)
    platform.run("promote")
    assert aliases(platform) == {"champion": "1", "previous": "2"}
    assert events(platform) == [("promoted", "1", None)]


def test_a_version_waits_for_a_person_and_is_promoted(make_platform: Make) -> None:
    platform = make_platform(export=ASKED)
    platform.run_all()
    (question,) = platform.asked
    assert question.subject == "digits version 1 waits for approval"
    assert "| acc | 0.9 | - |" in question.body
    assert platform.job.state is State.COMPLETED, platform.errors
    assert outcome(platform).reason == "approved by grace: looks good; acc 0.9: there is no champion yet"
    assert events(platform) == [("waiting", "1", None), ("promoted", "1", "grace")]
    assert "digits version 1 waits for approval" in [
        t.reason for t in platform.ledger.jobs.transitions(platform.job.id)
    ]


def test_a_person_rejects_with_a_reason_and_the_job_is_complete(make_platform: Make) -> None:
    platform = make_platform(export=ASKED)
    platform.answers = lambda _: {**APPROVED, "chosen_options": ["Reject"], "params_input": {"reason": "biased"}}
    platform.run_all()
    assert outcome(platform).reason == "rejected by grace: biased"
    assert platform.job.state is State.COMPLETED
    assert aliases(platform) == {}
    assert events(platform)[-1] == ("rejected", "1", "grace")


def test_an_answer_is_not_asked_for_again_when_mlflow_was_away(
    make_platform: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = until(make_platform(export=ASKED), "promote")
    promote, calls = promotion.promote, []

    def away_once(*arguments: Any, **named: Any) -> Promotion:
        calls.append(named)
        if len(calls) == 1:
            raise UnavailableError("MLflow does not answer")
        return promote(*arguments, **named)

    monkeypatch.setattr(promotion, "promote", away_once)
    assert platform.run("promote") == "success"
    assert len(platform.asked) == 1
    assert outcome(platform).reason == "approved by grace: looks good; acc 0.9: there is no champion yet"


def test_nobody_answers_in_time(make_platform: Make) -> None:
    platform = make_platform(export=ASKED)
    platform.answers = lambda _: {"kind": "late", "hours": 168.0}
    platform.run_all()
    assert outcome(platform).reason == "nobody approved it within 168 hours"
    assert aliases(platform) == {}


def test_a_model_whose_rules_do_not_hold_is_rejected_without_a_question(make_platform: Make) -> None:
    platform = until(make_platform(export=ASKED), "promote")
    champion(platform, "2", 0.95)
    platform.run("promote")
    assert platform.asked == []
    assert events(platform) == [("rejected", "1", None)]


def test_the_rules_are_judged_again_when_a_person_approves(make_platform: Make) -> None:
    platform = until(make_platform(export=ASKED), "promote")

    def better_meanwhile(platform: Platform) -> dict[str, Any]:
        champion(platform, "2", 0.95)
        return APPROVED

    platform.answers = better_meanwhile
    platform.run("promote")
    assert outcome(platform).reason == "was approved by grace: looks good; acc 0.9 is not >= 0.95 (champion 0.95)"
    assert aliases(platform) == {"champion": "2"}


def test_only_the_approvers_of_the_tenant_are_asked(make_platform: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    platform = make_platform(export=ASKED)
    monkeypatch.setenv("UPDRAFT_APPROVERS", '{"default": ["ada", "grace"]}')
    settings.cache_clear()
    platform.run_all()
    assert platform.asked[0].approvers == ("ada", "grace")
    assert platform.asked[0].subject == "digits version 1 waits for approval by ada, grace"


def test_a_job_that_waits_for_approval_is_cancelled(make_platform: Make) -> None:
    platform = make_platform(export=ASKED)

    def cancel(platform: Platform) -> dict[str, Any]:
        assert look(platform.services, platform.job.id, WAIT_SECONDS) is None
        platform.ledger.requests.make(platform.job.id, "cancel", "bob")
        fired = look(platform.services, platform.job.id, WAIT_SECONDS)
        assert fired is not None
        return fired

    platform.answers = cancel
    platform.run_all()
    assert platform.job.state is State.CANCELLED
    assert aliases(platform) == {}


def test_a_request_to_halt_is_answered_and_lateness_is_the_ledgers(make_platform: Make) -> None:
    platform = make_platform(export=ASKED)
    seen: list[Any] = []

    def halt(platform: Platform) -> dict[str, Any]:
        platform.ledger.requests.make(platform.job.id, "halt", "bob")
        seen.append(look(platform.services, platform.job.id, WAIT_SECONDS))
        seen.append(look(platform.services, platform.job.id, 0))
        return APPROVED

    platform.answers = halt
    platform.run_all()
    assert seen == [None, {"kind": "late", "hours": 0}]
    assert [r.answer for r in platform.ledger.requests.of_job(platform.job.id)] == [HALT_ANSWER]


def test_a_roll_back_restores_the_champion_before_and_deletes_nothing(make_platform: Make) -> None:
    platform = until(make_platform(), "promote")
    champion(platform, "2", 0.1)
    platform.run("promote")
    event = roll_back(platform)
    assert (event.version, event.by, event.reason) == ("2", "eve", "it is slow")
    assert aliases(platform) == {"champion": "2"}
    assert events(platform)[-1] == ("rolled back", "2", "eve")
    assert len(platform.mlflow.versions) == 2


def test_a_roll_back_that_died_before_it_moved_the_alias_is_completed(make_platform: Make) -> None:
    platform = until(make_platform(), "promote")
    champion(platform, "2", 0.1)
    platform.run("promote")
    first = roll_back(platform)
    platform.mlflow.aliases["digits", "champion"] = "1"  # as if it had died after the record
    assert roll_back(platform) == first
    assert aliases(platform)["champion"] == "2"
    assert roll_back(platform) == first  # and a third run changes nothing
    assert events(platform).count(("rolled back", "2", "eve")) == 1


def test_a_champion_that_was_promoted_after_the_roll_back_stays(make_platform: Make) -> None:
    platform = until(make_platform(), "promote")
    champion(platform, "2", 0.1)
    platform.run("promote")
    roll_back(platform)
    champion(platform, "3", 0.99)
    roll_back(platform)  # the same one again
    assert aliases(platform)["champion"] == "3"


@pytest.mark.parametrize(
    ("to", "words"),
    [
        (None, "no champion before version 1; name a version"),
        ("1", "version 1 of digits is the champion already"),
        ("9", "no version 9 in the registry"),
    ],
)
def test_a_roll_back_that_cannot_be_says_why(make_platform: Make, to: str | None, words: str) -> None:
    platform = make_platform()
    platform.run_all()
    with pytest.raises(RefusedError, match=words):
        roll_back(platform, to)
    assert aliases(platform) == {"champion": "1"}
    assert events(platform) == [("promoted", "1", None)]


@pytest.mark.parametrize("tags", [{}, {"updraft.tenant": "vision"}, None])
def test_a_model_of_nobody_or_of_another_tenant_is_not_rolled_back(
    make_platform: Make, tags: dict[str, str] | None
) -> None:
    platform = make_platform()
    if tags is not None:
        platform.mlflow.registered["digits"] = tags
    with pytest.raises(RefusedError, match="tenant 'default' has no registered model 'digits'"):
        roll_back(platform)
