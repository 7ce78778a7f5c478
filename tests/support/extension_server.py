"""An API server of others, which returns what it gets."""

import asyncio
import base64
import gzip
import json
import socket
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from support.api_servers import ServerFactory
from support.embedded_apiserver import Server

from batholith.machinery.x509 import CertificateRequest, create_ca, issue_certificate
from batholith.model.names import API_SERVICES, ENDPOINTSLICES, SERVICES

Json = dict[str, Any]

GROUP, VERSION, SERVICE = "things.ex.io", "v1", "things"
NAME = f"{VERSION}.{GROUP}"
API = f"/apis/{GROUP}/{VERSION}"
THINGS = f"{API}/namespaces/default/things"
_SCHEMA = {"type": "object", "description": "Thing is of another server."}
_RESOURCES: Json = {
    "kind": "APIResourceList",
    "apiVersion": "v1",
    "groupVersion": f"{GROUP}/{VERSION}",
    "resources": [
        {
            "name": "things", "singularName": "thing", "namespaced": True, "kind": "Thing",
            "verbs": ["get", "list", "delete", "deletecollection"], "shortNames": ["th"],
        },
        {
            "name": "things/size", "singularName": "", "namespaced": True, "kind": "Scale",
            "group": "autoscaling", "version": "v1", "verbs": ["get"],
        },
    ],
}  # fmt: skip
_WIDGETS = {
    "name": "widgets", "singularName": "widget", "namespaced": True, "kind": "Widget",
    "verbs": ["get", "list", "watch", "delete"],
}  # fmt: skip
_DOCUMENTS: dict[str, Json] = {
    API: _RESOURCES,
    "/openapi/v3": {"paths": {API[1:]: {"serverRelativeURL": f"/openapi/v3{API}?hash=x"}}},
    f"/openapi/v3{API}": {"openapi": "3.0.0", "components": {"schemas": {"Thing": _SCHEMA}}},
    "/openapi/v2": {
        "swagger": "2.0",
        "info": {"title": "things", "version": "1"},
        "paths": {f"{API}/things": {"get": {"responses": {"200": {"description": "OK"}}}}},
        "definitions": {
            "io.ex.Thing": {
                **_SCHEMA,
                "x-kubernetes-group-version-kind": [
                    {"group": GROUP, "version": VERSION, "kind": "Thing"}
                ],
            }
        },
    },
}


@dataclass
class ExtensionServer:
    """A running server."""

    port: int = 0
    ca: bytes = b""
    requests: list[Json] = field(default_factory=list)
    """The requests below its path, in order."""

    stored: dict[str, int] = field(default_factory=dict)
    """Numbers of objects by namespace; others have none that can be listed."""

    widgets: dict[str, Json] | None = None
    """Metadata of objects by uid, which a garbage collector may delete; ``None``: it has no such
    kind."""

    documents: dict[str, Json] = field(default_factory=dict)
    """More responses by path."""

    watches: int = 0
    """Those that clients have not ended."""

    def api_service(self, **spec: Any) -> Json:
        """The APIService that leads to it."""
        return {
            "metadata": {"name": NAME},
            "spec": {
                "group": GROUP,
                "version": VERSION,
                "groupPriorityMinimum": 2000,
                "versionPriority": 10,
                "service": {"namespace": "default", "name": SERVICE, "port": self.port},
                "caBundle": base64.b64encode(self.ca).decode(),
                **spec,
            },
        }

    async def expose(self, server: Server, servers: ServerFactory) -> None:
        """Create its Service. On the real server, no endpoint may be on loopback."""
        ports = [{"name": "https", "port": self.port}]
        metadata = {"name": SERVICE}
        if servers.name == "real":
            spec: Json = {"type": "ExternalName", "externalName": "localhost", "ports": ports}
            await server.create(SERVICES.path("default"), {"metadata": metadata, "spec": spec})
            return
        await server.create(
            SERVICES.path("default"), {"metadata": metadata, "spec": {"ports": ports}}
        )
        endpoints = {
            "metadata": {**metadata, "labels": {"kubernetes.io/service-name": SERVICE}},
            "addressType": "IPv4",
            "ports": ports,
            "endpoints": [{"addresses": ["127.0.0.1"]}],
        }
        await server.create(ENDPOINTSLICES.path("default"), endpoints)

    async def open_watches(self) -> int:
        return self.watches


