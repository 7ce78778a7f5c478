"""A webhook over HTTPS whose responses a test decides."""

import base64
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web
from support.aiohttp_servers import stop_server
from support.embedded_apiserver import Server
from support.polling import wait_until_true

from batholith.machinery.x509 import CertificateRequest, create_ca, issue_certificate

Json = dict[str, Any]
Reviewer = Callable[[Json], Json | web.Response | Awaitable[Json | web.Response]]
"""Returns the response to the request of a review, without its uid, or a whole HTTP response."""

API = "/apis/admissionregistration.k8s.io/v1"
MUTATING, VALIDATING = "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"
PROBE = "probe"


def path_of(kind: str, name: str = "") -> str:
    """Where configurations of *kind* are."""
    return f"{API}/{kind.lower()}s{'/' if name else ''}{name}"


def allow(request: Json) -> Json:
    return {"allowed": True}


def deny(request: Json) -> Json:
    return {"allowed": False, "status": {"message": "not today"}}


def patching(*operations: Json) -> Reviewer:
    """Allow, and patch the object."""
    encoded = base64.b64encode(msgspec.json.encode(operations)).decode()

    def respond(request: Json) -> Json:
        return {"allowed": True, "patchType": "JSONPatch", "patch": encoded}

    return respond


def labelling(key: str, value: str) -> Reviewer:
    """Allow, and set a label of an object that has some."""
    path = f"/metadata/labels/{key.replace('/', '~1')}"
    return patching({"op": "add", "path": path, "value": value})


@dataclass
class ReviewServer:
    """Webhooks by the paths of their URLs."""

    url: str = ""
    port: int = 0
    ca: bytes = b""
    certificate: bytes = b""
    """Of the server, which the authority has issued."""

    responses: dict[str, Reviewer] = field(default_factory=dict)
    reviews: list[tuple[str, Json]] = field(default_factory=list)
    """Path and request of each review but those of probes, in order."""

    probes: list[str] = field(default_factory=list)
    """Paths of the reviews of probes."""

    @property
    def bundle(self) -> str:
        return base64.b64encode(self.ca).decode()

    def requests(self, path: str) -> list[Json]:
        return [request for at, request in self.reviews if at == path]

    def hook(self, path: str, response: Reviewer = allow, **spec: Any) -> Json:
        """A webhook at *path* for ConfigMaps, in the namespace `default` and others."""
        self.responses[path] = response
        rule = {
            "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"],
            "operations": ["CREATE", "UPDATE"],
        }  # fmt: skip
        return {
            "name": f"{path}.ex.io",
            "clientConfig": {"url": f"{self.url}/{path}", "caBundle": self.bundle},
            "rules": [rule],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            **spec,
        }

    async def install(
        self, server: Server, kind: str, *hooks: Json, name: str = "hooks.ex.io"
    ) -> Json:
        """Create a configuration, and wait until its first webhook is called."""
        body = {"metadata": {"name": name}, "webhooks": list(hooks)}
        created = await server.create(path_of(kind), body)
        path = hooks[0]["name"].removesuffix(".ex.io")
        seen = self.probes.count(path)

        async def is_called() -> bool:
            probe = {"metadata": {"name": PROBE, "labels": {"call": "yes", "reviewed": "yes"}}}
            where = "/api/v1/namespaces/default/configmaps?dryRun=All"
            await server.request("POST", where, probe)
            return self.probes.count(path) > seen

        await wait_until_true(is_called)
        return created

    async def handle(self, request: web.Request) -> web.Response:
        body = msgspec.json.decode(await request.read())
        path, review = request.path.strip("/"), body["request"]
        if (review.get("object") or {}).get("metadata", {}).get("name") == PROBE:
            self.probes.append(path)
            return self._reply(body, {"allowed": True})
        self.reviews.append((path, review))
        response: Any = self.responses[path](review)
        if not isinstance(response, dict | web.Response):
            response = await response
        return response if isinstance(response, web.Response) else self._reply(body, response)

    def _reply(self, body: Json, response: Json) -> web.Response:
        response = {"uid": body["request"]["uid"], **response}
        reply = {"apiVersion": body["apiVersion"], "kind": body["kind"], "response": response}
        return web.Response(body=msgspec.json.encode(reply), content_type="application/json")


@asynccontextmanager
async def review_server(
    directory: Path, hosts: Sequence[str] = ("127.0.0.1",)
) -> AsyncIterator[ReviewServer]:
    """Webhooks for the length of the block, with a certificate for *hosts*."""
    now, lasts = datetime.now(UTC), timedelta(days=1)
    authority = create_ca("reviews", now=now, validity=lasts)
    request = CertificateRequest(subject="reviews", validity=lasts, hosts=tuple(hosts))
    leaf = issue_certificate(authority, request, now=now)
    pair = directory / "reviews.pem"
    pair.write_bytes(leaf.certificate_pem + leaf.key_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair)
    serving = ReviewServer(ca=authority.certificate_pem, certificate=leaf.certificate_pem)
    app = web.Application()
    app.router.add_post("/{path}", partial(ReviewServer.handle, serving))
    # A connection whose request an API server has given up would be waited for.
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        serving.port = runner.addresses[0][1]
        serving.url = f"https://127.0.0.1:{serving.port}"
        yield serving
    finally:
        await stop_server(runner)
