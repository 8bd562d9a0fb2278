"""What the operators stand on, in memory: a cluster, MLflow, what pods leave in the store, and sudden death.

The ledger is a real one. Each outside is reached through a `Watched` proxy, so that a test can end the process after
any call that had its effect.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from folder_store import FolderStore
from memory_store import MemoryStore

from updraft_data.gate import Comparison
from updraft_learner.contract import (
    CHECKPOINT_MARKER,
    COMPARISON_FILE,
    GATE_REPORT_FILE,
    LABEL_LEARNER,
    LABEL_ROLE,
    Keys,
)
from updraft_localnode.selectors import Selector, parse_labels


class SimulatedKill(BaseException):
    """The process is gone: SIGKILL."""


class Blade:
    """Ends the process after its n-th call to the outside; whatever the dying process still tries has no effect."""

    def __init__(self) -> None:
        self.calls = 0
        self.falls_after: int | None = None
        self.down = False
        self.log: list[str] = []
        self.processes = 0
        self.look: Callable[[], Any] | None = None  # what to remember after each call
        self.seen: list[tuple[int, Any]] = []
        self._lock = threading.Lock()

    def around(self, name: str, call: Callable[[], Any]) -> Any:
        if self.down:
            raise SimulatedKill
        result = call()
        with self._lock:
            self.calls += 1
            self.log.append(name)
            if self.look is not None:
                self.seen.append((self.processes, self.look()))
            if self.calls == self.falls_after:
                self.down = True
        if self.down:
            raise SimulatedKill
        return result

    def new_process(self) -> None:
        self.down = False
        self.processes += 1

    @property
    def deaths(self) -> list[int]:
        """After which calls to die to see every death there is. Memory dies with a process: two deaths of the same
        one that leave the same behind are one, so none is needed after a call that changed nothing outside."""
        pairs = zip(self.seen, [None, *self.seen], strict=False)
        return [n for n, (after, before) in enumerate(pairs, 1) if after != before]


class Watched:
    """A proxy whose method calls go through the blade."""

    def __init__(self, target: Any, blade: Blade) -> None:
        self._target, self._blade = target, blade

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if type(value).__module__ == "updraft.ledger.repositories":
            return Watched(value, self._blade)
        if not callable(value):
            return value
        return lambda *args, **kwargs: self._blade.around(name, lambda: value(*args, **kwargs))


# --- cluster ---------------------------------------------------------------------------------------------------------


def api_error(status: int, message: str = "as told") -> Exception:
    from kubernetes.client.exceptions import ApiException

    error = ApiException(status=status, reason="as told")
    error.body = json.dumps({"message": message})
    return error


class Obj:
    """An API object as clients see it: `.metadata.name`, and whole for `sanitize_for_serialization`."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw
        self.data = raw.get("data")
        meta = raw["metadata"]
        owners = [SimpleNamespace(**owner) for owner in meta.get("ownerReferences") or ()]
        self.metadata = SimpleNamespace(name=meta["name"], uid=meta.get("uid"), owner_references=owners)