class _Handler(BaseHTTPRequestHandler):
    """Handles the one request of a connection, in a thread."""

    server: "_Server"

    def setup(self) -> None:
        context = self.server.context
        self.request = context.wrap_socket(
            self.request, server_side=True, do_handshake_on_connect=False
        )
        try:
            self.server.add(self.request)
            self.request.do_handshake()
            super().setup()
        except BaseException:
            self.server.remove(self.request)
            raise

    def finish(self) -> None:
        try:
            super().finish()
        finally:
            self.server.remove(self.request)

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def _handle(self) -> None:
        serving, path = self.server.serving, urlsplit(self.path).path
        if path == API and serving.widgets is not None:
            self._respond(200, {**_RESOURCES, "resources": [*_RESOURCES["resources"], _WIDGETS]})
            return
        if path in _DOCUMENTS:
            self._respond(200, _DOCUMENTS[path])
            return
        if path in serving.documents:
            serving.requests.append({"path": self.path})
            self._respond(200, serving.documents[path])
            return
        if not path.startswith(API):
            self._respond(404, {})
            return
        subject = dict(each[0] for each in self.request.getpeercert()["subject"])
        body = self.rfile.read(int(self.headers.get("content-length", "0")))
        found = {
            "method": self.command,
            "path": self.path,
            "headers": sorted([key.lower(), value] for key, value in self.headers.items()),
            "body": body.decode(),
            "client": subject["commonName"],
        }
        serving.requests.append(found)
        namespace = path.removeprefix(f"{API}/namespaces/").removesuffix("/things")
        if serving.widgets is not None and "widgets" in path:
            self._widgets(serving.widgets, found["body"])
        elif namespace in serving.stored:
            self._collection(namespace)
        elif self.headers.get("upgrade") == "echo":
            self._echo()
        elif "watch=" in self.path:
            self._watch(serving)
        else:
            self._respond(418, found)

    def do_GET(self) -> None:
        self._handle()

    def do_DELETE(self) -> None:
        self._handle()

    def do_PATCH(self) -> None:
        self._handle()

    def _respond(self, status: int, content: Json) -> None:
        """Respond with JSON, compressed if the client accepts that, as Kubernetes' library does."""
        body = json.dumps(content).encode()
        self.send_response(status)
        if "gzip" in self.headers.get("accept-encoding", ""):
            body = gzip.compress(body)
            self.send_header("content-encoding", "gzip")
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.send_header("X-Thing", "1")
        self.end_headers()
        self.wfile.write(body)

    def _collection(self, namespace: str) -> None:
        """List the objects of a namespace, or delete one of them with each request."""
        stored = self.server.serving.stored
        if self.command == "DELETE":
            stored[namespace] = max(0, stored[namespace] - 1)
        head = {"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata"}
        items = [
            {**head, "metadata": {"name": f"t{number}", "namespace": namespace}}
            for number in range(stored[namespace])
        ]
        kind = {"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList"}
        self._respond(200, {**kind, "metadata": {}, "items": items})

    def _widgets(self, widgets: dict[str, Json], body: str) -> None:
        """List all widgets, in pages of one; delete one, or change its owners, by its uid."""
        if self.command == "DELETE":
            deleted = widgets.pop(json.loads(body)["preconditions"]["uid"], None)
            self._respond(200 if deleted else 409, {})
            return
        if self.command == "PATCH":
            change = json.loads(body)["metadata"]
            found = widgets[change["uid"]]
            if change["resourceVersion"] != found["resourceVersion"]:
                self._respond(409, {})
                return
            found["ownerReferences"] = change["ownerReferences"] or []
            self._respond(200, {})
            return
        query = parse_qs(urlsplit(self.path).query)
        start = int(query.get("continue", ["0"])[0])
        items = [{"metadata": each} for each in widgets.values()]
        metadata = {"continue": str(start + 1)} if start + 1 < len(items) else {}
        self._respond(200, {"metadata": metadata, "items": items[start : start + 1]})

    def _echo(self) -> None:
        """Send back what arrives, until the client has nothing more."""
        self.send_response(101)
        self.send_header("connection", "Upgrade")
        self.send_header("upgrade", "echo")
        self.end_headers()
        while data := self.rfile.read1(65536):
            self.wfile.write(data.upper())

    def _watch(self, serving: ExtensionServer) -> None:
        serving.watches += 1
        try:
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(b'{"type":"ADDED"}\n')
            self.rfile.read(1)  # until the client disconnects
        finally:
            serving.watches -= 1


class _Server(ThreadingHTTPServer):
    """A thread for each connection; each one ends with its connection."""

    daemon_threads = False

    def __init__(self, serving: ExtensionServer, context: ssl.SSLContext) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.serving, self.context = serving, context
        self._lock, self._open, self._stopped = threading.Lock(), set[ssl.SSLSocket](), False

    def add(self, connection: ssl.SSLSocket) -> None:
        with self._lock:
            self._open.add(connection)
            if self._stopped:
                raise ConnectionAbortedError

    def remove(self, connection: ssl.SSLSocket) -> None:
        with self._lock:
            self._open.discard(connection)
            connection.close()

    def handle_error(self, *_: object) -> None:
        """Clients may disconnect at any time."""

    def stop(self) -> None:
        """Accept nothing more, and end all connections."""
        self.shutdown()
        with self._lock:
            self._stopped = True
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self.server_close()


async def condition(server: Server) -> tuple[str, str]:
    """Status and reason of the condition Available; empty if there is none."""
    found = await server.get(API_SERVICES.path("", NAME))
    for each in (found.get("status") or {}).get("conditions") or ():
        return each["status"], each["reason"]
    return "", ""


@asynccontextmanager
async def extension_server(directory: Path, *, client_ca: Path) -> AsyncIterator[ExtensionServer]:
    """A server that requires certificates of *client_ca*."""
    now, lasts = datetime.now(UTC), timedelta(days=1)
    authority = create_ca("things", now=now, validity=lasts)
    hosts = (f"{SERVICE}.default.svc",)
    leaf = issue_certificate(
        authority, CertificateRequest(subject="things", validity=lasts, hosts=hosts), now=now
    )
    pair = directory / "things.pem"
    pair.write_bytes(leaf.certificate_pem + leaf.key_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair)
    context.load_verify_locations(client_ca)
    context.verify_mode = ssl.CERT_REQUIRED
    serving = ExtensionServer(ca=authority.certificate_pem)
    server = _Server(serving, context)
    serving.port = server.server_address[1]
    running = asyncio.create_task(asyncio.to_thread(server.serve_forever))
    try:
        yield serving
    finally:
        await asyncio.to_thread(server.stop)
        await running
