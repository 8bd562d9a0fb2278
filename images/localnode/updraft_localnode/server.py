"""Define the routes of the API and what each does. `middleware` checks tokens and converts errors. Used by `node`."""

from __future__ import annotations

import asyncio
import random
import secrets
import string
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from updraft_localnode import claims
from updraft_localnode.errors import (
    GROUPS,
    Json,
    StatusError,
    bad_request,
    kubelet_away,
    method_not_allowed,
    no_such_route,
    success,
)
from updraft_localnode.faultlab import FaultLab
from updraft_localnode.faults import parse_fault
from updraft_localnode.http_bodies import DeleteOptions, flag, json_body, log_options, number, page, patched
from updraft_localnode.kubelet import Kubelet
from updraft_localnode.lifecycle import delete_object, disrupt, orphan_dependents
from updraft_localnode.logs import read_log
from updraft_localnode.middleware import ERROR_HANDLERS, ApiMiddleware
from updraft_localnode.rbac import access_review, rules_review
from updraft_localnode.runtime import Runtime
from updraft_localnode.selectors import Selector, parse_selector
from updraft_localnode.store import CLUSTER_SCOPED, KINDS, ResourceStore, api_version, list_object, now_text
from updraft_localnode.streams import WatchStream, log_attempt, log_container, until_disconnected
from updraft_localnode.validation import check_patched_labels, complete

VERSION = "v1.34.4-local"
WRITABLE = ("pods", "services", "secrets")
STATUS_ON_DELETE = ("secrets", *GROUPS)  # a deletion of another resource answers with the object itself
Handler = Callable[[Request], Awaitable[Response]]


