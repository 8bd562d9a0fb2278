"""Run one worker per scheduled pod, and tell it what the API has decided about the pod.

A pod on a lost node is in its kubelet's hands: it continues as `away` has it, whatever the API decides in the meantime.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from pathlib import Path

from updraft_localnode import disks
from updraft_localnode.errors import Json, StatusError, bad_request, conflict, not_found
from updraft_localnode.kubelet import SMALL_DISKS, Kubelet
from updraft_localnode.lifecycle import disrupt
from updraft_localnode.podstatus import MAIN, ContainerRecord
from updraft_localnode.processes import kill_leftovers
from updraft_localnode.scheduler import TERMINAL_PHASES
from updraft_localnode.volumes import remove_tree
from updraft_localnode.worker import PodWorker

logger = logging.getLogger(__name__)
RETRY_SECONDS = 5.0


class Runtime:
    def __init__(self, kubelet: Kubelet) -> None:
        self._kubelet = kubelet
        self._workers: dict[str, tuple[PodWorker, asyncio.Task[None]]] = {}
        self._ended = asyncio.Event()
        self._accepts = True
        self._with_folder: set[str] = set()  # uids of pods that have a folder

    async def run(self) -> None:
        """Run for ever. Begins with what an earlier local node left."""
        await asyncio.to_thread(self._remove_unknown_folders)
        while True:
            self._ended.clear()
            seen = self._kubelet.store.version
            self.sync()
            waits = {asyncio.create_task(self._kubelet.store.changed(seen)), asyncio.create_task(self._ended.wait())}
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in waits:
                    task.cancel()

    def sync(self) -> None:
        """Start and stop workers so that they match the pods."""
        away = self._kubelet.away
        pods = {pod["metadata"]["uid"]: pod for pod in self._kubelet.store.items("pods")} | away.pods
        gone: set[str] = set()
        for uid, pod in pods.items():
            if uid in self._workers:
                if pod["metadata"].get("deletionTimestamp"):
                    self._workers[uid][0].request_stop(_grace_left(pod))
                continue
            terminal = pod["status"].get("phase") in TERMINAL_PHASES
            if terminal and pod["metadata"].get("deletionTimestamp"):
                gone |= self._remove(pod)
            elif terminal or not pod["spec"].get("nodeName") or not self._accepts:
                continue
            elif uid in away.pods or away.lost_node_of(pod) is None:
                self._begin(pod)
        for uid, (worker, _) in self._workers.items():
            if uid not in pods:
                worker.request_stop(0)  # the pod was deleted by force
        known = pods.keys() - gone
        for uid in (self._with_folder | gone) - self._workers.keys() - known:
            self._remove_folder(uid)
        self._with_folder = (self._with_folder & self._workers.keys()) | known

    def _remove(self, pod: Json) -> set[str]:
        """Remove a pod that has ended and was to be deleted.

        Return its uid, or nothing while the API cannot reach the pod's node.
        """
        store, away, meta = self._kubelet.store, self._kubelet.away, pod["metadata"]
        if meta["uid"] not in away.pods:
            store.delete("pods", meta["namespace"], meta["name"])
        elif store.by_uid(meta["uid"]) is None:
            away.forget(meta["uid"])
            store.wake()  # no object has changed, but a node may be empty now
        else:
            return set()  # the API waits for a report of a node that it cannot reach
        return {meta["uid"]}

    def running(self, namespace: str, name: str, container: str | None = None) -> ContainerRecord:
        """Return a container that runs, by default the pod's program; also behind a lost node, where the API has
        forgotten the pod. Raises StatusError 400, 404 or 409."""
        uid = self._uid(namespace, name)
        entry = self._workers.get(uid)
        records = entry[0].records if entry is not None else []
        wanted = next((r for r in records if (r.role == MAIN if container is None else r.name == container)), None)
        if entry is not None and wanted is None:
            raise bad_request(f"container {container} is not valid for pod {name}")
        if wanted is None or wanted.process is None or wanted.process.exit is not None:
            raise conflict("pods", name, f"its container {container or 'of the program'} does not run now")
        return wanted

    def living(self) -> list[tuple[str, str, ContainerRecord]]:
        """Return namespace, pod and container of everything that runs."""
        return [
            (worker.namespace, worker.name, record)
            for worker, _ in self._workers.values()
            for record in worker.records
            if record.process is not None and record.process.exit is None
        ]

    def disk_of(self, namespace: str, name: str) -> Path:
        """Return the folder of a pod that runs on a disk of its own. Raises StatusError 404, 409 or 501."""
        uid = self._uid(namespace, name)
        folder = self._kubelet.pod_folder(uid)
        if uid not in self._workers:
            raise conflict("pods", name, "it does not run now")
        if not disks.has_own(folder):
            advice = disks.why_not() or 'post {"kind": "small_disks", "bytes": ...} before it is created'
            raise StatusError(
                501, "NotImplemented", f"pod {name} shares the node's disk, which is not filled: {advice}"
            )
        return folder

    def full_disks(self) -> list[tuple[PodWorker, Path]]:
        folders = [(worker, self._kubelet.pod_folder(uid)) for uid, (worker, _) in self._workers.items()]
        return [(worker, folder) for worker, folder in folders if disks.is_full(folder)]

    def give_disks(self, size_bytes: int | None) -> None:
        """Give each new pod a disk of that size from now on. Raises StatusError 501."""
        if size_bytes is None:
            self._kubelet.store.drop_fact(SMALL_DISKS)
        elif (reason := disks.why_not()) is not None:
            raise StatusError(501, "NotImplemented", reason)
        else:
            self._kubelet.store.set_fact(SMALL_DISKS, str(size_bytes))

    @property
    def kubelet(self) -> Kubelet:
        return self._kubelet

    def _uid(self, namespace: str, name: str) -> str:
        pod = self._kubelet.store.find("pods", namespace, name)
        if pod is not None:
            return str(pod["metadata"]["uid"])
        for uid, unseen in self._kubelet.away.pods.items():
            if (unseen["metadata"]["namespace"], unseen["metadata"]["name"]) == (namespace, name):
                return uid
        raise not_found("pods", name)

    def evict(self, namespace: str, name: str, message: str, grace_seconds: float) -> None:
        """Evict a pod as a node under pressure does: it fails and stays readable. Raises StatusError 404 or 409."""
        pod = self._kubelet.store.get("pods", namespace, name)
        if self._kubelet.away.lost_node_of(pod) is not None:
            raise conflict("pods", name, f"node {pod['spec']['nodeName']} is lost, so its kubelet evicts nothing")
        entry = self._workers.get(pod["metadata"]["uid"])
        self._kubelet.events.record(pod, "Warning", "Evicted", message)
        if pod["status"].get("phase") not in TERMINAL_PHASES:
            disrupt(self._kubelet.store, pod, "TerminationByKubelet", message)
        if entry is not None:
            entry[0].request_stop(grace_seconds, "Evicted", message)
        elif pod["status"].get("phase") not in TERMINAL_PHASES:
            failed = {"phase": "Failed", "reason": "Evicted", "message": message}
            self._kubelet.store.update("pods", namespace, name, lambda new: new["status"].update(failed))

    async def shutdown(self, grace_seconds: float) -> None:
        """End every pod, for good: they become Failed with reason Terminated."""
        self._accepts = False
        message = "Pod was terminated in response to imminent node shutdown."
        for worker, _ in self._workers.values():
            worker.request_stop(grace_seconds, "Terminated", message)
        await asyncio.gather(*(task for _, task in self._workers.values()), return_exceptions=True)

    def log_is_finished(self, pod: Json, container: str) -> bool:
        """Return whether nothing more will be written to the container's log."""
        current = self._kubelet.store.by_uid(pod["metadata"]["uid"])
        if current is None:
            return True
        statuses = current[1]["status"]
        for key in ("containerStatuses", "initContainerStatuses"):
            for status in statuses.get(key) or []:
                if status["name"] == container:
                    return "running" not in status["state"]
        return True

    def _begin(self, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        worker = PodWorker(self._kubelet, pod)
        self._workers[uid] = (worker, asyncio.create_task(self._live(worker), name=f"pod {pod['metadata']['name']}"))
        if pod["metadata"].get("deletionTimestamp"):
            worker.request_stop(_grace_left(pod))

    async def _live(self, worker: PodWorker) -> None:
        try:
            await worker.run()
        except Exception:  # outermost line of a pod's task
            logger.exception("pod %s: its worker failed; another one takes over", worker.uid)
            await asyncio.sleep(RETRY_SECONDS)
        finally:
            del self._workers[worker.uid]
            self._ended.set()

    def _remove_folder(self, uid: str) -> None:
        folder = self._kubelet.pod_folder(uid)
        disks.release(folder)
        asyncio.get_running_loop().run_in_executor(None, remove_tree, folder)

    def _remove_unknown_folders(self) -> None:
        """End and remove pods that were deleted by force while no local node ran: their processes must not continue."""
        uids = [*(pod["metadata"]["uid"] for pod in self._kubelet.store.items("pods")), *self._kubelet.away.pods]
        known = {self._kubelet.pod_folder(uid).name for uid in uids}
        folders = self._kubelet.pods_dir.iterdir() if self._kubelet.pods_dir.exists() else ()
        for folder in folders:
            if folder.name not in known:
                kill_leftovers(self._kubelet.pods_dir.parent, folder.name)
                remove_tree(folder)


def _grace_left(pod: Json) -> float:
    """Return the seconds that a deleted pod has left. Its time is whole seconds, so one is added for rounding."""
    meta = pod["metadata"]
    left = (datetime.fromisoformat(meta["deletionTimestamp"]) - datetime.now(UTC)).total_seconds() + 1
    return float(min(max(left, 0.0), meta["deletionGracePeriodSeconds"]))
