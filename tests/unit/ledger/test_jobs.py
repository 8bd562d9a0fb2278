from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import update

from updraft.exceptions import IllegalTransitionError, LimitError, NotFoundError, RefusedError, UnavailableError
from updraft.ledger import Job, Ledger, ListedJob, NewJob, Shown, Transition, upgrade
from updraft.ledger.engine import make_engine, writing
from updraft.ledger.tables import jobs
from updraft.lifecycle import Evidence, State, Verdict

Submit = Callable[..., Job]


def test_a_submitted_job_comes_back_whole(ledger: Ledger, submit: Submit, clock: Any) -> None:
    expected = Job(
        id="job-1",
        tenant="default",
        name="digits",
        dag_id="train_model",
        run_id="job-1",
        manifest={"name": "digits"},
        state=State.PENDING,
        reason="submitted",
        submitted_by="ada",
        submitted_at=clock.now,
    )
    assert submit() == expected
    assert ledger.jobs.get("job-1") == expected
    assert ledger.jobs.transitions("job-1") == [Transition("job-1", 1, clock.now, None, State.PENDING, "submitted")]


def test_the_same_submission_again_is_the_same_job(ledger: Ledger, submit: Submit, clock: Any) -> None:
    first = submit()
    clock.forward(60)
    assert submit() == first
    assert len(ledger.jobs.transitions("job-1")) == 1


def test_an_id_of_another_run_is_refused(ledger: Ledger, submit: Submit) -> None:
    submit()
    with pytest.raises(RefusedError, match="already the job of run 'job-1' of DAG 'train_model'"):
        ledger.jobs.record(NewJob("job-1", "default", "x", "other_dag", "job-1", {}, "eve"))
    with pytest.raises(RefusedError):
        ledger.jobs.record(NewJob("job-1", "rivals", "digits", "train_model", "job-1", {}, "eve"))


def test_a_run_has_one_job_and_is_found_by_it(ledger: Ledger, submit: Submit) -> None:
    job = submit()
    assert ledger.jobs.of_run("train_model", "job-1") == job
    with pytest.raises(NotFoundError, match="'other' of DAG 'train_model' is not recorded"):
        ledger.jobs.of_run("train_model", "other")
    with pytest.raises(RefusedError, match="is job 'job-1' already, not 'job-2'"):
        ledger.jobs.record(NewJob("job-2", "default", "digits", "train_model", "job-1", {}, "ada"))


def test_names_too_long_and_manifests_too_large_are_refused(ledger: Ledger) -> None:
    with pytest.raises(RefusedError, match=r"name: .* must be 1 to 250 printable characters"):
        ledger.jobs.record(NewJob("a", "default", "n" * 251, "d", "a", {}, "ada"))
    with pytest.raises(RefusedError, match="job id"):
        ledger.jobs.record(NewJob("a\nb", "default", "n", "d", "a", {}, "ada"))
    with pytest.raises(LimitError, match="manifest"):
        ledger.jobs.record(NewJob("a", "default", "n", "d", "a", {"x": "y" * 1_100_000}, "ada"))
    assert ledger.jobs.find() == []


def test_a_life_is_kept_step_by_step_with_its_times(ledger: Ledger, submit: Submit, clock: Any) -> None:
    submit()
    path = [State.QUEUED, State.DEPLOYING, State.DOWNLOADING, State.PROCESSING, State.STORING]
    for number, state in enumerate(path, start=1):
        clock.forward(number)
        ledger.jobs.move("job-1", state, f"now {state}", {"number": number})
    clock.forward(10)
    verdict = Verdict(
        State.COMPLETED, "all learners left with 0", Evidence({"pod-1": 0}, ("done.json",), "s5", details={"a": [1]})
    )
    job = ledger.jobs.finish("job-1", verdict)
    assert (job.state, job.verdict, job.ended_at) == (State.COMPLETED, verdict, clock.now)
    assert job.started_at == ledger.jobs.transitions("job-1")[4].at
    assert [t.to_state for t in ledger.jobs.transitions("job-1")] == [State.PENDING, *path, State.COMPLETED]
    assert ledger.jobs.transitions("job-1")[1].evidence == {"number": 1}


def test_the_same_state_again_is_nothing_and_with_a_new_reason_a_note(ledger: Ledger, submit: Submit) -> None:
    submit()
    ledger.jobs.move("job-1", State.QUEUED, "2nd in the queue")
    ledger.jobs.move("job-1", State.QUEUED, "2nd in the queue")
    job = ledger.jobs.move("job-1", State.QUEUED, "1st in the queue")
    assert job.reason == "1st in the queue"
    assert [(t.from_state, t.to_state, t.reason) for t in ledger.jobs.transitions("job-1")][1:] == [
        (State.PENDING, State.QUEUED, "2nd in the queue"),
        (State.QUEUED, State.QUEUED, "1st in the queue"),
    ]


def test_an_illegal_step_changes_nothing(ledger: Ledger, submit: Submit) -> None:
    before = submit()
    with pytest.raises(IllegalTransitionError):
        ledger.jobs.finish("job-1", Verdict(State.COMPLETED, "too early"))
    with pytest.raises(IllegalTransitionError, match="needs a verdict"):
        ledger.jobs.move("job-1", State.FAILED, "no")
    assert ledger.jobs.get("job-1") == before
    assert len(ledger.jobs.transitions("job-1")) == 1


def test_the_first_verdict_stands(ledger: Ledger, submit: Submit) -> None:
    submit()
    first = ledger.jobs.finish("job-1", Verdict(State.FAILED, "exit code 1", Evidence(exit_codes={"pod-1": 1})))
    assert ledger.jobs.finish("job-1", Verdict(State.CANCELLED, "ada cancelled it")) == first
    assert ledger.jobs.finish("job-1", Verdict(State.FAILED, "exit code 1", Evidence(exit_codes={"pod-1": 1}))) == first
    assert len(ledger.jobs.transitions("job-1")) == 2
    with pytest.raises(IllegalTransitionError):
        ledger.jobs.move("job-1", State.PROCESSING, "up again")