class FakeCluster:
    """The part of CoreV1Api that the operators call. Pods end when a test says so."""

    def __init__(self, cpus: str = "4") -> None:
        self.objects: dict[str, dict[str, dict[str, Any]]] = {
            kind: {} for kind in ("pod", "service", "secret", "policy", "budget", "claim", "account", "namespace")
        }
        self.created: list[str] = []
        self.cpus, self.gpus = cpus, "0"
        self.node_labels: dict[str, str] = {}
        self.refuse: Callable[[str, str], int | Exception | None] = lambda verb, name: None
        self.api_client = SimpleNamespace(
            sanitize_for_serialization=self._plain, configuration=SimpleNamespace(host="https://10.0.0.2:6443")
        )

    @staticmethod
    def _plain(value: Any) -> Any:
        if isinstance(value, SimpleNamespace):
            return {"items": [item.raw for item in value.items]}
        return value.raw

    def _check(self, verb: str, name: str) -> None:
        if (refusal := self.refuse(verb, name)) is not None:
            raise refusal if isinstance(refusal, Exception) else api_error(refusal)

    def _create(self, kind: str, body: dict[str, Any]) -> Obj:
        name = body["metadata"]["name"]
        self._check(f"create {kind}", name)
        if name in self.objects[kind]:
            raise api_error(409)
        self.created.append(f"{kind} {name}")
        self.objects[kind][name] = copy.deepcopy(body)
        # Its own, whatever others were made before it.
        self.objects[kind][name]["metadata"]["uid"] = f"uid-{kind}-{name}-{self.created.count(f'{kind} {name}')}"
        return Obj(self.objects[kind][name])

    def _list(self, kind: str, selector: str) -> Any:
        self._check(f"list {kind}", selector)
        asked = Selector(parse_labels(selector))
        found = [Obj(raw) for raw in self.objects[kind].values() if asked.matches(raw)]
        return SimpleNamespace(items=found)

    def _delete(self, kind: str, name: str) -> None:
        self._check(f"delete {kind}", name)
        if self.objects[kind].pop(name, None) is None:
            raise api_error(404)
        while self._collect():
            pass

    def _collect(self) -> bool:
        """The garbage collector: what all owners have left goes too."""
        living = {raw["metadata"].get("uid") for kind in self.objects.values() for raw in kind.values()}
        for kind in self.objects.values():
            for name, raw in kind.items():
                owners = {owner["uid"] for owner in raw["metadata"].get("ownerReferences") or ()}
                if owners and owners.isdisjoint(living):
                    del kind[name]
                    return True
        return False

    def read_namespace(self, name: str, **_: Any) -> Obj:
        if name not in self.objects["namespace"]:
            raise api_error(404)
        return Obj(self.objects["namespace"][name])

    def create_namespace(self, body: dict[str, Any], **_: Any) -> Obj:
        return self._create("namespace", body)

    def list_node(self, **_: Any) -> Any:
        self._check("list node", "")
        node = {
            "metadata": {"name": "node-1", "labels": self.node_labels},
            "status": {
                "allocatable": {
                    "cpu": self.cpus,
                    "memory": "16Gi",
                    "pods": "100",
                    "ephemeral-storage": "400Gi",
                    "nvidia.com/gpu": self.gpus,
                },
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
        return SimpleNamespace(items=[Obj(node)])

    def list_pod_for_all_namespaces(self, **_: Any) -> Any:
        """Pods of other workloads: none. As plain JSON."""
        return SimpleNamespace(data=b'{"items": []}')

    def create_namespaced_pod(self, namespace: str, body: dict[str, Any], **_: Any) -> Obj:
        return self._create("pod", body)

    def create_namespaced_service(self, namespace: str, body: dict[str, Any], **_: Any) -> Obj:
        return self._create("service", body)

    def create_namespaced_secret(self, namespace: str, body: dict[str, Any], **_: Any) -> Obj:
        return self._create("secret", body)

    def create_namespaced_network_policy(self, namespace: str, body: dict[str, Any], **_: Any) -> Obj:
        return self._create("policy", body)

    def create_namespaced_pod_disruption_budget(self, namespace: str, body: dict[str, Any], **_: Any) -> Obj:
        return self._create("budget", body)

    def read_namespaced_secret(self, name: str, namespace: str, **_: Any) -> Obj:
        return self._read("secret", name)

    def patch_namespaced_secret(self, name: str, namespace: str, body: dict[str, Any], **_: Any) -> Obj:
        self._check("patch secret", name)
        found = self._read("secret", name)
        found.raw["metadata"].update(copy.deepcopy(body["metadata"]))
        self._collect()
        return found

    def read_namespaced_persistent_volume_claim(self, name: str, namespace: str, **_: Any) -> Obj:
        return self._read("claim", name)

    def read_namespaced_service_account(self, name: str, namespace: str, **_: Any) -> Obj:
        return self._read("account", name)

    def _read(self, kind: str, name: str) -> Obj:
        self._check(f"read {kind}", name)
        if name not in self.objects[kind]:
            raise api_error(404)
        return Obj(self.objects[kind][name])

    def get_code(self, **_: Any) -> Obj:
        return Obj({"metadata": {"name": ""}, "gitVersion": "v1.34.4"})

    def create_self_subject_rules_review(self, body: dict[str, Any], **_: Any) -> Obj:
        self._check("review rules", "")
        everything = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
        return Obj({"metadata": {"name": ""}, "status": {"resourceRules": [everything], "incomplete": False}})

    def get_api_versions(self, **_: Any) -> Obj:
        address = {"clientCIDR": "0.0.0.0/0", "serverAddress": "10.0.0.1:6443"}
        return Obj({"metadata": {"name": ""}, "serverAddressByClientCIDRs": [address]})

    def list_namespaced_pod(self, namespace: str, *, label_selector: str, **_: Any) -> Any:
        return self._list("pod", label_selector)

    def list_namespaced_secret(self, namespace: str, *, label_selector: str, **_: Any) -> Any:
        return self._list("secret", label_selector)

    def delete_namespaced_pod(self, name: str, namespace: str, **_: Any) -> None:
        self._delete("pod", name)

    def delete_namespaced_secret(self, name: str, namespace: str, **_: Any) -> None:
        self._delete("secret", name)

    @property
    def pods(self) -> dict[str, dict[str, Any]]:
        return self.objects["pod"]

    @property
    def left(self) -> list[str]:
        return [name for kind in ("pod", "service", "secret", "policy", "budget") for name in self.objects[kind]]

    def set_status(self, name: str, *, exit_code: int | None = None, phase: str = "", **status: Any) -> None:
        """A pod whose program runs, or has ended with this code."""
        ended = exit_code is not None
        state: dict[str, Any] = {"running": {}}
        if ended:
            reason = "Completed" if exit_code == 0 else "Error"
            state = {"terminated": {"exitCode": exit_code, "reason": reason, "finishedAt": "2026-01-01T00:00:00Z"}}
        done = {"terminated": {"exitCode": 0}}
        self.pods[name]["status"] = {
            "phase": phase or ({0: "Succeeded", None: "Running"}.get(exit_code, "Failed")),
            "initContainerStatuses": [{"name": "updraft-sidecar", "state": done if ended else {"running": {}}}],
            "containerStatuses": [{"name": "base", "state": state}],
            **status,
        }


# --- MLflow ----------------------------------------------------------------------------------------------------------


def _refusal(code: int, message: str) -> Exception:
    from mlflow.exceptions import MlflowException

    return MlflowException(message, error_code=code)


class FakeTrackingServer:
    """The REST calls that the outbox makes, over the same server's memory."""

    def __init__(self, client: Any, run_id: str) -> None:
        self._client, self.run_id = client, run_id

    def post(self, path: str, body: dict[str, Any]) -> Any:
        if path == "runs/log-batch":
            tags = [SimpleNamespace(**tag) for tag in body["tags"]]
            return self._answer(lambda: self._client.log_batch(self.run_id, tags=tags))
        if path == "runs/search":
            assert self.run_id in body["filter"]
            return self._answer(lambda: None, {"runs": self._client.running_nested_runs(body["max_results"])})
        assert path == "runs/update"
        if body["run_id"] in self._client.nested:
            return self._answer(lambda: self._client.nested.update({body["run_id"]: body["status"]}))
        if body["status"] == "RUNNING":
            return self._answer(lambda: self._client.update_run(self.run_id, status="RUNNING"))
        return self._answer(lambda: self._client.set_terminated(self.run_id, status=body["status"]))

    def get(self, path: str, query: dict[str, Any]) -> Any:
        if path == "experiments/search":
            return self._answer(lambda: self._client.search_experiments())
        assert path == "runs/get"
        return self._answer(lambda: self._client.get_run(self.run_id))

    def _answer(self, call: Callable[[], Any], said: dict[str, Any] | None = None) -> Any:
        from mlflow.exceptions import MlflowException

        from updraft_learner.mlflow_rest import Answer, ServerUnavailable

        try:
            run = call()
        except MlflowException as exc:
            if exc.error_code == "RESOURCE_DOES_NOT_EXIST":
                return Answer(404, {"message": str(exc)})
            raise ServerUnavailable(f"MLflow cannot be reached ({exc})", ambiguous=True) from exc
        if run is None:
            return Answer(200, said or {})
        return Answer(200, {"run": {"info": {"status": run.info.status, "experiment_id": "1"}}})


class FakeMlflowClient:
    """MlflowClient's methods that the platform calls, over one server's memory."""

    def __init__(self) -> None:
        self.tracking_uri = "http://mlflow.test"
        self.away = False
        self.experiments: dict[str, str] = {}
        self.runs: dict[str, Any] = {}
        self.nested: dict[str, str] = {}  # status of each nested run of the one job's run
        self.files: dict[tuple[str, str], str] = {}
        self.inputs: dict[str, set[tuple[str, str]]] = {}
        self.models: dict[str, Any] = {}
        self.registered: dict[str, dict[str, str]] = {}  # tags by name
        self.versions: list[Any] = []
        self.aliases: dict[tuple[str, str], str] = {}
        self.alias_moves: list[str] = []
        self.endings: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        value = object.__getattribute__(self, name)
        if callable(value) and object.__getattribute__(self, "away"):
            raise _refusal(1, f"API request to {self.tracking_uri} failed: connection refused")
        return value

    def search_experiments(self) -> None: ...

    def running_nested_runs(self, at_most: int) -> list[dict[str, Any]]:
        running = [run_id for run_id, status in self.nested.items() if status == "RUNNING"]
        return [{"info": {"run_id": run_id}} for run_id in running[:at_most]]

    def get_experiment_by_name(self, name: str) -> Any:
        found = self.experiments.get(name)
        return None if found is None else SimpleNamespace(experiment_id=found, lifecycle_stage="active")

    def create_experiment(self, name: str) -> str:
        if name in self.experiments:
            raise _refusal(3001, "exists")
        self.experiments[name] = str(len(self.experiments) + 1)
        return self.experiments[name]

    def create_run(self, experiment_id: str, *, tags: dict[str, str], run_name: str) -> Any:
        run_id = f"run{len(self.runs) + 1}"
        info = SimpleNamespace(run_id=run_id, experiment_id=experiment_id, status="RUNNING", run_name=run_name)
        data = SimpleNamespace(params={}, tags=dict(tags), metrics={}, to_proto=partial(SimpleNamespace, metrics=[]))
        outputs = SimpleNamespace(model_outputs=[])
        self.runs[run_id] = SimpleNamespace(info=info, data=data, outputs=outputs, inputs=None)
        return copy.deepcopy(self.runs[run_id])

    def get_run(self, run_id: str) -> Any:
        if run_id not in self.runs:
            raise _refusal(3002, f"no run {run_id}")
        return copy.deepcopy(self.runs[run_id])

    def search_runs(self, experiment_ids: list[str], *, filter_string: str, **_: Any) -> list[Any]:
        key, value = _tag(filter_string)
        return [
            copy.deepcopy(run)
            for run in self.runs.values()
            if run.info.experiment_id in experiment_ids and run.data.tags.get(key) == value
        ]

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = (), tags: Any = ()) -> None:
        assert len(params) <= 100
        run = self.runs[run_id]
        for param in params:
            if run.data.params.setdefault(param.key, param.value) != param.value:
                raise _refusal(1000, "params are immutable")
        for tag in tags:
            run.data.tags[tag.key] = tag.value

    def log_text(self, run_id: str, text: str, artifact_file: str) -> None:
        self.files[run_id, artifact_file] = text

    def log_inputs(self, run_id: str, datasets: Any) -> None:
        self.inputs.setdefault(run_id, set()).update((d.dataset.name, d.dataset.digest) for d in datasets)

    def update_run(self, run_id: str, *, status: str) -> None:
        self.runs[run_id].info.status = status

    def set_terminated(self, run_id: str, *, status: str) -> None:
        self.runs[run_id].info.status = status
        self.endings.append(status)

    def create_logged_model(self, experiment_id: str, **fields: Any) -> Any:
        model = SimpleNamespace(
            model_id=f"m-{len(self.models) + 1}", experiment_id=experiment_id, status="PENDING", **fields
        )
        self.models[model.model_id] = model
        return model

    def search_logged_models(self, experiment_ids: list[str], *, filter_string: str) -> list[Any]:
        key, value = _tag(filter_string)
        return [copy.copy(model) for model in self.models.values() if model.tags.get(key) == value]

    def log_model_artifacts(self, model_id: str, local_dir: str) -> None:
        self.models[model_id].files = sorted(p.name for p in Path(local_dir).rglob("*") if p.is_file())

    def finalize_logged_model(self, model_id: str, status: Any) -> None:
        self.models[model_id].status = status

    def delete_logged_model(self, model_id: str) -> None:
        del self.models[model_id]

    def create_registered_model(self, name: str, tags: dict[str, str]) -> None:
        if name in self.registered:
            raise _refusal(3001, "exists")
        self.registered[name] = dict(tags)

    def search_registered_models(self, filter_string: str) -> list[Any]:
        name = filter_string.partition("'")[2].rstrip("'")
        return [SimpleNamespace(name=n, tags=dict(tags)) for n, tags in self.registered.items() if n == name]

    def set_registered_model_tag(self, name: str, key: str, value: str) -> None:
        self.registered[name][key] = value

    def log_outputs(self, run_id: str, models: list[Any]) -> None:
        outputs = self.runs[run_id].outputs.model_outputs
        for model in models:
            assert model.model_id in self.models
            if model.model_id in {known.model_id for known in outputs}:
                raise _refusal(3, "UNIQUE constraint failed: inputs.source_id")
            outputs.append(SimpleNamespace(model_id=model.model_id))

    def create_model_version(self, name: str, **fields: Any) -> Any:
        number = sum(v.name == name for v in self.versions) + 1
        version = SimpleNamespace(
            **{"model_id": None, "tags": {}, **fields}, name=name, version=str(number), tags_set={}
        )
        self.versions.append(version)
        return version

    def search_model_versions(self, filter_string: str) -> list[Any]:
        field, value = filter_string.partition(" = ")[0], filter_string.partition("'")[2].rstrip("'")
        found = [copy.copy(v) for v in self.versions if getattr(v, field) == value]
        for version in found:
            version.model_id = None  # the server leaves it out here
        return found

    def set_registered_model_alias(self, name: str, alias: str, version: str) -> None:
        self.aliases[name, alias] = version
        if alias == "champion":
            self.alias_moves.append(version)

    def delete_registered_model_alias(self, name: str, alias: str) -> None:
        del self.aliases[name, alias]

    def get_registered_model(self, name: str) -> Any:
        aliases = {alias: version for (model, alias), version in self.aliases.items() if model == name}
        return SimpleNamespace(name=name, aliases=aliases)

    def get_model_version_by_alias(self, name: str, alias: str) -> Any:
        number = self.aliases.get((name, alias))
        if number is None:
            raise _refusal(1000 if name in self.registered else 3002, "no such alias")
        return next(v for v in self.versions if (v.name, v.version) == (name, number))

    def set_model_version_tag(self, name: str, version: str, key: str, value: str) -> None:
        next(v for v in self.versions if (v.name, v.version) == (name, version)).tags_set[key] = value


def _tag(filter_string: str) -> tuple[str, str]:
    match = re.fullmatch(r"tags\.`([^`]+)` = '([^']+)'", filter_string)
    assert match, filter_string
    return match[1], match[2]


# --- what pods leave -------------------------------------------------------------------------------------------------


def store_checkpoint(
    store: MemoryStore | FolderStore, job_id: str, name: str, step: int, metrics: dict[str, float], attempt: int = 1
) -> None:
    keys, data = Keys("default"), b"weights"
    store.put_bytes(f"{keys.checkpoint(job_id, name)}/model.pt", data)
    files = {"model.pt": {"size": len(data)}}
    marker = {"files": files, "step": step, "attempt": attempt, "metrics": metrics, "created": 1}
    store.put_bytes(f"{keys.checkpoint(job_id, name)}/{CHECKPOINT_MARKER}", json.dumps(marker).encode())


def store_done(
    store: MemoryStore | FolderStore, job_id: str, role: str, attempt: int, learner: int, **facts: Any
) -> None:
    key = Keys("default").done(job_id, role, attempt, learner)
    store.put_bytes(key, json.dumps({"t": 1.0, "files": 1, **facts}).encode())


def store_comparison(store: MemoryStore | FolderStore, job_id: str, role: str, found: Comparison) -> None:
    prefix = Keys("default").results(job_id, role, 1)
    store.put_bytes(f"{prefix}/{GATE_REPORT_FILE}", b"<p>report</p>")
    store.put_bytes(f"{prefix}/{COMPARISON_FILE}", found.model_dump_json().encode())


def store_export(store: MemoryStore | FolderStore, job_id: str, attempt: int = 1, **changes: Any) -> None:
    prefix = f"{Keys('default').results(job_id, 'export', 1)}/export/"
    files = {
        "model/MLmodel": b"flavors: {onnx: {}, python_function: {loader_module: mlflow.onnx}}\n",
        "model/model.onnx": b"onnx",
        "model/requirements.txt": b"onnxruntime==1.31.1\n",
    }
    for path, data in files.items():
        store.put_bytes(prefix + path, data)
    report = {
        "attempt": attempt,
        "model_class": "Net",
        "formats": {"onnx": {"max_abs_difference": 1e-7}},
        "files": {p: {"sha256": hashlib.sha256(d).hexdigest(), "size": len(d)} for p, d in files.items()},
        **changes,
    }
    store.put_bytes(f"{prefix}export.json", json.dumps(report).encode())


def role_of(pod: dict[str, Any]) -> tuple[str, int, int]:
    """Role, attempt and learner of a pod."""
    labels = pod["metadata"]["labels"]
    return labels[LABEL_ROLE], int(labels["updraft.dev/attempt"]), int(labels[LABEL_LEARNER])


JUDGED: dict[str, Any] = {"result": {"success": True, "evaluated": 1}}


CODE_SHA = "c" * 40  # a commit that no test fetches
UNPACKED = b"unpacked"


def store_prepared(store: Any, job_id: str, attempt: int, judges: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """What a pod of the role `prepare` leaves: trees stay as they are, and are judged; the rest becomes one file."""
    from updraft_learner.trees import Tree, TreeFile

    keys, digest = Keys("default"), hashlib.sha256(UNPACKED).hexdigest()
    made = Tree((TreeFile("file.txt", digest, len(UNPACKED)),))
    store.put_bytes(f"{keys.prefix}/blobs/{digest}", UNPACKED)
    store.put_bytes(f"{keys.prefix}/trees/{made.sha256}.json", made.to_json())
    request = json.loads(store.get_bytes(keys.prepare_request(job_id, attempt)))
    sources = {s["name"]: {"tree": s["tree"] or made.sha256} for s in request["sources"]}
    judged = {s["name"]: {**sources[s["name"]], **judges(s)} for s in request["sources"]}
    document = {"sources": sources, "report": {"judged": judged}, "error": None}
    store.put_bytes(keys.prepared(job_id, attempt), json.dumps(document).encode())
