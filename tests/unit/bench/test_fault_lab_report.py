"""The published page and pictures are made of the results alone, and say what the results say."""

from __future__ import annotations

import subprocess
from html import escape
from typing import Any
from xml.etree import ElementTree

import pytest
from faults import outcomes, report
from faults.kinds import KINDS
from faults.mends import MENDS, Failure, Mend, mend_of
from faults.outcomes import RunRecord
from faults.picture import picture
from faults.summary import STALE_COMMITS, Age, KindSummary, Spread, ages, moments, newest, summarise


def a_job(**changes: Any) -> dict[str, Any]:
    return {
        "id": "j",
        "text": "1 learner, 100 steps",
        "hit": "PROCESSING",
        "state": "COMPLETED",
        "attempts": 2,
        "seconds": 50.0,
        "checkpoint_steps": 10,
        "losses": [{"repeated": 7, "next_step_seconds": 3.5, "caught_up_seconds": 4.9}],
        "pause_seconds": 0.3,
        "curves": [
            {"attempt": 1, "points": [[-8.0, 1], [0.0, 40]]},
            {"attempt": 2, "points": [[3.5, 34], [17.0, 100]]},
        ],
        **changes,
    }


def a_run(**changes: Any) -> RunRecord:
    fields: dict[str, Any] = {
        "kind": "learner_kill",
        "seed": 1,
        "scale": 1.0,
        "outcome": "passed",
        "commit": "0123456789ab",
        "code": "c",
        "changed": False,
        "at": "2030-01-02T03:04:05+00:00",
        "seconds": 61.0,
        "moments": {"learner_kill": "step 40"},
        "healed_seconds": {"learner_kill": 0.0},
        "jobs": [a_job()],
    }
    return RunRecord.model_validate({**fields, **changes})


FALSE = {"kind": "false_verdict", "job": "j", "text": "ended FAILED instead of COMPLETED: <lost>"}


def every_run() -> list[RunRecord]:
    return [*outcomes.load(outcomes.FILE), *outcomes.load(outcomes.CLUSTER_FILE)]


def test_the_page_is_the_one_that_the_results_make() -> None:
    page = report.PAGE.read_text(encoding="utf-8")
    runs, cluster = outcomes.load(outcomes.FILE), outcomes.load(outcomes.CLUSTER_FILE)
    made = report.markdown(runs, cluster, head=report.head_of(page))
    assert page == made, "run: python bench/faults --report"


def test_every_picture_of_the_page_is_there() -> None:
    page = report.PAGE.read_text(encoding="utf-8")
    shown = {line.rpartition("/")[2].rstrip(")") for line in page.splitlines() if line.startswith("![")}
    assert shown == {path.name for path in report.FOLDER.glob("*.svg")}


def test_a_kind_is_summed_up_over_its_runs_and_pairs() -> None:
    records = [
        a_run(),
        a_run(
            seed=2,
            outcome="failed",
            violations=[FALSE, FALSE],
            jobs=[a_job(losses=[], late_seconds=0.4), a_job(hit="COMPLETED")],
        ),
        a_run(kind="learner_kill+s3_kill", notes={"s3_kill": {"serves_after_seconds": 9}}),
    ]
    assert summarise("learner_kill", records) == KindSummary(
        kind="learner_kill",
        single=2,
        pairs=1,
        failed=1,
        jobs=4,
        violations={"false_verdict": 1},
        repeated=Spread(7, 7, 1),
        checkpoint_steps=10,
        next_step=Spread(3.5, 3.5, 1),
        pause=Spread(0.3, 0.3, 1),
        late=Spread(0.4, 0.4, 1),
        serves=None,
    )


def test_only_the_last_result_of_a_run_counts_and_void_ones_never() -> None:
    old, new, void = a_run(outcome="failed"), a_run(), a_run(seed=2, outcome="void")
    assert newest([old, new, void]) == [new]


def test_the_page_has_a_row_per_kind_and_tells_failures_with_their_command() -> None:
    page = report.markdown([a_run(), a_run(seed=2, outcome="failed", violations=[FALSE])])
    assert "| learner_kill | 2 |  | 2 | 0 | **1** | 0 | 0 | 0 | 0 | 0 | 7, 7 | 3.5, 3.5 |  |  |  |" in page
    assert (
        "- `make faults KINDS=learner_kill SEED=2 RUNS=1 AGAIN=1` (0123456789ab): "
        "false_verdict j: ended FAILED instead of COMPLETED: <lost>"
    ) in page
    assert "2 runs, 1 failed; 2030-01-02 to 2030-01-02; seeds 1 to 2; commits: 2 of 0123456789ab." in page
    assert "![learner_kill](faults/learner_kill.svg)" in page
    assert "s3_kill.svg" not in page