def test_huge_evidence_is_shortened_and_never_refused(ledger: Ledger, submit: Submit) -> None:
    submit()
    details = {"log": "x" * 200_000, "loss": float("nan"), "nul": "a\x00b", "odd": "\udc80"}
    job = ledger.jobs.finish("job-1", Verdict(State.FAILED, "r" * 5_000, Evidence({"pod-1": 137}, details=details)))
    assert job.verdict is not None
    assert len(job.verdict.reason) == 2_000
    assert job.verdict.evidence.exit_codes == {"pod-1": 137}
    kept = job.verdict.evidence.details
    assert (len(kept["log"]), kept["loss"], kept["nul"]) == (2_000, "nan", "ab")
    assert ledger.jobs.transitions("job-1")[-1].evidence["details"] == kept


def test_jobs_are_listed_newest_first_in_pages_and_by_tenant(ledger: Ledger, submit: Submit, clock: Any) -> None:
    for number in range(5):
        submit(f"job-{number}", tenant="a" if number % 2 else "b")
        clock.forward(number // 2)  # some at the same instant
    everything = ledger.jobs.find()
    assert {job.id for job in everything} == {f"job-{n}" for n in range(5)}
    paged, before = [], None
    while page := ledger.jobs.find(limit=2, before=before):
        paged += page
        before = page[-1].id
    assert paged == everything
    assert [job.id for job in ledger.jobs.find(tenant="a")] == ["job-3", "job-1"]
    ledger.jobs.move("job-3", State.QUEUED, "waits")
    assert [job.id for job in ledger.jobs.find(state=State.QUEUED)] == ["job-3"]
    assert ledger.jobs.find(name="other") == []


def test_a_list_holds_what_it_shows_of_the_manifest(ledger: Ledger, ledger_url: str, clock: Any) -> None:
    manifest = {
        "resources": {"learners": 4},
        "export": {"promote_if": {"val_accuracy": ">= champion", "loss": "< 1"}},
        "checkpoints": {"metric": "val_loss"},
        "annotations": {"a": "x" * 100_000},
    }
    ledger.jobs.record(NewJob("job-1", "default", "digits", "train_model", "job-1", manifest, "ada"))
    shown = Shown(4, ("val_accuracy", "loss", "val_loss"))
    listed = ListedJob(
        *("job-1", "default", "digits", "train_model", "job-1", State.PENDING, "submitted", "ada", clock.now),
        *(None, None, None, None, None, shown),
    )
    assert ledger.jobs.find() == [listed]
    assert ledger.jobs.get("job-1").shown == shown
    engine = make_engine(ledger_url)
    with writing(engine) as connection:  # as a part of an earlier version writes it
        connection.execute(update(jobs).values(shown=None))
    engine.dispose()
    assert ledger.jobs.find() == [listed]
    ledger.jobs.revise("job-1", {"resources": {"learners": 2}}, {}, "ada")
    assert [job.shown for job in ledger.jobs.find()] == [Shown(2)]


@pytest.mark.parametrize("wrong", [None, 1, "x", [], {}, {"learners": -1, "metric": 1, "promote_if": []}])
def test_a_manifest_of_another_shape_is_shown_too(wrong: Any) -> None:
    assert Shown.of({"resources": wrong, "export": wrong, "checkpoints": wrong}) == Shown()
    many = {"export": {"promote_if": {f"{'m' * 1_000}{n}": "" for n in range(1_000)}}}
    assert Shown.of(many) == Shown(1, ("m" * 250,) * 20)


def test_one_job_has_one_mlflow_run(ledger: Ledger, submit: Submit) -> None:
    submit()
    ledger.jobs.set_run("job-1", "run-1", "7")
    assert ledger.jobs.set_run("job-1", "run-1", "7").mlflow_run_id == "run-1"
    with pytest.raises(RefusedError, match="has run 'run-1' already"):
        ledger.jobs.set_run("job-1", "run-2", "7")


def test_inputs_and_cancellation_are_kept(ledger: Ledger, submit: Submit, clock: Any) -> None:
    submit()
    ledger.jobs.set_inputs("job-1", "c" * 64, [{"tree": "d" * 64, "as": "training"}])
    ledger.requests.make("job-1", "cancel", "bob")
    job = ledger.jobs.get("job-1")
    assert (job.code_tree, job.data) == ("c" * 64, ({"tree": "d" * 64, "as": "training"},))
    assert (job.cancel_requested_at, job.cancel_requested_by) == (clock.now, "bob")
    clock.forward(5)
    ledger.requests.make("job-1", "cancel", "eve")
    assert ledger.jobs.get("job-1") == job


def test_what_does_not_exist_is_not_found(ledger: Ledger) -> None:
    for call in (ledger.jobs.get, ledger.jobs.transitions, ledger.requests.of_job, ledger.jobs.revisions):
        with pytest.raises(NotFoundError, match="'nobody' does not exist"):
            call("nobody")
    with pytest.raises(NotFoundError):
        ledger.jobs.move("nobody", State.QUEUED, "x")


def test_a_ledger_without_tables_says_so(tmp_path: Any) -> None:
    with pytest.raises(UnavailableError, match="is not set up"):
        Ledger(f"sqlite:///{tmp_path}/new.db").jobs.get("x")


def test_upgrade_twice_is_harmless(ledger_url: str, ledger: Ledger, submit: Submit) -> None:
    job = submit()
    upgrade(ledger_url)
    assert ledger.jobs.get("job-1") == job
