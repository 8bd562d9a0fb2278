"""The fault lab: make the local node misbehave as a real cluster does. Used by `server` (`/faults`).

A fault of a pod or a node lasts until it is ended, also over a restart of the local node. `clear` ends all faults.
"""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass

from updraft_localnode import disks, faults, processes
from updraft_localnode.connections import Connections
from updraft_localnode.errors import Json, conflict
from updraft_localnode.faultstate import FaultState
from updraft_localnode.nodes import NodePool
from updraft_localnode.processes import ContainerProcess
from updraft_localnode.runtime import Runtime


@dataclass
class FaultLab:
    state: FaultState
    runtime: Runtime
    nodes: NodePool
    wires: Connections

    async def apply(self, fault: faults.AnyFault, caller: tuple[str, int] | None = None) -> Json:
        """Carry the fault out; return what it did. A cut spares the `caller`. Raises StatusError."""
        match fault:
            case faults.Evict():
                self.runtime.evict(fault.namespace, fault.pod, fault.message, fault.grace_seconds)
            case faults.KillContainer() | faults.Oom() | faults.FreezeContainer() | faults.ThawContainer():
                return await self._to_container(fault)
            case faults.LoseNode():
                return self.nodes.lose(
                    fault.node,
                    delete_after_seconds=fault.delete_after_seconds,
                    gone_after_seconds=fault.gone_after_seconds,
                    timeout_seconds=fault.timeout_seconds,
                    replace=fault.replace,
                )
            case faults.FindNode():
                return self.nodes.find(fault.node)
            case faults.Cordon():
                return self.nodes.cordon(fault.node, unschedulable=fault.kind == "cordon")
            case faults.SmallDisks():
                self.runtime.give_disks(fault.bytes)
            case faults.DiskFull():
                disks.fill(self.runtime.disk_of(fault.namespace, fault.pod), fault.left_bytes)
            case faults.DiskFree():
                disks.free(self.runtime.disk_of(fault.namespace, fault.pod))
            case faults.PullFails():
                self.state.set_pulls(fault)
            case faults.ApiErrors():
                self.state.set_errors(fault)
            case faults.Cut():
                self.state.set_cut(fault)
                if fault.how == "close":
                    self.wires.close_all(but=caller)
            case faults.DropWatches():
                self.state.watch_epoch += 1
            case faults.Lag():
                self.state.lag_seconds = fault.seconds
        return {}

    def show(self) -> Json:
        return {
            **self.state.to_json(),
            "frozen": [
                {"namespace": namespace, "pod": pod, "container": record.name}
                for namespace, pod, record in self.runtime.living()
                if record.process is not None and processes.is_frozen(record.process)
            ],
            "lost_nodes": self.nodes.lost(),
            "unseen_pods": self.runtime.kubelet.away.unseen(),
            "cordoned": self.nodes.cordoned(),
            "small_disks_bytes": self.runtime.kubelet.disk_bytes,
            "full_disks": [{"namespace": w.namespace, "pod": w.name} for w, _ in self.runtime.full_disks()],
        }

    async def clear(self) -> None:
        """End everything that lasts."""
        self.state.clear()
        for _, _, record in self.runtime.living():
            if record.process is not None and processes.is_frozen(record.process):
                await asyncio.to_thread(processes.thaw, record.process)
        for _, folder in self.runtime.full_disks():
            disks.free(folder)
        self.runtime.give_disks(None)
        self.nodes.find_all()
        self.nodes.cordon(None, unschedulable=False)

    async def _to_container(
        self, fault: faults.KillContainer | faults.Oom | faults.FreezeContainer | faults.ThawContainer
    ) -> Json:
        record = self.runtime.running(fault.namespace, fault.pod, fault.container)
        process = record.process
        assert process is not None
        did: Json = {"container": record.name, "restart_count": record.restart_count}
        match fault:
            case faults.KillContainer():
                return {**did, "pid": await _signalled(fault, process)}
            case faults.Oom():
                await asyncio.to_thread(processes.kill_out_of_memory, process)
            case faults.FreezeContainer():
                await asyncio.to_thread(processes.freeze, process)
            case faults.ThawContainer():
                await asyncio.to_thread(processes.thaw, process)
        return did


async def _signalled(fault: faults.KillContainer, process: ContainerProcess) -> int:
    try:
        return await asyncio.to_thread(processes.signal_program, process, signal.Signals[fault.signal])
    except ProcessLookupError:
        raise conflict("pods", fault.pod, "its program has just ended") from None
