"""What a user sees of each mistake: the job ends FAILED with a reason that names what is wrong and what to do."""

from __future__ import annotations

import json
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from system_helpers import Stack, pretty, shell_job

from updraft.client.http import InvalidRequestError
from updraft.exceptions import UpdraftError
from updraft.manifest import ManifestError, parse

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

SUITE = {
    "name": "rows",
    "expectations": [{"type": "expect_column_values_to_be_between", "kwargs": {"column": "a", "max_value": 2}}],
}
RAW = {"name": "raw", "comand": "x", "framework": {"name": "shell"}, "resources": {"memory": "16 Gigs"}}
FORM = {
    **{"name": "form-bad", "framework_name": "shell", "command": "true", "resources_memory": "16 Gigs"},
    "manifest": {"resources": {"learners": -1}, "data": [{"sorce": "x"}]},
}
IMPOSSIBLE = ("empty", "no-image", "too-large", "peek")
NAN = 'echo "{\\"t\\": 1, \\"step\\": 1, \\"metrics\\": {\\"loss\\": NaN}}" >> "$UPDRAFT_METRICS_FILE"; sleep 3'
FLOOD = "seq 200000; echo Traceback; echo 'ValueError: batch 17 has no labels'; exit 1"
HOG = "/usr/bin/perl -e '$x = \"x\" x 400_000_000; sleep 60'"


def failed(stack: Stack, job_id: str) -> str:
    """The reason of a job that must have failed, after a look at where its user stands: terminal and Airflow's page."""
    detail = stack.end(job_id)
    assert detail.state == "FAILED", pretty(detail)
    reason = str(detail.reason)
    shown = stack.run("show", job_id)
    assert " ".join(reason.split())[:60] in " ".join(shown.stdout.split()), shown.stdout + shown.stderr
    task = detail.verdict["details"]["task"]
    log = stack.task_log(detail, task)
    assert reason.splitlines()[0][:60] in log
    assert "exc_type" not in log, "Airflow's traceback stands below the reason"
    return reason


def archive(folder: Path, *, escapes: bool) -> Path:
    """A code archive that is no zip, or one whose member lies outside of it."""
    path = folder / "code.zip"
    if escapes:
        with zipfile.ZipFile(path, "w") as packed:
            packed.writestr("../escape.sh", "true")
    else:
        path.write_bytes(b"this is no zip")
    return path


