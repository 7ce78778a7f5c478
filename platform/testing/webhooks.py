"""Admission webhooks that a test serves on loopback, with TLS, for as long as it needs them."""

import asyncio
import base64
import copy
import inspect
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import msgspec
from aiohttp import web

from ..kube.client.client import Client
from ..machinery.serving_certificate import ServingCertificate
from ..machinery.x509 import CertificateRequest, create_ca, issue_certificate
from ..model.names import (
    CONFIGMAPS,
    MUTATING_CONFIGURATIONS,
    VALIDATING_CONFIGURATIONS,
    Resource,
)
from .changes import WAIT_SECONDS, Json

Review = str | Json | None
"""``None`` allows the request, a text denies it with this message, and an object, of a mutating
webhook, allows it and replaces the object of the request."""

Reviewer = Callable[[Json], Review | Awaitable[Review]]
"""Called with the ``request`` of each AdmissionReview, which has ``operation``, ``object`` and
``oldObject``."""

_LOOPBACK = "127.0.0.1"
_VALIDITY = timedelta(days=1)
_PROBE_LABEL = "batholith.io/webhook-probe"
_PROBE_INTERVAL = 0.05


class ServedWebhook:
    """A webhook that a test serves."""

    def __init__(self, reviewer: Reviewer, *, mutating: bool) -> None:
        self.name = f"test-{secrets.token_hex(5)}.batholith.io"
        """Of the configuration and of its webhook."""

        self.requests: list[Json] = []
        """The ``request`` of each review so far."""

        self.error: Exception | None = None
        """The first one that the reviewer raised; raised again when the block ends."""

        self._reviewer = reviewer
        self._mutating = mutating
        self._probed = False

    @asynccontextmanager
    async def registered(
        self, client: Client, rules: Sequence[Json], options: Json, namespace: str
    ) -> AsyncIterator[None]:
        """Serve the webhook and register it, until the end of the block.

        Raises:
            ApiError: the server refused the configuration.
            Exception: what the reviewer raised.
        """
        certificate, bundle = _issue_certificate()
        app = web.Application(client_max_size=2**23)
        app.router.add_post("/review", self._review)
        app.router.add_post("/probe", self._probe)
        runner = web.AppRunner(app, shutdown_timeout=1)
        await runner.setup()
        resource = MUTATING_CONFIGURATIONS if self._mutating else VALIDATING_CONFIGURATIONS
        try:
            site = web.TCPSite(runner, _LOOPBACK, 0, ssl_context=certificate.context)
            await site.start()
            url = f"https://{_LOOPBACK}:{runner.addresses[0][1]}"
            webhooks = self._webhooks(url, bundle, rules, options)
            body = {"metadata": {"name": self.name}, "webhooks": webhooks}
            await client.create(resource, body)
            try:
                await self._wait_called(client, namespace)
                yield
            finally:
                await client.delete(resource, self.name)
        finally:
            await runner.cleanup()
        if self.error is not None:
            raise self.error

    def _webhooks(
        self, url: str, bundle: bytes, rules: Sequence[Json], options: Json
    ) -> list[Json]:
        """Return the webhook, and one more that shows when the server has the configuration."""
        encoded = base64.b64encode(bundle).decode()
        common = {"sideEffects": "None", "admissionReviewVersions": ["v1"]}
        own = {
            "name": self.name,
            "clientConfig": {"url": f"{url}/review", "caBundle": encoded},
            "rules": list(rules),
            **common,
            **options,
        }
        probe = {
            "name": f"probe.{self.name}",
            "clientConfig": {"url": f"{url}/probe", "caBundle": encoded},
            "rules": [rule_for(CONFIGMAPS, operations=("CREATE",))],
            "objectSelector": {"matchLabels": {_PROBE_LABEL: self.name}},
            **common,
        }
        return [own, probe]

    async def _wait_called(self, client: Client, namespace: str) -> None:
        """Send dry runs until the server calls the webhooks of the configuration."""
        labels = {_PROBE_LABEL: self.name}
        body = {"metadata": {"name": "webhook-probe", "labels": labels}}
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                await client.create_strictly(
                    CONFIGMAPS, body, namespace=namespace, dry_run=True, view=msgspec.Raw
                )
                if self._probed:
                    return
                await asyncio.sleep(_PROBE_INTERVAL)

    async def _probe(self, request: web.Request) -> web.Response:
        self._probed = True
        return _reply(msgspec.json.decode(await request.read()), {"allowed": True})

    async def _review(self, request: web.Request) -> web.Response:
        body = msgspec.json.decode(await request.read())
        if _is_probe(body):
            return _reply(body, {"allowed": True})
        self.requests.append(body["request"])
        try:
            review = self._reviewer(copy.deepcopy(body["request"]))
            if inspect.isawaitable(review):
                review = await review
            return _reply(body, self._response(body["request"], review))
        except Exception as error:
            self.error = self.error or error
            return web.Response(status=500, text=f"the reviewer raised {error!r}")

    def _response(self, request: Json, review: object) -> Json:
        match review:
            case None:
                return {"allowed": True}
            case str():
                return {"allowed": False, "status": {"message": review}}
            case dict() if self._mutating:
                return {"allowed": True, **_patch(request.get("object") or {}, review)}
            case dict():
                raise TypeError("a validating webhook cannot change objects: use mutating=True")
        raise TypeError(f"a reviewer returns None, a text or an object, not {review!r}")


