"""Who may see what: every route behind a log-in, every job behind its owner."""

from __future__ import annotations

import pytest
from fastapi import HTTPException, Request
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from unit.api.api_fakes import TENANTS, Platform

from updraft.api.access import Caller, Guards, tenant_policy
from updraft.api.app import create_app, platform_app
from updraft.tenants import Tenancy

API = "/updraft/api/v1"
JOB_ROUTES = (
    "",
    "/transitions",
    "/logs",
    "/metrics",
    "/checkpoints",
    "/attempts",
    "/requests",
    "/files",
    "/file?path=model.onnx",
)


def routes(platform: Platform) -> list[tuple[str, str]]:
    from unit.api.api_fakes import guards

    app = create_app(platform.parts, guards(), lambda _c, _t: True)
    found = [(m, r.path) for r in app.routes if isinstance(r, APIRoute) for m in r.methods]
    assert len(found) >= 20
    return found


def test_every_route_refuses_a_caller_without_a_token(platform: Platform) -> None:
    client = platform.client(user=None)
    for method, path in routes(platform):
        filled = path.replace("{job_id}", "x").replace("{path:path}", "x").replace("{name}", "x")
        response = client.request(method, "/updraft" + filled.replace("{sha256}", "0" * 64))
        if filled.startswith("/jobs"):
            assert (response.status_code, response.headers["location"]) == (
                303,
                f"/auth/login?next=/updraft{filled}",
            )
        else:
            assert (method, path, response.status_code) == (method, path, 401)
            assert response.json() == {"error": {"message": "Not authenticated", "fields": []}}


def test_no_route_describes_the_api_without_a_token(platform: Platform) -> None:
    for path in ("/updraft/docs", "/updraft/openapi.json", "/updraft/redoc"):
        assert platform.client(user=None).get(path).status_code == 404
    document = platform.client().get(f"{API}/openapi.json").json()
    assert "/api/v1/jobs/{job_id}" in document["paths"]


def test_a_reader_may_look_but_not_act(platform: Platform) -> None:
    platform.job()
    client = platform.client("reader")
    assert client.get(f"{API}/jobs").status_code == 200
    for method, path in (
        ("POST", "/jobs/digits-1/cancel"),
        ("POST", "/jobs/digits-1/halt"),
        ("POST", "/jobs/digits-1/resume"),
        ("POST", "/jobs/digits-1/priority"),
        ("POST", "/jobs/digits-1/scale"),
        ("POST", "/series/digits/roll-back"),
        ("PUT", "/secrets/hub"),
        ("DELETE", "/secrets/hub"),
        ("PUT", f"/blobs/{'0' * 64}"),
        ("POST", "/trees/missing"),
    ):
        assert client.request(method, API + path, json={}).status_code == 403
    assert platform.ledger.jobs.get("digits-1").cancel_requested_at is None


@pytest.mark.parametrize("tail", JOB_ROUTES)
def test_another_tenants_job_looks_like_one_that_does_not_exist(platform: Platform, tail: str) -> None:
    platform.job("digits-1")
    hidden = platform.client(policy=lambda _caller, _tenant: False)
    theirs = hidden.get(f"{API}/jobs/digits-1{tail}")
    unknown = hidden.get(f"{API}/jobs/digits-2{tail}")
    assert (theirs.status_code, unknown.status_code) == (404, 404)
    assert theirs.text.replace("digits-1", "digits-2") == unknown.text


@pytest.mark.parametrize("verb", ["halt", "resume", "cancel"])
def test_asking_something_of_another_tenants_job_does_nothing(platform: Platform, verb: str) -> None:
    platform.job("digits-1")
    hidden = platform.client(policy=lambda _caller, _tenant: False)
    body = {"changes": {"name": "x"}} if verb == "resume" else None  # not even that the change is wrong is told
    theirs = hidden.post(f"{API}/jobs/digits-1/{verb}", json=body)
    unknown = hidden.post(f"{API}/jobs/digits-2/{verb}", json=body)
    assert (theirs.status_code, unknown.status_code) == (404, 404)
    assert theirs.text.replace("digits-1", "digits-2") == unknown.text
    assert hidden.get("/updraft/jobs/digits-1").status_code == 404
    assert platform.ledger.requests.of_job("digits-1") == []


def test_lists_hold_the_callers_tenants_only(two_tenants: Platform) -> None:
    two_tenants.job("cats-1", tenant="vision")
    two_tenants.job("words-1", tenant="speech")

    def seen(user: str) -> set[str]:
        return {job["id"] for job in two_tenants.client(user).get(f"{API}/jobs").json()["jobs"]}

    assert seen("ada:vision") == {"cats-1"}
    assert seen("bob:vision,speech") == {"cats-1", "words-1"}
    assert seen("eve") == set()


