"""Build the sidecar: its threads while the program runs, and the drain after the program's end.

    ingest    metrics file and system metrics -> journal
    collect   metrics in what the program prints or writes -> journal, if the manifest asks for it
    forward   journal -> MLflow
    spool     artifacts -> MLflow
    publish   journal chunks and heartbeat -> object store
    requests  object store -> the program: stop, show your stacks; and whether a newer attempt exists
    alive     the lock of a learner that is resized in place -> its coordinator, if the learner is killed
    adopt     checkpoints that the program writes by itself -> CHECKPOINT_DIR
    uploads   checkpoints, results and log files -> object store
    endpoint  the program's MLflow client -> journal and spool; streamed data -> the program

The program starts once the endpoint is served. The completion marker is written last: if it exists, everything else is
stored. A fenced sidecar stores and sends nothing, and waits until it is ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from updraft_learner import contract
from updraft_learner.backoff import Backoff
from updraft_learner.contract import Keys, LearnerDone, LearnerStatus, PodConfig
from updraft_learner.elastic.alive import report_death
from updraft_learner.mlflow_rest import TrackingServer
from updraft_learner.pod import PodPaths
from updraft_learner.record.disk import POD_DISK, PodDisk
from updraft_learner.record.fenced import Fenced
from updraft_learner.record.files import read_json
from updraft_learner.record.forward import Forwarder
from updraft_learner.record.journal import HELD_BYTES, Journal
from updraft_learner.record.report import Warnings, log
from updraft_learner.record.spool import Spool
from updraft_learner.sidecar.adopted import Adopter
from updraft_learner.sidecar.artifact_uris import ArtifactUris
from updraft_learner.sidecar.checkpoints import CheckpointUploader
from updraft_learner.sidecar.children import ChildRuns
from updraft_learner.sidecar.collect import MetricsCollector
from updraft_learner.sidecar.data_routes import DataRoutes
from updraft_learner.sidecar.endpoint import Artifacts, Endpoint
from updraft_learner.sidecar.fence import Fence, FencedStore
from updraft_learner.sidecar.mirror import Mirror
from updraft_learner.sidecar.models import LoggedModels
from updraft_learner.sidecar.recorder import Recorder
from updraft_learner.sidecar.registry_requests import RegistryRequests
from updraft_learner.sidecar.routes import ARTIFACT_WAIT_SECONDS, Routes
from updraft_learner.sidecar.signals import SignalReader
from updraft_learner.sidecar.stale_uploads import give_up_older
from updraft_learner.sidecar.system import SystemMetrics, first_seen
from updraft_learner.sidecar.tail import MetricsTail
from updraft_learner.store import ObjectStore, StorageError
from updraft_learner.streams.blocks import BlockCache
from updraft_learner.streams.opening import cache_of
from updraft_learner.streams.reader import DataStreams, StreamFile
from updraft_learner.streams.remote import RangeReader
from updraft_learner.trees import megabytes

INGEST_SECONDS = 1.0
PUBLISH_SECONDS = 1.0
ADOPT_SECONDS = 1.0
COLLECT_SECONDS = 1.0
UPLOAD_SECONDS = 2.0
MIRROR_SECONDS = 15.0
STOP_POLL_SECONDS = 3.0
IDLE_HEARTBEAT_SECONDS = 10.0
MLFLOW_FLUSH_SECONDS = 20.0  # at the end, while MLflow does not answer
LAST_TRY_SECONDS = 1.0
ARTIFACT_FLUSH_SECONDS = 120.0
LONGEST_DELAY_SECONDS = 15.0
INSISTING = Backoff(1.0, LONGEST_DELAY_SECONDS)
JOIN_SECONDS = 0.5
LOW_DISK_BYTES = 64 << 20
TRIES = 3


class Sidecar:
    """The sidecar of one learner. Call `start`, then `drain` once; `publish` and each `poll_` method are one round of a
    thread.

    Args:
        endpoint_token: The token that clients of the MLflow endpoint have to send.
        control: The same store with short timeouts, for requests whose caller waits.
        streamed: The files that the program reads over the endpoint, by path.
        results_store: The user's bucket that the results are written to as well, if the manifest names one.
        held_limit_bytes: The limit for journal entries in memory while the disk is full.
        sleep: Waits some seconds between two tries of `drain`.
        clock: Returns monotonic seconds, for how long the program has left its own files alone.
    """

    def __init__(
        self,
        config: PodConfig,
        paths: PodPaths,
        store: ObjectStore,
        server: TrackingServer,
        endpoint_token: str,
        control: ObjectStore | None = None,
        *,
        streamed: Mapping[str, StreamFile] | None = None,
        results_store: ObjectStore | None = None,
        disk: PodDisk = POD_DISK,
        held_limit_bytes: int = HELD_BYTES,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._paths, self._control = config, paths, control or store
        self._endpoint_token = endpoint_token
        self._disk, self._sleep = disk, sleep
        keys = Keys(config.prefix)
        place = (config.job_id, config.role, config.attempt, config.learner)
        self._status_key, self._done_key = keys.status(*place), keys.done(*place)
        self._chunks_key, self._artifacts_key = keys.metrics(*place), keys.artifacts(*place)
        self.requests = SignalReader(config, paths, self._control)
        self.fence = Fence(config, self._control, self._on_fenced)
        self._store = store = FencedStore(store, self.fence)
        server.before_write = self.fence.check_before_sending
        private = paths.private
        private.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._counts_file = private / "counts.json"
        self.warnings = Warnings()
        self.journal = Journal(private / "journal", disk=disk, held_limit_bytes=held_limit_bytes)
        self.recorder = Recorder(self.journal, self.warnings, learner=config.learner, prefixed=not config.in_place)
        self.recorder.restore_counts(read_json(self._counts_file, {}))
        self.tail = MetricsTail(paths.root, self.journal, self.recorder, self.warnings)
        self.collector = MetricsCollector(config, paths, self.journal, self.recorder, self.warnings)
        self.system = SystemMetrics(config, self.recorder, self.warnings, paths.root)
        self.forwarder = Forwarder(
            self.journal, server, self.warnings, private / "forward.json", attempt=config.attempt, disk=disk
        )
        places = ArtifactUris(config.mlflow_run_id, config.mlflow_experiment_id)
        children = ChildRuns(config, server, private / "children.json", disk)
        models = LoggedModels(config, server, places, children, private / "models.json", disk)
        self.spool = Spool(
            private / "spool",
            server,
            self.warnings,
            lambda owner: artifacts.root_of(owner),  # assigned below
            disk=disk,
        )
        models.before_finalising.append(lambda: self.spool.wait_empty(ARTIFACT_WAIT_SECONDS))
        artifacts = Artifacts(places, self.spool, server, models, children)
        registry = RegistryRequests(self.warnings, self._tag_run, carried_out=config.own_model)
        routes = Routes(
            config,
            self.recorder,
            self.forwarder,
            self.spool,
            server,
            models,
            places,
            children=children,
            registry=registry,
        )
        self._stop_inputs, self._stop_outputs = threading.Event(), threading.Event()
        self.streams = self._open_streams(streamed) if streamed else None
        self.endpoint = Endpoint(config.listen, endpoint_token, routes, artifacts, DataRoutes(self.streams))
        self.adopter = Adopter(config, paths, self.warnings, disk=disk, clock=clock)
        self.checkpoints = CheckpointUploader(config, paths, store, self.warnings, disk=disk)
        baseline = read_json(paths.restored_results_file, {})
        results = keys.results(config.job_id, config.role, config.learner)
        self.results = self._mirror(contract.RESULT_DIR, results, baseline, owned=config.restore_own_results)
        self.logs = self._mirror(contract.LOG_DIR, keys.files(*place), {})
        self._results_store = results_store
        # Clean up unfinished uploads of earlier attempts, but not this pod's own: it continues them after a restart.
        self._first_start = not self._counts_file.exists()
        self._must_clean = config.attempt > 1 and self._first_start
        self._phase = "running"
        self._last_status: LearnerStatus | None = None
        self._next_mirror = 0.0
        self._inputs: list[threading.Thread] = []
        self._outputs: list[threading.Thread] = []

    def _open_streams(self, files: Mapping[str, StreamFile]) -> DataStreams:
        reader = RangeReader(self.warnings.add, self._stop_inputs)
        return DataStreams(files, BlockCache(cache_of(self._config, self._paths)), reader)

    def _tag_run(self, tags: dict[str, str]) -> None:
        """Record tags of the platform on the job's run."""
        self.recorder.record([{"t": time.time(), "source": "sidecar", "tags": tags}])

    def start(self) -> None:
        if self._first_start:
            self._attempt("collect", self.collector.begin)
        self.endpoint.start()
        self._inputs = [
            self._loop("ingest", self.poll_inputs, INGEST_SECONDS, self._stop_inputs),
            self._loop("adopt", self.adopter.poll, ADOPT_SECONDS, self._stop_inputs),
            self._loop("uploads", self.poll_uploads, UPLOAD_SECONDS, self._stop_inputs),
            self._loop("requests", self.poll_requests, STOP_POLL_SECONDS, self._stop_inputs),
        ]
        if not self.collector.idle:
            self._inputs.append(self._loop("collect", self.collector.poll, COLLECT_SECONDS, self._stop_inputs))
        self._outputs = [
            threading.Thread(target=self.forwarder.run, args=(self._stop_outputs,), name="forward", daemon=True),
            threading.Thread(target=self.spool.run, args=(self._stop_outputs,), name="spool", daemon=True),
            self._loop("publish", self.publish, PUBLISH_SECONDS, self._stop_outputs),
        ]
        for thread in (*self._inputs, *self._outputs):
            thread.start()
        if self._config.in_place:
            threading.Thread(target=self._report_death, name="alive", daemon=True).start()
        log(f"ready: attempt {self._config.attempt} of {self._config.job_id}, learner {self._config.learner}")

    def _report_death(self) -> None:
        """Tell the coordinator if the learner is killed. Ends with the program, so nothing waits for it."""
        stop = lambda: self._stop_inputs.is_set() or self.fence.fenced  # noqa: E731
        report_death(self._paths.root, self._paths.below(contract.ALIVE_FILE), self._endpoint_token, stop)

    def poll_inputs(self) -> None:
        self.tail.poll()
        self.system.poll()

    def poll_uploads(self) -> None:
        if self._must_clean:
            self._must_clean = False
            give_up_older(self._config, self._store)
        self.checkpoints.poll()
        if time.monotonic() >= self._next_mirror:
            self._next_mirror = time.monotonic() + MIRROR_SECONDS
            self.results.poll()
            self.logs.poll()

    def publish(self) -> None:
        """Write one round to the object store: chunks and heartbeat."""
        self.journal.write_held()
        self.journal.roll()
        self.journal.upload(self._store, self._chunks_key)
        self.journal.prune(self.forwarder.position)
        self._heartbeat()

    def poll_requests(self) -> None:
        """Read one round of requests from the object store."""
        self.fence.check()
        self.requests.poll()
        if self.system.wants_first_seen:
            self.system.begin(first_seen(self._config, self._store))

    def drain(self, mlflow_seconds: float = MLFLOW_FLUSH_SECONDS) -> None:
        """Store all that is left, then the completion marker. Waits for the object store without an end."""
        try:
            self._drain(mlflow_seconds)
        except Fenced:
            log("a newer attempt of this job runs; nothing more is stored")
        self.endpoint.stop()

    def _drain(self, mlflow_seconds: float) -> None:
        log("the program has ended; storing what is left")
        self._phase = "storing"
        self._join(self._stop_inputs, self._inputs)
        if self.streams is not None:
            self.streams.stop()
            sent, fetched = megabytes(self.streams.sent_bytes), megabytes(self.streams.fetched_bytes)
            log(f"streamed data: the program read {sent}; {fetched} came from the object store")
        self._insist("system metrics", lambda: self.system.poll(last=True))
        self._insist("metrics file", lambda: self.tail.poll(final=True))
        self._insist("metrics of the output", lambda: self.collector.poll(final=True))
        self._insist("adopted checkpoints", lambda: self.adopter.poll(last=True))
        self._insist("checkpoints", self.checkpoints.poll)
        for name in self.checkpoints.unfinished():
            self.warnings.add(
                f"unfinished {name}", f"checkpoint {name} has no {contract.CHECKPOINT_LOCAL_MARKER}; not stored"
            )
        self._insist("results", lambda: self.results.poll(final=True))
        self._insist("log files", lambda: self.logs.poll(final=True))
        self._write_results()
        if self._config.role == contract.PREPARE_ROLE:
            from updraft_learner.prepare.keeping import keep_trees

            self._insist("trees", lambda: keep_trees(self._config, self._paths, self._store))
        if self._config.role == contract.BUILD_ROLE:
            from updraft_learner.environment.keeping import keep_environment

            self._insist("environment", lambda: keep_environment(self._config, self._paths, self._store))
        self.journal.write_held()
        # MLflow has already been unreachable for `failing_seconds`: wait less, because a next attempt may wait for this
        # end.
        mlflow_seconds = max(mlflow_seconds - self.forwarder.failing_seconds, LAST_TRY_SECONDS)
        while before := self.forwarder.pending:
            self.forwarder.flush(mlflow_seconds, patient=True)
            if self.forwarder.pending >= before:  # MLflow does not answer; the points stay in the record
                break
        if not self.spool.wait_empty(ARTIFACT_FLUSH_SECONDS):
            self.spool.wait_empty(mlflow_seconds, patient=True)
        self._join(self._stop_outputs, self._outputs)
        if self.spool.pending:
            self._insist("artifacts", lambda: self.spool.hand_over(self._store, self._artifacts_key))
        self._insist("metrics", self._upload_record)
        self._phase = "done"
        self._insist("status", lambda: self._put_status(self.status()))
        done = self.done()
        self._insist("completion marker", lambda: self._store.put_bytes(self._done_key, done.to_json().encode()))
        log(f"done: {done.files} files, {done.bytes / 1e6:.1f} MB, {done.metrics_sent} metric points in MLflow")

    def _write_results(self) -> None:
        """Write RESULT_DIR to the user's bucket. A bucket that refuses is a warning: the platform has the results."""
        target = self._config.results_to
        if target is None or self._results_store is None:
            return
        store = FencedStore(self._results_store, self.fence)
        own = "" if self._config.learner == 1 else f"/learner-{self._config.learner}"
        state = self._paths.private / "results-to.json"
        mirror = Mirror(
            self._paths.root, "result", store, f"{target.prefix}{own}", state, self.warnings, disk=self._disk
        )
        name = f"results to {target.source}"
        for failures in range(1, TRIES + 1):
            error = self._attempt(name, lambda: mirror.poll(final=True))
            if error is None:
                log(
                    f"{mirror.files} results, {megabytes(mirror.size_bytes)}, are in s3://{target.bucket}/{target.prefix}"
                )
                return
            if isinstance(error, Fenced):
                raise error
            if failures < TRIES:
                self._sleep(INSISTING.seconds(failures))
        self.warnings.clear(f"thread {name}")
        self.warnings.add(
            name,
            f"the results were not written to {target.source} with secret {target.secret!r}: {error}; "
            "`updraft download` has them",
        )

    def _upload_record(self) -> None:
        self.journal.upload(self._store, self._chunks_key)
        self.journal.upload_rest(self._store, self._chunks_key)

    def _join(self, stop: threading.Event, threads: list[threading.Thread]) -> None:
        """End threads; raises Fenced, without waiting for what they are in, when they have nothing to end."""
        stop.set()
        self.forwarder.wake()
        self.spool.wake()
        for thread in threads:
            while thread.is_alive():
                if self.fence.fenced:
                    raise Fenced
                thread.join(JOIN_SECONDS)
        if self.fence.fenced:
            raise Fenced

    def status(self) -> LearnerStatus:
        waiting = self.checkpoints.pending_bytes + self.results.pending_bytes + self.logs.pending_bytes
        return LearnerStatus(
            t=time.time(),
            phase=self._phase,
            progress=self.recorder.progress(),
            last_metrics=self.recorder.last_metrics(),
            checkpoints=self.checkpoints.shown(),
            quarantined=tuple(self.checkpoints.quarantined),
            pending_bytes=waiting + self.spool.pending_bytes,
            metrics_sent=self.forwarder.sent,
            metrics_pending=self.forwarder.pending,
            warnings=self.warnings.texts(),
            nan=self.recorder.nan,
            bad_lines=self.recorder.bad_lines,
            steps=self.recorder.steps(),
            fenced=self.fence.fenced,
            disk_free_bytes=self._disk.free_bytes(self._paths.root),
            scaling=self.recorder.scaling(),
            training=self.recorder.training(),
        )

    def done(self) -> LearnerDone:
        stored = self.checkpoints.stored()
        return LearnerDone(
            t=time.time(),
            files=sum(entry["files"] for entry in stored) + self.results.files + self.logs.files,
            bytes=sum(entry["bytes"] for entry in stored) + self.results.size_bytes + self.logs.size_bytes,
            metrics_sent=self.forwarder.sent,
            metrics_pending=self.forwarder.pending,
            artifacts_pending=self.spool.pending,
            final_checkpoint=self.checkpoints.final,
            warnings=self.warnings.texts(),
        )

    def _heartbeat(self) -> None:
        self._watch_disk()
        status, last = self.status(), self._last_status
        # Free disk space always changes; it is sent with the next heartbeat.
        same = last is not None and replace(status, t=last.t, disk_free_bytes=last.disk_free_bytes) == last
        due_seconds = IDLE_HEARTBEAT_SECONDS if same else self._config.heartbeat_seconds
        if last is None or not 0 <= status.t - last.t < due_seconds:
            self._put_status(status)

    def _put_status(self, status: LearnerStatus) -> None:
        self._store.put_bytes(self._status_key, status.to_json().encode())
        self._last_status = status
        self._disk.save_json(self._counts_file, self.recorder.counts())

    def _watch_disk(self) -> None:
        held, free_bytes = self.journal.held_entries, self._disk.free_bytes(self._paths.root)
        if held:
            text = f"the pod's disk is full: {held} entries of the record wait in memory"
        elif free_bytes is not None and free_bytes < LOW_DISK_BYTES:
            text = f"the pod's disk has only {megabytes(free_bytes)} free"
        else:
            self.warnings.clear("disk")
            return
        self.warnings.add("disk", f"{text}; remove files, keep fewer checkpoints, or use a node with a larger disk")

    def _on_fenced(self, newest: int) -> None:
        log(f"attempt {newest} of this job runs: attempt {self._config.attempt} stores and sends nothing any more")
        try:
            self.requests.stop("a newer attempt runs")
        except OSError as exc:
            log(f"the program cannot be told: {exc}")

    def _mirror(self, folder: str, prefix: str, baseline: dict[str, list[int]], *, owned: bool = False) -> Mirror:
        name = str(Path(folder).relative_to(contract.ROOT_DIR))
        state_file = self._paths.private / f"{name}.json"
        return Mirror(
            self._paths.root,
            name,
            self._store,
            prefix,
            state_file,
            self.warnings,
            baseline,
            owned=owned,
            disk=self._disk,
        )

    def _loop(
        self, name: str, work: Callable[[], None], every_seconds: float, stop: threading.Event
    ) -> threading.Thread:
        def run() -> None:
            backoff, failures = Backoff(2 * every_seconds, LONGEST_DELAY_SECONDS), 0
            while not stop.is_set() and not self.fence.fenced:
                failures = failures + 1 if self._attempt(name, work) is not None else 0
                stop.wait(backoff.seconds(failures) if failures else every_seconds)

        return threading.Thread(target=run, name=name, daemon=True)

    def _attempt(self, name: str, work: Callable[[], None]) -> Exception | None:
        """Do one round; a failure becomes a warning that stays until a round succeeds."""
        try:
            work()
        except Fenced as exc:
            return exc
        except (StorageError, OSError) as exc:
            self.warnings.add(f"thread {name}", f"{name}: {exc}")
            return exc
        except Exception as exc:  # noqa: BLE001 - outermost line of the loop
            self.warnings.add(f"thread {name}", f"{name}: unexpected {type(exc).__name__}: {exc}")
            return exc
        self.warnings.clear(f"thread {name}")
        return None

    def _insist(self, name: str, work: Callable[[], None]) -> None:
        """Do it until it succeeds; what is not the object store's failure will not pass, and is given up.

        Raises Fenced.
        """
        failures = others = 0
        while (error := self._attempt(name, work)) is not None:
            if isinstance(error, Fenced):
                raise error
            others += not isinstance(error, StorageError)
            if others >= TRIES:
                return
            failures += 1
            self._sleep(INSISTING.seconds(failures))
