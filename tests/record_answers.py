"""Ask a real API server the questions of `conformance_answers`, and keep the answers with its version and the date.

    UPDRAFT_TEST_KUBECONFIG=.updraft/cluster/kubeconfig python tests/record_answers.py

The local node is compared with them in every ordinary test run.
"""

from __future__ import annotations

import datetime
import json
import sys
import uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "cluster"))

from conformance_answers import QUESTIONS, server_of
from conformance_helpers import eventually
from kubecluster.target import KUBECONFIG_VARIABLE, named_target
from kubernetes import config

TARGET = Path(__file__).parent / "conformance" / "recorded" / "answers.json"


def main() -> int:
    named = named_target()
    if named is None:
        print(f"Set {KUBECONFIG_VARIABLE} to the kubeconfig of a real cluster; `make cluster` starts one.")
        return 2
    if named.own is not None:
        named.own.load_python_image()
    api_client = config.new_client_from_config(str(named.kubeconfig))
    namespace = f"recorded-{uuid.uuid4().hex[:8]}"
    server = server_of(api_client, namespace, named.python_image)
    server.ask("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    try:
        eventually(lambda: server.ask("GET", "serviceaccounts").json().get("items"))
        answers = {question.__name__: question(server) for question in QUESTIONS}
        version = server.ask("GET", "/version").json()["gitVersion"]
    finally:
        server.ask("DELETE", f"/api/v1/namespaces/{namespace}")
    recorded = {"kubernetes": version, "date": datetime.date.today().isoformat(), "answers": answers}
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")
    print(f"{TARGET}: {len(answers)} questions to Kubernetes {version}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