def rule_for(resource: Resource, *, operations: Sequence[str], subresource: str = "") -> Json:
    """Return the rule of a webhook that reviews requests for *resource*."""
    return {
        "apiGroups": [resource.group],
        "apiVersions": [resource.version],
        "resources": [f"{resource.plural}/{subresource}" if subresource else resource.plural],
        "operations": list(operations),
    }


def _is_probe(review: Json) -> bool:
    obj = review["request"].get("object") or {}
    return _PROBE_LABEL in ((obj.get("metadata") or {}).get("labels") or {})


def _reply(review: Json, response: Json) -> web.Response:
    body = {
        "apiVersion": review["apiVersion"],
        "kind": "AdmissionReview",
        "response": {"uid": review["request"]["uid"], **response},
    }
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")


def _patch(old: Json, new: Json) -> Json:
    """Return the fields of a response that replaces *old* by *new*."""
    operations: list[Json] = [
        {"op": "remove", "path": _pointer(key)} for key in old if key not in new
    ]
    operations += [
        {"op": "add", "path": _pointer(key), "value": value}
        for key, value in new.items()
        if key not in old or old[key] != value
    ]
    if not operations:
        return {}
    encoded = base64.b64encode(msgspec.json.encode(operations)).decode()
    return {"patchType": "JSONPatch", "patch": encoded}


def _pointer(key: str) -> str:
    return "/" + key.replace("~", "~0").replace("/", "~1")


def _issue_certificate() -> tuple[ServingCertificate, bytes]:
    """Return a certificate for loopback, and the CA bundle that verifies it."""
    now = datetime.now(UTC)
    authority = create_ca("batholith-testing", now=now, validity=_VALIDITY)
    request = CertificateRequest(subject="webhook", validity=_VALIDITY, hosts=(_LOOPBACK,))
    leaf = issue_certificate(authority, request, now=now)
    certificate = ServingCertificate()
    certificate.load(leaf.certificate_pem, leaf.key_pem)
    return certificate, authority.certificate_pem


def webhook_options(options: Json, *, namespace: str) -> Json:
    """Return *options*, limited to one namespace if it is named.

    Raises:
        TypeError: an option is none of a webhook.
    """
    known = {
        "failurePolicy",
        "matchConditions",
        "matchPolicy",
        "namespaceSelector",
        "objectSelector",
        "reinvocationPolicy",
        "sideEffects",
        "timeoutSeconds",
    }
    if unknown := sorted(options.keys() - known):
        raise TypeError(f"a webhook has no option {', '.join(unknown)}")
    if not namespace:
        return options
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    return {"namespaceSelector": selector, **options}