@pytest.fixture(scope="module")
def jobs(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """All jobs of this module, submitted at once: they wait for each other's gaps and not one after the other."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "bad").mkdir()
    (folder / "bad" / "t.csv").write_text("a,b\n1,1\n5,2\n")
    stack.client.set_secret("wrong-key", {"access_key": "nobody", "secret_key": "not-this-one"})
    stack.client.set_secret("own-key", stack.s3_keys())
    manifests: dict[str, dict[str, Any]] = {
        "exit-one": shell_job("exit-one", "echo about to fail; echo no labels found >&2; exit 1"),
        "flood": shell_job("flood", FLOOD),
        "oom": shell_job("oom", HOG, resources={"learners": 1, "cpus": 0.5, "memory": "64MiB"}),
        "no-checkpoint": shell_job("no-checkpoint", "echo hello; sleep 100", checkpoints={"every": "1s"}),
        "short": shell_job("short", "sleep 2", checkpoints={"every": "60s"}),
        "no-bucket": shell_job("no-bucket", "true", data=[{"source": "s3://no-such-bucket/x/", "secret": "own-key"}]),
        "empty": shell_job("empty", "true", data=[{"source": "s3://datasets/nothing-here/"}]),
        "wrong-secret": shell_job(
            "wrong-secret", "true", data=[{"source": "s3://datasets/digits/", "secret": "wrong-key"}]
        ),
        "bad-data": shell_job("bad-data", "true", data=[{"source": "bad", "expectations": SUITE}]),
        "no-image": {**shell_job("no-image", "true"), "framework": None, "image": "nobody/nothing:1"},
        "too-large": shell_job("too-large", "true", resources={"learners": 1, "cpus": 64, "memory": "64MiB"}),
        "peek": shell_job("peek", "true", data=[{"source": "s3://mlflow/artifacts/"}]),
        "nan": shell_job("nan", NAN),
    }
    for escapes in (False, True):
        key = f"archive-{escapes}/code.zip"
        stack.put_object("datasets", key, archive(folder, escapes=escapes).read_bytes())
        manifests[key] = shell_job("stored", "true", code=f"s3://datasets/{key}")
    ids = {name: stack.submit(manifest, base=folder) for name, manifest in manifests.items() if name not in IMPOSSIBLE}
    for name in IMPOSSIBLE:  # a submission would be refused
        with pytest.raises(InvalidRequestError):
            stack.submit(manifests[name], base=folder)
        ids[name] = f"{name}-1"
        stack.client.trigger(ids[name], {"manifest": parse(manifests[name]).canonical()})
    stack.client.trigger("raw-manifest-1", {"manifest": RAW})
    stack.trigger("form-bad-1", FORM)
    with ThreadPoolExecutor(2) as pool:
        ids["twin"], ids["other twin"] = pool.map(lambda _: stack.submit(shell_job("twin", "true")), range(2))
    for name in ("once", "once again"):
        ids[name] = stack.client.submit(shell_job("once", "true"), job_id="once-1").id
    return ids


def test_a_failing_programs_last_words_are_the_reason(stack: Stack, jobs: dict[str, str]) -> None:
    reason = failed(stack, jobs["exit-one"])
    assert "exited with 1" in reason
    assert "no labels found" in reason
    assert "no labels found" in stack.log(jobs["exit-one"])


def test_the_last_words_behind_200_000_lines_are_the_reason_and_end_the_log(stack: Stack, jobs: dict[str, str]) -> None:
    """On the page and in the terminal too; what is missing before them is said."""
    words = "ValueError: batch 17 has no labels"
    assert words in failed(stack, jobs["flood"])
    assert words in stack.job_page(jobs["flood"])
    assert stack.run("logs", "-n", "20", jobs["flood"]).stdout.splitlines()[-2:] == ["Traceback", words]
    lines = stack.log(jobs["flood"]).splitlines()
    numbers = [int(line) for line in lines if line.isdigit()]
    assert numbers == sorted(set(numbers))
    gaps = [line for line in lines if line.startswith("...")]
    missing = 200_000 - len(numbers)
    assert gaps == (
        [f"... {missing:,} lines not kept: the program printed faster than its log is read ..."] * bool(missing)
    )


def test_a_kill_by_memory_names_the_limit_and_the_field(stack: Stack, jobs: dict[str, str]) -> None:
    reason = failed(stack, jobs["oom"])
    assert "64 MiB" in reason
    assert "resources.memory" in reason


def test_a_program_that_never_writes_a_checkpoint_is_told_how(stack: Stack, jobs: dict[str, str]) -> None:
    assert "wrote none" in failed(stack, jobs["no-checkpoint"])


def test_a_program_that_ends_before_a_checkpoint_is_due_needs_none(stack: Stack, jobs: dict[str, str]) -> None:
    detail = stack.end(jobs["short"])
    assert detail.state == "COMPLETED", pretty(detail)


def test_a_bucket_that_does_not_exist_is_named(stack: Stack, jobs: dict[str, str]) -> None:
    reason = failed(stack, jobs["no-bucket"])
    assert "no-such-bucket" in reason
    assert "does not exist" in reason


def test_empty_data_is_named(stack: Stack, jobs: dict[str, str]) -> None:
    assert "nothing-here" in failed(stack, jobs["empty"])


def test_a_wrong_secret_is_named_and_not_shown(stack: Stack, jobs: dict[str, str]) -> None:
    reason = failed(stack, jobs["wrong-secret"])
    assert "wrong-key" in reason
    assert "not-this-one" not in pretty(stack.client.job(jobs["wrong-secret"]))


def test_data_that_fails_its_suite_stops_the_job_before_a_learner_starts(stack: Stack, jobs: dict[str, str]) -> None:
    reason = failed(stack, jobs["bad-data"])
    assert "expect_column_values_to_be_between" in reason
    assert "PROCESSING" not in stack.transitions(jobs["bad-data"])


def test_an_unknown_image_lists_those_that_exist(stack: Stack, jobs: dict[str, str]) -> None:
    reason = failed(stack, jobs["no-image"])
    assert "nobody/nothing:1" in reason
    assert "updraft/shell:1" in reason


def test_a_job_that_can_never_fit_does_not_wait(stack: Stack, jobs: dict[str, str]) -> None:
    reason = failed(stack, jobs["too-large"])
    assert "64" in reason
    assert "2" in reason


def test_a_wrong_manifest_sent_past_the_cli_fails_with_every_field(stack: Stack, jobs: dict[str, str]) -> None:
    reason = failed(stack, "raw-manifest-1")
    for part in ("comand", "command", "16 Gigs", "16GiB"):
        assert part in reason


def test_a_wrong_manifest_is_refused_before_anything_is_sent(stack: Stack) -> None:
    manifest = shell_job("neg", "true", resources={"learners": -1, "memory": "16 Gigs"}, priority="high")
    with pytest.raises(ManifestError) as error:
        stack.submit(manifest)
    assert {f.path for f in error.value.fields} >= {"resources.learners", "resources.memory"}


def test_what_this_version_does_not_act_on_is_refused_by_name(stack: Stack) -> None:
    with pytest.raises(ManifestError, match="elastic"):
        stack.submit(shell_job("grow", "true", elastic={"max_learners": 2}))


@pytest.mark.parametrize(("escapes", "problem"), [(False, "is no zip archive"), (True, "../escape.sh")])
def test_a_code_archive_that_is_none_or_escapes_is_refused_in_the_terminal(
    stack: Stack, tmp_path: Path, escapes: bool, problem: str
) -> None:
    archive(tmp_path, escapes=escapes)
    manifest = tmp_path / "manifest.yaml"
    manifest.write_text(json.dumps(shell_job("archive", "true", code="code.zip")))
    answer = stack.run("submit", str(manifest))
    assert answer.returncode == 2, answer.stdout + answer.stderr
    said = " ".join(answer.stderr.split())
    assert "code.zip" in said
    assert problem in said


@pytest.mark.parametrize(("escapes", "problem"), [(False, "is no zip archive"), (True, "../escape.sh")])
def test_a_code_archive_in_a_bucket_that_is_none_or_escapes_fails_the_job(
    stack: Stack, jobs: dict[str, str], escapes: bool, problem: str
) -> None:
    key = f"archive-{escapes}/code.zip"
    reason = failed(stack, jobs[key])
    assert f"s3://datasets/{key}" in reason
    assert problem in reason


def test_the_platforms_own_buckets_are_no_sources(stack: Stack, jobs: dict[str, str]) -> None:
    reason = failed(stack, jobs["peek"])
    assert "'mlflow' is not open to manifests" in reason
    assert "datasets" in reason


def test_airflows_form_refuses_negative_learners_itself(stack: Stack) -> None:
    flat = {"name": "form-neg", "framework_name": "shell", "command": "true", "resources_learners": -1}
    with pytest.raises(UpdraftError, match=r"resources_learners.*(minimum|less)"):
        stack.trigger("form-neg-1", flat)


def test_what_airflows_form_lets_through_fails_the_run_with_every_field(stack: Stack, jobs: dict[str, str]) -> None:
    """The form's text fields, and the box that holds what has no field, are judged by the run's first task."""
    reason = failed(stack, "form-bad-1")
    for part in ("resources.memory", "16 Gigs", "resources.learners", "sorce"):
        assert part in reason


def test_nan_is_recorded_and_never_promoted_or_fatal(stack: Stack, jobs: dict[str, str]) -> None:
    job_id = jobs["nan"]
    detail = stack.end(job_id)
    assert detail.state == "COMPLETED", pretty(detail)
    told = "metric loss at step 1 is NaN"
    assert told in json.dumps([learner.model_dump(mode="json") for learner in detail.learners]), pretty(detail)
    assert told in stack.job_page(job_id)
    shown = stack.run("metrics", job_id)
    assert "loss" in shown.stdout, shown.stdout + shown.stderr
    assert "NaN" in shown.stdout


def test_two_submissions_of_one_name_at_once_are_two_jobs_of_one_series(stack: Stack, jobs: dict[str, str]) -> None:
    first, second = jobs["twin"], jobs["other twin"]
    assert first != second
    assert {stack.end(first).state, stack.end(second).state} == {"COMPLETED"}
    assert {j.id for j in stack.client.jobs(name="twin")} == {first, second}


def test_the_same_id_twice_is_one_job(stack: Stack, jobs: dict[str, str]) -> None:
    assert jobs["once"] == jobs["once again"] == "once-1"
    assert stack.end("once-1").state == "COMPLETED"
    assert [j.id for j in stack.client.jobs(name="once")] == ["once-1"]


def test_an_object_store_that_does_not_answer_is_named_at_submission_and_nothing_is_submitted(stack: Stack) -> None:
    with stack.frozen("s3"):
        answer = stack.run("submit", "jobs/shell-hello/manifest.yaml", timeout_seconds=240)
    assert answer.returncode == 4, answer.stdout + answer.stderr
    assert "waiting for the object store" in answer.stderr
    assert "nothing was submitted" in answer.stderr


def test_what_a_failed_job_stored_is_not_lost(stack: Stack, tmp_path: Path) -> None:
    """Its evaluation failed: results and checkpoint are downloaded, and a mended manifest goes on from the results."""
    train = "mkdir c; touch c/COMPLETE; mv c $CHECKPOINT_DIR/step-1; echo 42 > $RESULT_DIR/answer; sleep 2"
    job_id = stack.submit(shell_job("saved", train, evaluate={"command": "echo no labels found >&2; exit 1"}))
    reason = failed(stack, job_id)
    assert "no labels found" in reason
    assert "last lines of evaluate, learner 1:" in stack.run("show", job_id).stdout
    results, checkpoint = tmp_path / "results", tmp_path / "checkpoint"
    for what, folder in (("results", results), ("checkpoint:latest", checkpoint)):
        got = stack.run("download", job_id, what, "-o", str(folder))
        assert got.returncode == 0, got.stdout + got.stderr
    assert (results / "learner-1" / "answer").read_text() == "42\n"
    assert list(checkpoint.rglob("*"))
    manifest = tmp_path / "manifest.yaml"
    mended = {"command": "test $(cat $RESULT_DIR/answer) = 42"}
    manifest.write_text(json.dumps(shell_job("saved", train, evaluate=mended)))
    again = stack.run("export", job_id, str(manifest), "--follow", "--json", timeout_seconds=400)
    assert again.returncode == 0, again.stdout + again.stderr
    detail = json.loads(again.stdout)
    assert detail["state"] == "COMPLETED", again.stdout
    own = json.loads(stack.run("export", job_id, "--json").stdout)["id"]  # what failed once fails again
    assert "no labels found" in failed(stack, own)