def test_secrets_and_uploads_are_the_tenants_own(two_tenants: Platform) -> None:
    ada, eve = two_tenants.client("ada:vision"), two_tenants.client("eve:speech")
    assert ada.put(f"{API}/secrets/hub?tenant=vision", json={"data": {"token": "t"}}).status_code == 204
    assert eve.get(f"{API}/secrets?tenant=vision").status_code == 404
    assert eve.put(f"{API}/secrets/hub?tenant=vision", json={"data": {"token": "x"}}).status_code == 404
    assert eve.delete(f"{API}/secrets/hub?tenant=vision").status_code == 404
    assert eve.get(f"{API}/secrets?tenant=speech").json() == {"secrets": []}
    assert eve.post(f"{API}/trees/missing?tenant=vision", json={"files": []}).status_code == 404
    assert two_tenants.cluster.secrets == {("vision", "hub"): {"token": "t"}}


def test_one_tenant_is_everybodys_and_several_go_by_team() -> None:
    one, several = tenant_policy(lambda: Tenancy.of("default")), tenant_policy(lambda: Tenancy.of("vision", "speech"))
    assert one(Caller("ada", TENANTS), "default")
    assert not one(Caller("ada", TENANTS), "vision")
    assert several(Caller("ada", TENANTS, frozenset({"vision"})), "vision")
    assert not several(Caller("ada", TENANTS, frozenset({"vision"})), "speech")
    assert not several(Caller("ada", TENANTS), "vision")
    assert not several(Caller("ada", frozenset({"speech"}), frozenset({"vision"})), "vision")  # Airflow's right lacks


def test_a_browsers_cookie_may_look_but_not_act(platform: Platform) -> None:
    """Another page on the same host can make a browser send the cookie along, but no header."""

    def by_cookie(request: Request) -> Caller:
        if "_token" not in request.cookies and "authorization" not in request.headers:
            raise HTTPException(401, "Not authenticated")
        request.state.caller = Caller("ada", TENANTS)
        return request.state.caller  # type: ignore[no-any-return]

    platform.job("digits-1")
    app = create_app(platform.parts, Guards(by_cookie, by_cookie), tenant_policy(lambda: Tenancy.of("default")))
    browser = TestClient(app, cookies={"_token": "t"})
    assert browser.get("/api/v1/jobs").status_code == 200
    assert browser.get("/api/v1/secrets").status_code == 200
    acts = [("POST", "jobs/digits-1/cancel"), ("POST", "jobs/digits-1/halt"), ("PUT", "secrets/hub")]
    for method, path in (*acts, ("DELETE", "secrets/hub")):
        response = browser.request(method, f"/api/v1/{path}", json={"data": {"a": "b"}})
        assert (response.status_code, "bearer header" in response.text) == (403, True)
    assert platform.ledger.jobs.get("digits-1").cancel_requested_at is None
    assert platform.cluster.secrets == {}
    browser.headers["Authorization"] = "Bearer t"
    assert browser.post("/api/v1/jobs/digits-1/cancel").status_code == 202


def test_the_buttons_of_our_own_pages_act_and_no_other_page_can(platform: Platform) -> None:
    """The cookie acts with Airflow's own origin and a header, and only for what the pages have buttons for."""

    def by_cookie(request: Request) -> Caller:
        request.state.caller = Caller("ada", TENANTS)
        return request.state.caller  # type: ignore[no-any-return]

    platform.job("digits-1")
    app = create_app(platform.parts, Guards(by_cookie, by_cookie), tenant_policy(lambda: Tenancy.of("default")))
    browser = TestClient(app, base_url="http://airflow:8080", cookies={"_token": "t"})
    own = {"X-Updraft-Page": "1", "Origin": "http://airflow:8080", "Sec-Fetch-Site": "same-origin"}
    cancel = "/api/v1/jobs/digits-1/cancel"
    refused: tuple[dict[str, str], ...] = (
        {},
        {"X-Updraft-Page": "1"},
        own | {"Origin": "http://airflow:9090"},
        own | {"Origin": "null"},
        own | {"Origin": "http://airflow:8080.evil.example"},
        own | {"Sec-Fetch-Site": "same-site"},
        {name: text for name, text in own.items() if name != "X-Updraft-Page"},
    )
    for headers in refused:
        assert browser.post(cancel, headers=headers).status_code == 403
    assert browser.put("/api/v1/secrets/hub", json={"data": {"a": "b"}}, headers=own).status_code == 403
    assert platform.ledger.requests.of_job("digits-1") == []
    assert browser.post(cancel, headers=own).status_code == 202
    behind_proxy = own | {"Origin": "http://airflow"}  # the address that people use, from the settings
    assert browser.post("/api/v1/jobs/digits-1/cancel", headers=behind_proxy).status_code == 202
    assert [item.by for item in platform.ledger.requests.of_job("digits-1")] == ["ada"]


@pytest.mark.parametrize("path", ["/api/v1/jobs", "/jobs", "/api/v1/health"])
def test_without_a_log_in_of_airflow_every_route_refuses_and_says_why(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """The guards would let everybody in as an administrator."""
    monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS", "true")
    answer = TestClient(platform_app()).get(path)
    assert answer.status_code == 503
    assert "set AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS=false" in answer.json()["error"]["message"]