def test_runs_of_another_scale_have_a_table_of_their_own() -> None:
    page = report.markdown([a_run(), a_run(scale=30.0, kind="api_errors_500")])
    assert "## Durations times 30" in page


@pytest.mark.parametrize("records", [[], [a_run()], [a_run(jobs=[a_job(curves=[])])], [a_run(healed_seconds={})]])
def test_a_picture_is_well_formed(records: list[RunRecord]) -> None:
    root = ElementTree.fromstring(picture("learner_kill", records))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"


def test_a_picture_draws_each_process_and_marks_a_job_with_a_defect() -> None:
    def lines(records: list[RunRecord]) -> list[str]:
        root = ElementTree.fromstring(picture("learner_kill", records))
        paths = root.iter("{http://www.w3.org/2000/svg}path")
        return [path.attrib["stroke"] for path in paths if "stroke-opacity" in path.attrib]

    assert lines([a_run()]) == ["#4a6fa5", "#d9822b"]
    assert lines([a_run(violations=[FALSE])]) == ["#c0392b", "#c0392b"]


def test_the_html_report_escapes_what_it_shows() -> None:
    text = report.html([a_run(outcome="failed", violations=[FALSE])])
    assert "&lt;lost&gt;" in text
    assert "<lost>" not in text
    assert f"<p>{escape(KINDS['learner_kill'].text)}. 1 of 50 runs.</p>" in text


def test_every_mend_is_of_a_failure_that_is_on_record_and_every_failure_stays_on_the_page() -> None:
    failed = [record for record in every_run() if record.outcome == "failed"]
    seen = {Failure(record.kind, record.seed, record.commit, record.aim) for record in failed}
    assert {failure for mend in MENDS for failure in mend.failures} <= seen
    page = report.PAGE.read_text(encoding="utf-8")
    assert all(f"`{record.command}` ({record.commit})" in page for record in failed)
    assert all(mend.text in page for mend in MENDS)


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=report.REPOSITORY, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def test_every_commit_of_a_mend_and_of_a_run_is_in_the_history() -> None:
    if git("rev-parse", "--is-shallow-repository") != "false":
        pytest.skip("the history is not here")
    named = {mend.commit for mend in MENDS} | {record.commit for record in every_run()}
    assert [commit for commit in sorted(named) if git("cat-file", "-t", commit) != "commit"] == []


def test_a_failure_is_open_until_its_mend_is_known() -> None:
    failed = a_run(outcome="failed", violations=[FALSE], commit="abc", position=5)
    mend = Mend("def", "It is told.", (Failure("learner_kill", 1, "abc"),))
    assert mend_of(failed, ()) is None
    assert mend_of(failed, (mend,)) == mend
    assert mend_of(a_run(outcome="failed", commit="later"), (mend,)) is None
    assert "**Open.**" in report.markdown([failed, a_run()])  # though the same run has passed since


def test_runs_are_counted_with_their_commit_and_grow_stale() -> None:
    old = a_run(commit="old", position=100)
    new = a_run(commit="new", position=101 + STALE_COMMITS, kind="s3_kill+cancel", seed=2)
    unknown = a_run(commit="lost", seed=3)
    assert ages([old, new, unknown], ["learner_kill", "s3_kill", "mlflow_kill"]) == [
        Age("learner_kill", 2, 0, 0, "old", stale=True),
        Age("s3_kill", 1, 0, 1, "new", stale=False),
        Age("mlflow_kill", 0, 0, 0, "", stale=True),
    ]
    later = 102 + 2 * STALE_COMMITS
    assert {age.stale for age in ages([old, new, unknown], ["learner_kill", "s3_kill"], later)} == {True}
    assert ages([old, new], ["s3_kill"], 7) == ages([old, new], ["s3_kill"])  # runs of a branch that is ahead
    page = report.markdown([old, new])
    assert "| learner_kill | 1 of 50 | 0 | 0 | old | **stale** |" in page
    assert "| s3_kill | 1 of 50 | 0 | 1 | new |  |" in page


