"""Fake nodes: what KWOK is told, and the logs of pods that run nowhere."""

from __future__ import annotations

from typing import Any

import yaml
from kubecluster import kwok
from kubecluster.fakelogs import Log, Logs, since, stamp
from kubecluster.stages import END, stages


def named() -> dict[str, dict[str, Any]]:
    return {stage["metadata"]["name"]: stage["spec"] for stage in stages("v1.34.4")}


def test_every_stage_changes_its_status_or_deletes() -> None:
    found = named()
    assert list(found) == ["node-is-ready", "pod-runs", "program-ends", "sidecar-ends", "pod-ends", "pod-goes"]
    for spec in found.values():
        assert spec["next"].keys() in ({"statusTemplate"}, {"delete"})
    assert found["pod-goes"]["next"] == {"delete": True}


def test_pods_end_only_when_they_are_asked_to_and_sidecars_after_the_program() -> None:
    found = named()
    for name in ("program-ends", "pod-ends"):
        keys = {match["key"]: match["operator"] for match in found[name]["selector"]["matchExpressions"]}
        assert keys[f'.metadata.annotations["{END}"]'] == "Exists"
    assert "Succeeded" not in found["program-ends"]["next"]["statusTemplate"]
    assert "Succeeded" in found["sidecar-ends"]["next"]["statusTemplate"]
    assert found["sidecar-ends"]["delay"] == {"durationMilliseconds": 1000}


def test_a_template_is_yaml_once_its_values_are_filled_in() -> None:
    text = named()["node-is-ready"]["next"]["statusTemplate"]
    plain = "\n".join(line for line in text.splitlines() if not line.startswith("{{"))
    filled = plain.replace("{{ NodePort }}", "1").replace("{{", '"').replace("}}", '"')
    filled = filled.replace('" $now | Quote "', "now").replace("| Quote ", "")
    body = yaml.safe_load(filled)
    assert body["capacity"] == body["allocatable"] == {"cpu": "1k", "memory": "1Ti", "pods": "1k"}
    assert body["nodeInfo"]["kubeletVersion"] == "v1.34.4"


def test_only_pods_that_ask_for_it_lie_on_a_fake_node() -> None:
    body = kwok.node("fake-1")
    (taint,) = body["spec"]["taints"]
    assert kwok.SELECTOR.items() <= body["metadata"]["labels"].items()
    assert {**taint, "operator": "Equal"} == kwok.TOLERATION


def test_times_have_nanoseconds_and_are_asked_for_by_the_second() -> None:
    assert stamp(1_700_000_000_000_000_001) == "2023-11-14T22:13:20.000000001Z"
    lines = [f"{stamp(second * 10**9)} line\n" for second in (1, 2, 3)]
    assert since(lines, "") == lines
    assert since(lines, "1970-01-01T00:00:02Z") == lines[1:]


def pod(**state: Any) -> dict[str, Any]:
    statuses = [{"name": "base", "state": state}] if state else []
    return {"metadata": {"namespace": "ns", "name": "p"}, "status": {"containerStatuses": statuses}}


def test_a_log_begins_and_ends_with_its_program() -> None:
    logs = Logs(60)
    logs.see("ADDED", pod())
    assert logs.of("ns", "p") is None
    logs.see("MODIFIED", pod(running={}))
    logs.see("MODIFIED", pod(terminated={}))
    logs.see("MODIFIED", pod(terminated={}))
    log = logs.of("ns", "p")
    assert log is not None
    assert [line.partition(" ")[2] for line in log.lines] == ["the program has started\n", "the program has ended\n"]
    assert log.ended
    logs.see("DELETED", pod())
    assert logs.of("ns", "p") is None


def test_a_log_keeps_its_last_lines() -> None:
    log = Log()
    for number in range(300):
        log.print(str(number))
    assert len(log.lines) == 200
    assert log.lines[-1].endswith(" 299\n")
