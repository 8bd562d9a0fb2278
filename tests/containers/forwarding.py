"""Ports of this machine that lead on to another address: what a site's ingress or load balancer is to its cluster."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

PART_BYTES = 1 << 16


@contextmanager
def forwarded(host: str, to: tuple[str, int]) -> Iterator[int]:
    """A port at the address `host`; what connects there is connected with `to`."""

    class Connection(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection(to) as onward:
                back = threading.Thread(target=_copy, args=(onward, self.request), daemon=True)
                back.start()
                _copy(self.request, onward)
                back.join()

    with _Server((host, 0), Connection) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True  # a watch would keep them for minutes


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while part := source.recv(PART_BYTES):
            sink.sendall(part)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
