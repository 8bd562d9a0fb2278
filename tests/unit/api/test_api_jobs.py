"""What the routes say about jobs, and what they say when a part is away."""

from __future__ import annotations

import math
import threading
from datetime import UTC, datetime, timedelta

from bounds import bounded
from ledger_helpers import deciding
from unit.api.api_fakes import MANIFEST, Platform

from updraft.allocation import Capacity, GangRequest, Node
from updraft.api.deadline import CLIENTS, Deadline, import_client
from updraft.controller.idempotency import MODEL_VERSION, PROMOTION, Promotion, RegisteredModel
from updraft.ledger import Ledger, NewJob
from updraft.lifecycle import Evidence, State, Verdict
from updraft.storage.logbook import LogBook
from updraft_learner.contract import Keys, LearnerStatus

API = "/updraft/api/v1"
KEYS = Keys("default")


def train(platform: Platform, job_id: str = "digits-1") -> int:
    """A job whose two learners run; returns the attempt."""
    ledger = platform.ledger
    platform.job(job_id)
    ledger.jobs.move(job_id, State.QUEUED, "waits", {"place": 3})
    ledger.jobs.move(job_id, State.DEPLOYING, "admitted: 2 learners")
    number = ledger.attempts.ensure(job_id, "train", after=None, learners=2).number
    ledger.jobs.move(job_id, State.PROCESSING, "2 learners run")
    for learner, step in ((1, 40), (2, 30)):
        status = LearnerStatus(
            t=1_800_000_000.0,
            phase="running",
            progress={"step": step, "total": 100, "epoch": 1, "epochs": 3},
            last_metrics={"loss": 0.5 * learner, "bad": "NaN"},
        )
        platform.store.put_bytes(KEYS.status(job_id, "train", number, learner), status.to_json().encode())
    ledger.jobs.set_run(job_id, "run1", "7")
    return number


def test_a_running_job_shows_its_learners_and_the_slowest_ones_progress(platform: Platform) -> None:
    number = train(platform)
    job = platform.client().get(f"{API}/jobs/digits-1").json()
    assert (job["state"], job["reason"], job["ended"], job["attempt"]) == (
        "PROCESSING",
        "2 learners run",
        False,
        number,
    )
    assert [t["state"] for t in job["transitions"]] == ["PENDING", "QUEUED", "DEPLOYING", "PROCESSING"]
    assert job["progress"] == {"step": 30, "total": 100, "epoch": 1, "epochs": 3}
    assert job["metrics"] == {"loss": 0.5}
    assert [(x["learner"], x["phase"], x["progress"]["step"]) for x in job["learners"]] == [
        (1, "running", 40),
        (2, "running", 30),
    ]
    assert job["queue"]["reason"] == "admitted: 2 learners"
    assert job["links"] == {
        "airflow_run": "http://airflow/dags/train_model/runs/digits-1",
        "mlflow_run": "http://mlflow/#/experiments/7/runs/run1?workflowType=machine_learning",
        "page": "http://airflow/updraft/jobs/digits-1",
    }
    assert job["verdict"] is None


def test_a_waiting_job_shows_its_place(platform: Platform) -> None:
    ledger = platform.ledger
    for number, job_id in enumerate(("digits-0", "digits-1")):
        at = platform.job(job_id).submitted_at
        ledger.queue.enqueue(job_id, GangRequest(job_id, 1, 2, 256, 0, None, at + timedelta(seconds=number)))
        ledger.jobs.move(job_id, State.QUEUED, "waiting to be admitted")
    url = f"{API}/jobs/digits-1"
    assert platform.client().get(url).json()["queue"] == {
        "place": None,
        "granted_at": None,
        "reason": "waiting to be admitted",
    }
    ledger.queue.plan(deciding(Capacity((Node("local", 2, 4096, ready=False),))))
    reason = "2nd in the queue; needs 1 x 2 CPUs + 256 MiB; no node is ready; behind digits-0"
    assert platform.client().get(url).json()["queue"] == {"place": 2, "granted_at": None, "reason": reason}
    assert platform.client().get(url).json()["reason"] == reason
    (listed,) = platform.client().get(f"{API}/jobs?state=QUEUED&limit=1").json()["jobs"]
    assert listed["reason"] == reason


