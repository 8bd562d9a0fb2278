"""Readiness probes: the node asks them for as long as the program runs, outside of the program's processes."""

from __future__ import annotations

from conformance_helpers import eventually

from updraft.kubernetes.samples import sample_probe


def is_ready(cluster, name):
    pod = cluster.read(name)
    said = {c.type: c.status for c in pod.status.conditions or ()}.get("Ready") == "True"
    (program,) = pod.status.container_statuses or (None,)
    return pod if said and program.ready else None


def unhealthy(cluster, name):
    chosen = f"involvedObject.name={name},reason=Unhealthy"
    return [e.message for e in cluster.core.list_namespaced_event(cluster.namespace, field_selector=chosen).items]


def test_a_program_is_ready_while_its_probe_says_so_and_runs_on_in_any_case(cluster):
    shared = {"name": "shared", "mountPath": "/shared"}
    probe = {
        "exec": {"command": ["/bin/sh", "-c", 'test -e "$FLAG"']},
        "periodSeconds": 1,
        "timeoutSeconds": 5,
        "failureThreshold": 2,
    }
    script = 'sleep 2; : > "$FLAG"; sleep 4; rm "$FLAG"; exec sleep 60'
    base = {"readinessProbe": probe, "volumeMounts": [shared], "env": [{"name": "FLAG", "value": "/shared/flag"}]}
    body = cluster.pod("judged", script, base=base, volumes=[{"name": "shared", "emptyDir": {}}])
    cluster.create(body)
    eventually(lambda: is_ready(cluster, "judged"))
    assert all(message.startswith("Readiness probe failed") for message in unhealthy(cluster, "judged"))
    pod = eventually(lambda: None if is_ready(cluster, "judged") else cluster.read("judged"))
    assert pod.status.phase == "Running"
    assert pod.status.container_statuses[0].started
    assert unhealthy(cluster, "judged")


WITH_GPUS = """
import os, pathlib, time
root = pathlib.Path(os.environ["ROOT"])
(root / "io").mkdir()
tool = root / "bin" / "nvidia-smi"
tool.parent.mkdir()
tool.with_suffix(".part").write_text('#!/bin/sh\\necho noise >&2\\necho "0, 87, 2000, 80000, 301.50"\\n')
tool.with_suffix(".part").chmod(0o755)
tool.with_suffix(".part").rename(tool)
sample = root / "io" / "gpus.csv"
while not sample.exists():
    time.sleep(0.1)
print(sample.read_text(), end="", flush=True)
try:
    os.waitpid(-1, os.WNOHANG)
    print("somebody else's child")
except ChildProcessError:
    print("no child")
"""


def test_gpus_are_sampled_in_the_programs_container_and_it_notices_nothing(cluster):
    """What stands for nvidia-smi lies on the PATH of the container's environment, as NVIDIA's toolkit puts it there."""
    env = [
        {"name": "ROOT", "value": "/updraft"},
        {"name": "PROGRAM", "value": WITH_GPUS},
        {"name": "PATH", "value": "/updraft/bin:/usr/local/bin:/usr/bin:/bin"},
    ]
    job = {"name": "job", "mountPath": "/updraft"}
    base = {"env": env, "volumeMounts": [job], "readinessProbe": sample_probe(1, gpus=True)}
    body = cluster.pod("sampled", 'exec python3 -c "$PROGRAM"', base=base, volumes=[{"name": "job", "emptyDir": {}}])
    cluster.create(body)
    assert cluster.finished("sampled").status.phase == "Succeeded"
    assert cluster.log("sampled").splitlines() == ["0, 87, 2000, 80000, 301.50", "no child"]
    # A kubelet that asks in the moment of the end says "errored", and does no more about it.
    assert [message for message in unhealthy(cluster, "sampled") if message.startswith("Readiness probe failed")] == []


WITH_MEMORY = """
import os, pathlib, time
root = pathlib.Path(os.environ["ROOT"])
held = b"x" * 100_000_000
(root / "io").mkdir()
sample = root / "io" / "memory"
used = 0
for _ in range(100):
    time.sleep(0.2)
    if sample.exists():
        used, reclaimable, limit = sample.read_text().split()
        if int(used) - int(reclaimable) > 100_000_000:
            break
print(100_000_000 < int(used) - int(reclaimable) < 200_000_000, limit, flush=True)
"""


def test_memory_is_that_of_the_container_and_its_limit_the_containers(cluster):
    """A kernel counts it with control groups, the local node by its processes."""
    env = [{"name": "ROOT", "value": "/updraft"}, {"name": "PROGRAM", "value": WITH_MEMORY}]
    job = {"name": "job", "mountPath": "/updraft"}
    base = {
        "env": env,
        "volumeMounts": [job],
        "readinessProbe": sample_probe(1, gpus=False),
        "resources": {"limits": {"memory": "256Mi"}},
    }
    body = cluster.pod("weighed", 'exec python3 -c "$PROGRAM"', base=base, volumes=[{"name": "job", "emptyDir": {}}])
    cluster.create(body)
    assert cluster.finished("weighed").status.phase == "Succeeded"
    assert cluster.log("weighed").splitlines() == [f"True {256 << 20}"]
