"""Record events about pods. Repeated events are counted; events are removed after an hour or beyond a number."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

from updraft_localnode.errors import Json
from updraft_localnode.store import ResourceStore, now_text

KEPT_EVENTS = 2000
KEPT_FOR = timedelta(hours=1)


class EventRecorder:
    def __init__(self, store: ResourceStore, host: str) -> None:
        self._store, self._host = store, host

    def record(
        self,
        pod: Json,
        type_: str,
        reason: str,
        message: str,
        *,
        field_path: str | None = None,
        component: str = "kubelet",
    ) -> None:
        """Add an event, or counts one up that says the same of the same pod."""
        meta = pod["metadata"]
        host = pod["spec"].get("nodeName") or self._host
        involved = {
            **{"kind": "Pod", "apiVersion": "v1", "namespace": meta["namespace"], "name": meta["name"]},
            **{"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]},
            **({"fieldPath": field_path} if field_path else {}),
        }
        name = f"{meta['name'][:200]}.{uuid.uuid5(uuid.UUID(meta['uid']), f'{reason} {field_path} {message}').hex[:16]}"
        if self._store.find("events", meta["namespace"], name) is not None:

            def again(event: Json) -> None:
                event["count"] += 1
                event["lastTimestamp"] = now_text()

            self._store.update("events", meta["namespace"], name, again)
            return
        self._store.create(
            "events",
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": name, "namespace": meta["namespace"]},
                "involvedObject": involved,
                "reason": reason,
                "message": message,
                "type": type_,
                "count": 1,
                "firstTimestamp": now_text(),
                "lastTimestamp": now_text(),
                "source": {"component": component, "host": host},
                "reportingComponent": component,
                "reportingInstance": host,
            },
        )

    def forget_old(self) -> None:
        """Drop what is older than an hour, and the oldest beyond the number that is kept."""
        events = sorted(self._store.items("events"), key=lambda e: (e["lastTimestamp"], e["metadata"]["name"]))
        limit = (datetime.now(UTC) - KEPT_FOR).strftime("%Y-%m-%dT%H:%M:%SZ")
        surplus = len(events) - KEPT_EVENTS
        for i, event in enumerate(events):
            if i < surplus or event["lastTimestamp"] < limit:
                self._store.delete("events", event["metadata"]["namespace"], event["metadata"]["name"])