def test_an_ended_job_shows_verdict_and_model(platform: Platform) -> None:
    train(platform)
    ledger = platform.ledger
    ledger.idempotency.record("digits-1", MODEL_VERSION, RegisteredModel("digits cnn", "4", None))
    ledger.idempotency.record("digits-1", PROMOTION, Promotion(True, "first", alias="champion"))
    ledger.jobs.move("digits-1", State.STORING, "registering")
    evidence = Evidence(exit_codes={"digits-1-train-1": 0}, model_version="digits cnn/4")
    ledger.jobs.finish("digits-1", Verdict(State.COMPLETED, "registered", evidence))
    job = platform.client().get(f"{API}/jobs/digits-1").json()
    assert job["model"] == {
        "name": "digits cnn",
        "version": "4",
        "alias": "champion",
        "url": "http://mlflow/#/models/digits%20cnn/versions/4?workflowType=machine_learning",
    }
    assert job["ended"]
    assert job["verdict"]["state"] == "COMPLETED"
    assert job["verdict"]["exit_codes"] == {"digits-1-train-1": 0}


def test_lists_are_newest_first_and_filtered(platform: Platform) -> None:
    for job_id in ("digits-1", "digits-2", "cats-1"):
        platform.job(job_id)
    platform.ledger.jobs.move("digits-2", State.QUEUED, "waits")
    client = platform.client()

    def ids(query: str) -> list[str]:
        return [job["id"] for job in client.get(f"{API}/jobs{query}").json()["jobs"]]

    assert ids("") == ["cats-1", "digits-2", "digits-1"]
    assert ids("?state=queued") == ["digits-2"]
    assert ids("?name=digits&limit=1") == ["digits-2"]
    answer = client.get(f"{API}/jobs?state=RUNING")
    assert answer.status_code == 404
    assert "The states are PENDING" in answer.json()["error"]["message"]
    assert client.get(f"{API}/jobs?limit=0").status_code == 422


def test_a_list_shows_progress_of_jobs_that_run(platform: Platform) -> None:
    train(platform)
    jobs = platform.client().get(f"{API}/jobs").json()["jobs"]
    assert [job["progress"]["step"] for job in jobs] == [30]


def test_cancel_is_written_into_the_ledger_once(platform: Platform) -> None:
    platform.job()
    client = platform.client("ada")
    assert client.post(f"{API}/jobs/digits-1/cancel").status_code == 202
    assert platform.client("bob").post(f"{API}/jobs/digits-1/cancel").status_code == 202
    assert platform.ledger.jobs.get("digits-1").cancel_requested_by == "ada"
    assert client.get(f"{API}/jobs/digits-1").json()["cancel_requested"]
    platform.ledger.jobs.finish("digits-1", Verdict(State.CANCELLED, "asked by ada"))
    assert "ended CANCELLED" in client.post(f"{API}/jobs/digits-1/cancel").json()["message"]


def test_metrics_come_with_the_history_asked_for(platform: Platform) -> None:
    train(platform)
    platform.tracking.runs["run1"] = {"loss": [(1, 10.0, 2.0), (2, 20.0, math.nan)], "acc": [(1, 10.0, 0.5)]}
    answer = platform.client().get(f"{API}/jobs/digits-1/metrics?key=loss&key=unknown").json()
    assert answer == {
        "run_id": "run1",
        "last": {"acc": 0.5, "loss": None},
        "history": {"loss": [{"step": 1, "t": 10.0, "value": 2.0}, {"step": 2, "t": 20.0, "value": None}]},
    }


def test_a_job_without_a_run_has_no_metrics(platform: Platform) -> None:
    platform.job()
    assert platform.client().get(f"{API}/jobs/digits-1/metrics").json() == {"run_id": None, "last": {}, "history": {}}


