"""The plugin inside a real api-server application: mounted, behind Airflow's log-in, cheap to load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PROGRAM = """
import json, sys
from airflow.api_fastapi.app import create_app
from airflow.utils.db import initdb
initdb()
from updraft.ledger import Ledger, NewJob, upgrade
url = "sqlite:///" + sys.argv[1] + "/ledger.db"
upgrade(url)
Ledger(url).jobs.record(NewJob("digits-1", "default", "digits", "train_model", "digits-1", {}, "ada"))
app = create_app("core")
from fastapi.testclient import TestClient
passwords = json.load(open(sys.argv[1] + "/passwords.json"))
seen = {}
with TestClient(app, follow_redirects=False) as client:
    jobs, page = "/updraft/api/v1/jobs", "/updraft/jobs"
    seen["anonymous"] = [client.get(jobs).status_code, client.get(page).headers["location"]]
    seen["forged"] = client.get(jobs, headers={"Authorization": "Bearer x"}).status_code
    for user in ("admin", "vera"):
        token = client.post("/auth/token", json={"username": user, "password": passwords[user]}).json()["access_token"]
        bearer = {"Authorization": "Bearer " + token}
        cancel = client.post(jobs + "/digits-1/cancel", headers=bearer).status_code
        seen[user] = [client.get(jobs, headers=bearer).json()["jobs"][0]["id"], cancel]
        client.cookies.set("_token", token)
        seen[user + "'s page"] = "digits-1" in client.get(page).text
        client.cookies.clear()
        if user == "admin":
            admin = bearer
    bearer = admin
    seen["errors"] = client.get("/api/v2/plugins/importErrors", headers=bearer).json()["import_errors"]
    plugins = client.get("/api/v2/plugins", headers=bearer).json()["plugins"]
    seen["plugins"] = [(p["name"], [v["href"] for v in p["external_views"]]) for p in plugins if p["name"] == "updraft"]
print("SEEN" + json.dumps(seen))
"""


def environment(home: Path) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "UPDRAFT"))},
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(REPOSITORY / "plugins"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,vera:viewer",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home / "passwords.json"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__API_AUTH__JWT_SECRET": "x" * 64,
        "UPDRAFT_LEDGER_URL": f"sqlite:///{home}/ledger.db",
        "UPDRAFT_S3_ENDPOINT": "http://127.0.0.1:1",
        "UPDRAFT_MLFLOW_URI": "http://127.0.0.1:1",
        "UPDRAFT_CREDENTIALS_FILE": str(home / "credentials.json"),
    }


@pytest.mark.system
@pytest.mark.timeout(300)
def test_the_routes_are_behind_airflows_log_in(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    seen = json.loads(ran.stdout.rpartition("SEEN")[2])
    assert seen == {
        "anonymous": [401, "/auth/login?next=%2Fupdraft%2Fjobs"],
        "forged": 403,
        "admin": ["digits-1", 202],
        "admin's page": True,
        "vera": ["digits-1", 403],
        "vera's page": True,
        "errors": [],
        "plugins": [["updraft", ["/updraft/jobs"]]],
    }


def test_what_the_plugin_imports_of_ours_is_cheap() -> None:
    code = (
        "import sys, updraft.api.lazy\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('fastapi', 'pydantic', 'sqlalchemy', 'mlflow', 'boto3')])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