@dataclass
class Api:
    """The state on which the routes work."""

    kubelet: Kubelet
    runtime: Runtime
    lab: FaultLab
    token: str = field(repr=False)

    @property
    def store(self) -> ResourceStore:
        return self.kubelet.store

    # --- Reading --------------------------------------------------------------------------------------
    async def get(self, request: Request) -> Response:
        return JSONResponse(self.store.get(*_key(request)))

    async def list_or_watch(self, request: Request) -> Response:
        query, resource = request.query_params, _resource(request)
        selector = parse_selector(query.get("labelSelector"), query.get("fieldSelector"), resource)
        namespace = request.path_params.get("namespace")
        if flag(query, "watch"):
            if resource == "secrets":
                raise method_not_allowed()
            return self._watch(request, resource, namespace, selector)
        found = [_listed(resource, obj) for obj in self.store.items(resource, namespace) if selector.matches(obj)]
        items, token, remaining = page(found, number(query, "limit"), query.get("continue"))
        answer = list_object(resource, items, self.store.version)
        if token:
            answer["metadata"] |= {"continue": token, "remainingItemCount": remaining}
        return JSONResponse(answer)

    def _watch(self, request: Request, resource: str, namespace: str | None, selector: Selector) -> Response:
        query = request.query_params
        version = number(query, "resourceVersion")
        seconds = number(query, "timeoutSeconds") or random.randint(1800, 3600)
        watch = WatchStream(self.store, resource, namespace, selector, bookmarks=flag(query, "allowWatchBookmarks"))
        stream = watch.stream(version, float(seconds), self.lab.state, request)
        return StreamingResponse(stream, media_type="application/json")

    async def log(self, request: Request) -> Response:
        query = request.query_params
        pod = self.store.get("pods", request.path_params["namespace"], request.path_params["name"])
        options = log_options(query)
        container = log_container(pod, query.get("container"))
        if not pod["spec"].get("nodeName"):
            return Response(status_code=204)
        away = self.kubelet.away
        if (lost := away.lost_node_of(pod)) is not None:
            await asyncio.sleep(lost.timeout_seconds)
            raise kubelet_away(pod, container, request.url.query)
        attempt = log_attempt(pod, container, previous=flag(query, "previous"))
        path = self.kubelet.container_folder(pod["metadata"]["uid"], container, attempt) / "log"

        def finished() -> bool:
            return self.runtime.log_is_finished(pod, container)

        stream = until_disconnected(request, read_log(path, options, finished), lambda: away.lost_node_of(pod))
        return StreamingResponse(stream, media_type="text/plain")

    # --- Writing --------------------------------------------------------------------------------------
    async def create(self, request: Request) -> Response:
        resource, namespace = _resource(request), request.path_params.get("namespace", "")
        obj = complete(resource, _named(_in_namespace(await json_body(request), namespace)))
        if namespace and self.store.get("namespaces", "", namespace)["metadata"].get("deletionTimestamp"):
            message = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise StatusError(403, "Forbidden", message)
        if request.query_params.get("dryRun"):
            return JSONResponse(obj, 201)
        return JSONResponse(self.store.create(resource, obj), 201)

    async def replace(self, request: Request) -> Response:
        resource, namespace, name = key = _key(request)
        if resource != "secrets":
            raise method_not_allowed()
        obj = complete(resource, _in_namespace(await json_body(request), namespace))
        if obj["metadata"]["name"] != name:
            raise bad_request(
                f"the name of the object ({obj['metadata']['name']}) does not match the name on the URL ({name})"
            )
        return JSONResponse(self.store.replace(*key, obj))

    async def patch(self, request: Request) -> Response:
        resource, namespace, name = _key(request)
        body = await json_body(request)
        after = patched(
            resource, self.store.get(resource, namespace, name), body, request.headers.get("content-type", "")
        )
        check_patched_labels(after)
        changed = {field: after[field] for field in ("metadata", *(("spec",) if resource == "nodes" else ()))}
        return JSONResponse(self.store.update(resource, namespace, name, lambda new: new.update(changed)))

    async def evict(self, request: Request) -> Response:
        """Return the subresource: a deletion that says who asked for it. There are no disruption budgets to ask
        here."""
        namespace, name = request.path_params["namespace"], request.path_params["name"]
        body = await json_body(request)
        meta = (body.get("metadata") if isinstance(body, dict) else None) or {}
        if meta.get("name") not in (None, "", name):
            raise bad_request(f"name in URL does not match name in Eviction object: {meta['name']}")
        pod = self.store.get("pods", namespace, name)
        given = body.get("deleteOptions") if isinstance(body, dict) else None
        options = DeleteOptions.of(request.query_params, given)
        options.check("pods", pod)
        if not request.query_params.get("dryRun"):
            disrupt(self.store, pod, "EvictionByEvictionAPI", "Eviction API: evicting")
            delete_object(self.store, ("pods", namespace, name), options.grace_seconds)
        done = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
        return JSONResponse(done, 201)

    async def delete(self, request: Request) -> Response:
        key = _key(request)
        options = DeleteOptions.of(request.query_params, await json_body(request))
        obj = self.store.get(*key)
        options.check(key[0], obj)
        if options.orphan:
            orphan_dependents(self.store, obj["metadata"]["uid"])
        deleted = delete_object(self.store, key, options.grace_seconds)
        if key[0] in STATUS_ON_DELETE:
            return JSONResponse(success(key[0], key[2], obj["metadata"]["uid"]))
        return JSONResponse(deleted)

    async def delete_collection(self, request: Request) -> Response:
        query, resource, namespace = request.query_params, _resource(request), request.path_params["namespace"]
        options = DeleteOptions.of(query, await json_body(request))
        selector = parse_selector(query.get("labelSelector"), query.get("fieldSelector"), resource)
        found = [obj for obj in self.store.items(resource, namespace) if selector.matches(obj)]
        for obj in found:
            delete_object(self.store, (resource, namespace, obj["metadata"]["name"]), options.grace_seconds)
        return JSONResponse(list_object(resource, [_listed(resource, obj) for obj in found], self.store.version))

    # --- Claims ---------------------------------------------------------------------------------------
    async def get_claim(self, request: Request) -> Response:
        path = request.path_params
        return JSONResponse(claims.claim(self.kubelet.claims_dir, path["namespace"], path["name"]))

    async def list_claims(self, request: Request) -> Response:
        query, found = request.query_params, claims.claims(self.kubelet.claims_dir, request.path_params["namespace"])
        selector = parse_selector(query.get("labelSelector"), query.get("fieldSelector"), claims.RESOURCE)
        meta, items = {"resourceVersion": str(self.store.version)}, [c for c in found if selector.matches(c)]
        listed = {"kind": "PersistentVolumeClaimList", "apiVersion": "v1", "metadata": meta, "items": items}
        return JSONResponse(listed)

    # --- The fault lab --------------------------------------------------------------------------------
    async def show_faults(self, _: Request) -> Response:
        return JSONResponse(self.lab.show())

    async def add_fault(self, request: Request) -> Response:
        did = await self.lab.apply(parse_fault(await json_body(request)), request.scope["client"])
        self.store.wake()
        return JSONResponse({**self.lab.show(), "did": did})

    async def end_faults(self, _: Request) -> Response:
        await self.lab.clear()
        self.store.wake()
        return JSONResponse(self.lab.show())


def _resource(request: Request) -> str:
    return str(request.path_params.get("resource") or request.scope["state_resource"])


def _key(request: Request) -> tuple[str, str, str]:
    return _resource(request), request.path_params.get("namespace", ""), request.path_params["name"]


def _listed(resource: str, obj: Json) -> Json:
    """List of secrets never carry their content."""
    return {k: v for k, v in obj.items() if k != "data"} if resource == "secrets" else obj


def _in_namespace(body: Any, namespace: str) -> Any:
    if not isinstance(body, dict):
        raise bad_request("the body must be a JSON object")
    meta = body.get("metadata") or {}
    if namespace and meta.get("namespace") not in (None, "", namespace):
        message = "the namespace of the provided object does not match the namespace sent on the request"
        raise bad_request(message)
    return {**body, "metadata": {**meta, **({"namespace": namespace} if namespace else {})}}


def _named(body: Json) -> Json:
    meta = body["metadata"]
    if meta.get("name") or not meta.get("generateName"):
        return body
    suffix = "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(5))
    return {**body, "metadata": {**meta, "name": f"{meta['generateName']}{suffix}"}}


