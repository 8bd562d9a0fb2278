"""A registry that holds no image, and says so as registries do: `python registry.py PORT`.

Answers every manifest with 404 (OCI distribution specification, "Pulling manifests"). It runs on a node's own loopback
address, the only one that containerd asks without TLS.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Empty(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        known = self.path == "/v2/"
        error = {"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}
        body = b"{}" if known else json.dumps({"errors": [error]}).encode()
        self.send_response(200 if known else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Empty).serve_forever()
