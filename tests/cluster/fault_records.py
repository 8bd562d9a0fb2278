"""Runs of the fault lab on a real cluster: each test with the marker `fault("kind")` is one, appended to a file.

`--record-faults FILE`, which `make faults-cluster` passes, asks for it. A test that was skipped, or whose set-up
failed, is no run. Registered by conftest; `faults.report` tells the records.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from faults import outcomes
from faults.outcomes import Provenance, RunRecord, ViolationRecord
from kubernetes import client, config
from urllib3.exceptions import HTTPError

LONGEST_TEXT = 600


class FaultRecords:
    """A plugin of pytest."""

    def __init__(self, path: Path, version_of: Callable[[Path], str]) -> None:
        self._path, self._provenance, self._version_of = path, Provenance.of_checkout(), version_of
        self._kubernetes = ""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Function, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        marker = item.get_closest_marker("fault")
        if marker is not None and report.when == "setup" and report.passed:  # its API server runs now, if ever
            self._kubernetes = self._kubernetes or self._version_of(item.funcargs["target"].kubeconfig)
        if marker is not None and report.when == "call" and not report.skipped:
            (kind,) = marker.args
            outcomes.append(self._path, self._record(kind, item.name, call, report))
        return report

    def _record(self, kind: str, test: str, call: pytest.CallInfo[None], report: pytest.TestReport) -> RunRecord:
        said = "" if call.excinfo is None else " ".join(call.excinfo.exconly().split())[:LONGEST_TEXT]
        return RunRecord(
            kind=kind,
            seed=0,
            scale=1,
            outcome="passed" if report.passed else "failed",
            **self._provenance.fields(),
            at=datetime.fromtimestamp(call.start, UTC).isoformat(timespec="seconds"),
            seconds=round(call.duration, 1),
            moments={},
            violations=() if report.passed else (ViolationRecord(kind="failed", job=test, text=said),),
            test=test,
            kubernetes=self._kubernetes,
        )


def version(kubeconfig: Path) -> str:
    """Of the cluster, as its API server says it; empty if it does not answer."""
    with suppress(HTTPError, client.ApiException):
        return str(client.VersionApi(config.new_client_from_config(str(kubeconfig))).get_code().git_version)
    return ""