def test_the_newest_kill_of_each_process_is_a_row_and_each_process_is_a_run_of_its_own() -> None:
    def kill(place: str, **changes: Any) -> RunRecord:
        notes = {"any_process_kill": {"place": place, "late_seconds": 12.4, "serves_after_seconds": 8}}
        return a_run(kind="any_process_kill", place=place, notes=notes, **changes)

    records = [
        kill("s3 0 rclone", commit="old", outcome="failed", violations=[FALSE]),
        kill("s3 0 rclone", commit="new", at="2030-01-03T03:04:05+00:00"),
        kill("node 2 train/sidecar", outcome="failed", violations=[FALSE]),
    ]
    assert len(newest(records)) == 2
    page = report.markdown(records)
    assert "| s3 0 rclone | new | 8 | 12 | yes |" in page
    assert "| node 2 train/sidecar | 0123456789ab | 8 | 12 | **no** |" in page
    assert "--every --place 'node 2 train/sidecar'" in page


def test_a_page_names_the_commit_at_which_it_was_written_and_counts_from_it() -> None:
    head = report.Head("abcdef012345", 102 + 2 * STALE_COMMITS)
    page = report.markdown([a_run(position=100)], head=head)
    assert report.head_of(page) == head
    assert "| learner_kill | 1 of 50 | 0 | 0 | 0123456789ab | **stale** |" in page
    assert report.head_of(report.markdown([a_run()])) is None


def test_moments_that_were_never_met_are_told() -> None:
    strike = {"kind": "learner_kill", "aim": "STORING", "hit": "PROCESSING"}
    missed = [a_run(seed=seed, aim="STORING", strikes=[strike]) for seed in range(3)]
    assert "Never met, with the runs that were aimed at it: learner_kill at STORING (3)." in report.markdown(missed)
    assert "Never met" not in report.markdown(missed[:2])


def test_moments_are_counted_by_the_state_that_was_really_hit_and_the_task_that_was_aimed_at() -> None:
    records = [
        a_run(),
        a_run(seed=2, aim="PENDING", jobs=[a_job(hit="not accepted")]),
        a_run(seed=3, aim="task:evaluate", kind="learner_kill+s3_kill", jobs=[a_job(hit="STORING"), a_job()]),
        a_run(seed=4, jobs=[a_job(hit="")]),
    ]
    assert moments(records, "learner_kill") == {"PROCESSING": 1, "PENDING": 1, "STORING": 1, "evaluate": 1}
    assert moments(records, "s3_kill") == {"STORING": 1, "evaluate": 1}


def on_a_cluster(**changes: Any) -> RunRecord:
    evicted = {"kind": "pod_evict", "test": "test_a_learner_goes_on[twice]", "kubernetes": "v1.34.4", "position": 100}
    return a_run(**{"seed": 0, "moments": {}, "jobs": [], **evicted, **changes})


def test_every_run_on_a_real_cluster_counts_and_a_failure_of_one_stays_open_until_its_mend() -> None:
    wrong = {"kind": "failed", "job": "test_a_learner_goes_on[twice]", "text": "AssertionError: <1> == 2"}
    failed = on_a_cluster(outcome="failed", commit="old", at="2030-01-01T00:00:00+00:00", violations=[wrong])
    runs = [failed, on_a_cluster(), on_a_cluster(kind="etcd_stopped", test="test_a_minute", position=30)]
    page = report.markdown([a_run(position=100)], runs)
    section = page.partition("## On a real cluster")[2].partition("\n## ")[0]
    assert "| pod_evict | 2 of 50 | **1** | 2 | 0123456789ab |  |" in section
    assert "| etcd_stopped | 1 of 50 | 0 | 0 | 0123456789ab | **stale** |" in section
    assert "- pod_evict: a learner goes on\n" in f"{section}\n"
    assert "Kubernetes: v1.34.4." in section
    assert (
        '- `make test-cluster ARGS="-k test_a_learner_goes_on"` (old): '
        "failed test_a_learner_goes_on[twice]: AssertionError: <1> == 2\n  **Open.**"
    ) in page
    assert mend_of(failed, [mend := Mend("new", "Mended.", (Failure("pod_evict", 0, "old"),))]) == mend
    assert "| learner_kill | 1 of 50 | 0 | 1 |" in page  # the runs of the lab itself are counted apart
    assert "failed: AssertionError: &lt;1&gt; == 2<br><code>make test-cluster" in report.html([a_run()], runs)


def test_a_page_without_runs_on_a_real_cluster_says_so() -> None:
    section = report.markdown([a_run()]).partition("## On a real cluster")[2].partition("\n## ")[0]
    assert section.endswith("Nothing was run yet.\n")
