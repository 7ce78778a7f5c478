"""A small registry for tests, with the misbehaviours that a client must survive."""

import base64
import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from support.images import ImageFiles

USER, PASSWORD, TOKEN = "ann", "p:w", "the-token"


@dataclass
class RegistryServer:
    """A registry on loopback; what it serves and how may be changed at any time."""

    server: ThreadingHTTPServer
    contents: dict[str, bytes] = field(default_factory=dict)
    """By path, such as ``/v2/app/manifests/1``."""

    authentication: str = ""
    """``basic``, ``bearer``, or none."""

    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """Path and headers (in lower case) of all requests."""

    handle: Callable[["_Handler"], bool] | None = None
    """Handles a request first; returns whether it did."""

    @property
    def port(self) -> int:
        return int(self.server.server_address[1])

    @property
    def host(self) -> str:
        """The registry's name in images."""
        return f"127.0.0.1:{self.port}"

    def add(self, repository: str, tag: str, files: ImageFiles) -> str:
        """Serve an image, and return its name."""
        for key, data in files.blobs.items():
            self.contents[f"/v2/{repository}/blobs/{key}"] = data
        for reference in (tag, files.digest):
            self.contents[f"/v2/{repository}/manifests/{reference}"] = files.manifest_bytes
        return f"{self.host}/{repository}:{tag}"

    def paths(self, text: str = "") -> list[str]:
        """The paths of requests that contain *text*."""
        return [path for path, _ in self.requests if text in path]

    def dockerconfig(self, key: str = "") -> bytes:
        """Credentials as Docker has them."""
        auth = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        return json.dumps({"auths": {key or self.host: {"auth": auth}}}).encode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    registry: RegistryServer

    def log_message(self, *_: Any) -> None:
        return

    def do_GET(self) -> None:
        registry = self.registry
        headers = {key.lower(): value for key, value in self.headers.items()}
        registry.requests.append((self.path, headers))
        if registry.handle is not None and registry.handle(self):
            return
        basic = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        given = headers.get("authorization", "")
        split = urlsplit(self.path)
        if split.path == "/token":
            if given not in ("", f"Basic {basic}"):
                self.send(401)
                return
            scope = parse_qs(split.query)["scope"]
            token = TOKEN if given else "anonymous"
            self.send(200, json.dumps({"token": token, "scope": scope}).encode())
            return
        wanted = {"basic": f"Basic {basic}", "bearer": f"Bearer {TOKEN}"}
        if registry.authentication and given != wanted[registry.authentication]:
            realm = f'Bearer realm="http://{registry.host}/token",service="tests"'
            challenge = 'Basic realm="tests"' if registry.authentication == "basic" else realm
            self.send(401, headers={"WWW-Authenticate": challenge})
            return
        data = registry.contents.get(split.path)
        if data is None:
            self.send(404)
            return
        start = int(headers.get("range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        self.send(206 if start else 200, data[start:])

    def send(
        self,
        status: int,
        data: bytes = b"",
        *,
        length: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send a response; *length* may be a lie."""
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(data) if length is None else length))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def registry_server(context: ssl.SSLContext | None = None) -> Iterator[RegistryServer]:
    """Run a registry in a thread; with a context over TLS."""

    class Handler(_Handler):
        pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    registry = Handler.registry = RegistryServer(server)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