def test_checkpoints_are_those_of_the_ledger(platform: Platform) -> None:
    train(platform)
    made = datetime(2026, 1, 1, tzinfo=UTC)
    platform.ledger.checkpoints.record(
        "digits-1",
        "step-10",
        step=10,
        attempt=1,
        metrics={"loss": math.inf, "acc": 0.9},
        bytes=5,
        uri="s3://x",
        created_at=made,
    )
    kept = {"state": "kept", "reason": None}
    assert platform.client().get(f"{API}/jobs/digits-1/checkpoints").json() == {
        "checkpoints": [
            {
                "name": "step-10",
                "step": 10,
                "attempt": 1,
                "size_bytes": 5,
                "created_at": "2026-01-01T00:00:00Z",
                "metrics": {"acc": 0.9},
                **kept,
            }
        ]
    }


def test_health_names_the_part_that_is_away(platform: Platform) -> None:
    client = platform.client()
    assert client.get(f"{API}/health").json()["ok"]
    platform.tracking.down = True
    health = client.get(f"{API}/health").json()
    assert not health["ok"]
    assert [part["name"] for part in health["parts"] if not part["ok"]] == ["mlflow"]


def test_a_part_that_is_down_is_a_503_with_its_name(platform: Platform) -> None:
    train(platform)
    platform.tracking.down = True
    answer = platform.client().get(f"{API}/jobs/digits-1/metrics")
    assert answer.status_code == 503
    assert "MLflow" in answer.json()["error"]["message"]


def test_a_part_that_hangs_is_given_up_and_its_callers_are_bounded(platform: Platform) -> None:
    train(platform)
    platform.deadline = Deadline(seconds=1, parallel=1)
    client, let_go = platform.client(), threading.Event()
    platform.tracking.check = let_go.wait  # type: ignore[method-assign, assignment]
    platform.tracking.runs["run1"] = {}
    first, second = (client.get(f"{API}/jobs/digits-1/metrics") for _ in range(2))
    let_go.set()
    assert (first.status_code, second.status_code) == (503, 503)
    assert first.json()["error"]["message"] == "MLflow did not answer within 1 s"
    assert second.json()["error"]["message"] == "MLflow does not answer; earlier requests to it are still waiting"


def test_a_job_is_shown_without_learners_while_the_store_is_away(platform: Platform) -> None:
    train(platform)
    (platform.folder / "bucket").rename(platform.folder / "gone")
    job = platform.client().get(f"{API}/jobs/digits-1").json()
    assert (job["state"], job["learners"]) == ("PROCESSING", [])


def test_a_ledger_that_is_not_set_up_is_a_503(platform: Platform) -> None:
    platform.ledger.close()
    platform.ledger = Ledger(f"sqlite:///{platform.folder}/empty.db")
    answer = platform.client().get(f"{API}/jobs")
    assert answer.status_code == 503
    assert "not set up" in answer.json()["error"]["message"]


def test_a_defect_gives_nothing_away(platform: Platform) -> None:
    train(platform)
    answer = platform.client().get(f"{API}/jobs/digits-1/metrics")  # the fake has no such run: a KeyError
    assert answer.status_code == 500
    assert answer.json() == {
        "error": {"message": "the platform made a mistake; its log in Airflow's api-server says more", "fields": []}
    }


def put_log(platform: Platform, attempt: int, lines: dict[int, str]) -> None:
    book = LogBook.open("default", "digits-1", "train", attempt, 1, store=platform.store)
    book.append([{"n": n, "t": "2026-01-01T00:00:00Z", "line": line} for n, line in lines.items()])


def test_without_a_number_the_first_learner_that_belongs_is_read(platform: Platform) -> None:
    number = train(platform)
    attempts = platform.ledger.attempts
    first = attempts.current("digits-1", "train")
    assert first is not None
    assert platform.client().get(f"{API}/jobs/digits-1/logs").json()["learner"] == 1
    attempts.change_members("digits-1", "train", number, first.membership.resized(2, [1]))
    assert platform.client().get(f"{API}/jobs/digits-1/logs").json()["learner"] == 2
    assert platform.client().get(f"{API}/jobs/digits-1/logs?learner=1").json()["learner"] == 1


