"""An API server of others, which returns what it gets."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from aiohttp import web
from support.aiohttp_servers import stop_server
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
_RESOURCES = {
    "kind": "APIResourceList",
    "apiVersion": "v1",
    "groupVersion": f"{GROUP}/{VERSION}",
    "resources": [
        {
            "name": "things", "singularName": "thing", "namespaced": True, "kind": "Thing",
            "verbs": ["get", "list"], "shortNames": ["th"],
        },
        {
            "name": "things/size", "singularName": "", "namespaced": True, "kind": "Scale",
            "group": "autoscaling", "version": "v1", "verbs": ["get"],
        },
    ],
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

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path in _DOCUMENTS:
            return web.json_response(_DOCUMENTS[request.path])
        if not request.path.startswith(API):
            return web.Response(status=404)
        transport = request.transport
        assert transport is not None
        subject = dict(each[0] for each in transport.get_extra_info("peercert")["subject"])
        found = {
            "method": request.method,
            "path": request.raw_path,
            "headers": sorted((key.lower(), value) for key, value in request.headers.items()),
            "body": (await request.read()).decode(),
            "client": subject["commonName"],
        }
        self.requests.append(found)
        if "watch" in request.query:
            stream = web.StreamResponse(headers={"Content-Type": "application/json"})
            await stream.prepare(request)
            await stream.write(b'{"type":"ADDED"}\n')
            self.watches += 1
            try:
                await asyncio.Event().wait()
            finally:
                self.watches -= 1
        return web.json_response(found, status=418, headers={"X-Thing": "1"})


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
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", serving.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        serving.port = runner.addresses[0][1]
        yield serving
    finally:
        await stop_server(runner)
