"""What tests of the pods' network have in common."""

import random
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(sys.argv[3].encode())
http.server.HTTPServer((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
"""
FORBIDDEN = "No route to host"
"""Why a connection fails that a NetworkPolicy forbids."""


def free_host_port() -> int:
    """Return a port on which nothing listens, and that no outgoing connection gets."""
    while True:
        port = random.randrange(20_000, 30_000)
        with suppress(OSError), socket.create_server(("", port)):
            return port


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Whether a container of the pod is ready."""
    return any(each.get("ready") for each in pod["status"].get("containerStatuses", ()))