def test_logs_come_in_pages_and_each_line_once(platform: Platform) -> None:
    number = train(platform)
    put_log(platform, number, {1: "a", 2: "b"})
    put_log(platform, number, {3: "c", 4: "d"})
    client = platform.client()
    page = client.get(f"{API}/jobs/digits-1/logs?limit=3").json()
    assert [line["line"] for line in page["lines"]] == ["a", "b", "c"]
    assert (page["after"], page["attempt"], page["latest_attempt"]) == (3, number, number)
    rest = client.get(f"{API}/jobs/digits-1/logs?after=3").json()
    assert [line["line"] for line in rest["lines"]] == ["d"]
    assert client.get(f"{API}/jobs/digits-1/logs?after=4").json()["after"] == 4
    assert client.get(f"{API}/jobs/digits-1/logs?learner=2").json()["lines"] == []


def test_logs_of_what_was_never_launched_are_a_404(platform: Platform) -> None:
    platform.job("digits-0")
    train(platform)
    client = platform.client()
    for query, words in {
        "digits-0/logs": "has not launched train",
        "digits-1/logs?role=export": "has not launched export",
        "digits-1/logs?learner=3": "has no learner 3 in train; it has 2",
        "digits-1/logs?attempt=9": "has no attempt 9 of train",
    }.items():
        answer = client.get(f"{API}/jobs/{query}")
        assert answer.status_code == 404
        assert words in answer.json()["error"]["message"]


# --- pages ---


def test_the_page_of_jobs_leads_to_each_job_and_escapes_what_others_wrote(platform: Platform) -> None:
    number = train(platform)
    platform.ledger.jobs.move("digits-1", State.PROCESSING, "<script>alert(1)</script>")
    put_log(platform, number, {1: "</pre><script>alert(2)</script>"})
    platform.tracking.runs["run1"] = {"loss<b>": [(1, 1.0, 0.5)]}
    client = platform.client()
    jobs, job = client.get("/updraft/jobs"), client.get("/updraft/jobs/digits-1")
    assert 'href="/updraft/jobs/digits-1"' in jobs.text
    assert "30/100" in jobs.text
    for page in (jobs, job):
        assert page.status_code == 200
        assert "<script>" not in page.text
        assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert "&lt;script&gt;alert(2)" in job.text
    assert "loss&lt;b&gt;" in job.text
    assert '<body data-live="yes">' in job.text


def test_a_page_says_which_part_is_away(platform: Platform) -> None:
    train(platform)
    platform.tracking.down = True
    page = platform.client().get("/updraft/jobs/digits-1")
    assert page.status_code == 200
    assert "MLflow at http://mlflow does not answer" in page.text


def test_the_page_without_jobs_says_how_to_begin(platform: Platform) -> None:
    assert "updraft submit" in platform.client().get("/updraft/jobs").text


def test_the_manifest_is_for_those_who_may_see_the_job(two_tenants: Platform) -> None:
    two_tenants.job(tenant="vision", params={"lr": 0.1})
    found = two_tenants.client("ada:vision").get(f"{API}/jobs/digits-1/manifest")
    assert (found.status_code, found.json()["manifest"]["params"]) == (200, {"lr": 0.1})
    assert two_tenants.client("eve:speech").get(f"{API}/jobs/digits-1/manifest").status_code == 404


def test_a_list_of_jobs_reads_no_manifests(platform: Platform) -> None:
    """200 of a megabyte each took a viewer's request 2.4 s and 209 MB, 1,000 five times as much."""
    manifest = {**MANIFEST, "annotations": {f"k{n}": "x" * 4_900 for n in range(200)}}
    for number in range(200):
        job_id = f"large-{number}"
        platform.ledger.jobs.record(NewJob(job_id, "default", "large", "train_model", job_id, manifest, "mallory"))
    for part in CLIENTS:  # once per process, and not a request's cost
        import_client(part)
    client = platform.client("reader")
    for path in (f"{API}/jobs?limit=1000", "/updraft/jobs"):
        with bounded(megabytes=30):
            answer = client.get(path)
        assert (answer.status_code, answer.text.count("large-199") > 0) == (200, True)
    assert len(client.get(f"{API}/jobs?limit=1000").json()["jobs"]) == 200