async def _healthy(_: Request) -> Response:
    return PlainTextResponse("ok")


async def _version(_: Request) -> Response:
    answer = {"major": "1", "minor": "34", "gitVersion": VERSION, "platform": "local", "buildDate": now_text()}
    return JSONResponse({**answer, "gitCommit": "", "gitTreeState": "", "goVersion": "", "compiler": ""})


def _of(resource: str, handler: Handler) -> Handler:
    """Bind a handler to a resource, for a route whose path does not name it."""

    async def bound(request: Request) -> Response:
        request.scope["state_resource"] = resource
        return await handler(request)

    return bound


def _namespaced(handler: Handler, allowed: tuple[str, ...]) -> Handler:
    async def checked(request: Request) -> Response:
        resource = request.path_params["resource"]
        if resource not in KINDS or resource in CLUSTER_SCOPED or resource in GROUPS:
            raise no_such_route()
        if resource not in allowed:
            raise method_not_allowed()
        return await handler(request)

    return checked


def _review(answer: Callable[[Any], Json]) -> Handler:
    async def review(request: Request) -> Response:
        return JSONResponse(answer(await json_body(request)), 201)

    return review


def _group_routes(api: Api, resource: str) -> list[tuple[str, str, Handler]]:
    """Return what is stored and shown, and does nothing else here."""
    every, one = f"/apis/{api_version(resource)}", "/namespaces/{namespace}/"
    return [
        (f"{every}/{resource}", "GET", _of(resource, api.list_or_watch)),
        (f"{every}{one}{resource}", "GET", _of(resource, api.list_or_watch)),
        (f"{every}{one}{resource}", "POST", _of(resource, api.create)),
        (f"{every}{one}{resource}", "DELETE", _of(resource, api.delete_collection)),
        (f"{every}{one}{resource}/{{name}}", "GET", _of(resource, api.get)),
        (f"{every}{one}{resource}/{{name}}", "PATCH", _of(resource, api.patch)),
        (f"{every}{one}{resource}/{{name}}", "DELETE", _of(resource, api.delete)),
    ]


def routes(api: Api) -> list[Route]:
    every = tuple(kind for kind in KINDS if kind not in CLUSTER_SCOPED and kind not in GROUPS)
    base, one = "/api/v1/namespaces/{namespace}/{resource}", "/api/v1/namespaces/{namespace}/{resource}/{name}"
    table: list[tuple[str, str, Handler]] = [
        *((path, "GET", _healthy) for path in ("/healthz", "/livez", "/readyz")),
        *((path, "GET", _version) for path in ("/version", "/version/")),
        ("/faults", "GET", api.show_faults),
        ("/faults", "POST", api.add_fault),
        ("/faults", "DELETE", api.end_faults),
        ("/api/v1/nodes", "GET", _of("nodes", api.list_or_watch)),
        ("/api/v1/nodes/{name}", "GET", _of("nodes", api.get)),
        ("/api/v1/nodes/{name}", "PATCH", _of("nodes", api.patch)),
        ("/api/v1/namespaces", "GET", _of("namespaces", api.list_or_watch)),
        ("/api/v1/namespaces", "POST", _of("namespaces", api.create)),
        ("/api/v1/namespaces/{name}", "GET", _of("namespaces", api.get)),
        ("/api/v1/namespaces/{name}", "PATCH", _of("namespaces", api.patch)),
        ("/api/v1/namespaces/{name}", "DELETE", _of("namespaces", api.delete)),
        *((f"/api/v1/{kind}", "GET", _of(kind, api.list_or_watch)) for kind in every),
        ("/api/v1/namespaces/{namespace}/pods/{name}/log", "GET", api.log),
        ("/api/v1/namespaces/{namespace}/pods/{name}/eviction", "POST", api.evict),
        ("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "POST", _review(access_review)),
        ("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", "POST", _review(rules_review)),
        ("/api/v1/namespaces/{namespace}/persistentvolumeclaims", "GET", api.list_claims),
        ("/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}", "GET", api.get_claim),
        *(route for resource in GROUPS for route in _group_routes(api, resource)),
        (base, "GET", _namespaced(api.list_or_watch, every)),
        (base, "POST", _namespaced(api.create, WRITABLE)),
        (base, "DELETE", _namespaced(api.delete_collection, WRITABLE)),
        (one, "GET", _namespaced(api.get, every)),
        (one, "PUT", _namespaced(api.replace, WRITABLE)),
        (one, "PATCH", _namespaced(api.patch, WRITABLE)),
        (one, "DELETE", _namespaced(api.delete, WRITABLE)),
    ]
    return [Route(path, handler, methods=[method]) for path, method, handler in table]


def create_app(api: Api) -> Starlette:
    return Starlette(
        routes=routes(api),
        middleware=[Middleware(ApiMiddleware, token=api.token, faults=api.lab.state, wires=api.lab.wires)],
        exception_handlers=ERROR_HANDLERS,
    )
