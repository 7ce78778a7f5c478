"""Approves the certificate requests of nodes, signs theirs and users', and deletes old ones.

It follows kube-controller-manager, but for two rules: a bootstrap token gets certificates only for
nodes that do not exist, and nodes get serving certificates for their address without an
administrator.
"""

import base64
import logging
from collections.abc import Callable, Collection, Iterator
from datetime import datetime, timedelta
from typing import Any

from cryptography import x509

from ....machinery.x509 import CertKeyPair, sign_request
from ....model import names, times
from ....model.node_identity import (
    API_CLIENT_SIGNER,
    CLIENT_SIGNER,
    CSRS,
    SIGNERS,
    USER_PREFIX,
)
from ..authorization.authorizer import Authorizer
from ..authorization.rules import Attributes
from ..builtin import node_certificates
from ..builtin.certificate_requests import read_of_user
from ..builtin.node_certificates import NodeRequest
from ..current_time import current_time, now
from ..errors.status import StatusError
from ..http.auth import User
from ..storage.resource_store import ResourceStore
from ..storage.stored_objects import DELETED, StoredObject, WatchEvent
from ..verbs.options import DeleteOptions
from .base import Controller, ControllerContext, internal_request

log = logging.getLogger(__name__)

Json = dict[str, Any]

VALIDITY = timedelta(days=90)
"""Of certificates of nodes, if the request does not ask for less."""

_USER_VALIDITY = timedelta(days=365)
"""Of certificates of users, likewise."""

_REGISTRATION = timedelta(minutes=5)
"""In which a machine that has got its certificate registers its node."""

_KEEP_DECIDED = timedelta(hours=1)
_KEEP_PENDING = timedelta(hours=24)


class CertificateController(Controller):
    """Approves or denies requests of nodes, and signs approved ones of nodes and users.

    The key is the name of a request.
    """

    name = "certificates"

    def __init__(
        self,
        context: ControllerContext,
        authorizer: Authorizer,
        ca: CertKeyPair,
        *,
        reserved: Collection[str],
        is_revoked: Callable[[str], bool],
    ) -> None:
        """Sign with *ca*. Addresses of the API server, in *reserved*, no node gets.

        *is_revoked* takes the name of a node's user.
        """
        super().__init__(context)
        self._is_revoked = is_revoked
        self._authorizer = authorizer
        self._ca = ca
        self._reserved = reserved
        self._requests = context.resource_store(CSRS)
        self.observed = (self._requests,)
        self._nodes = context.resource_store(names.NODES)

    def on_event(self, resource_store: ResourceStore, event: WatchEvent) -> None:
        """Enqueue a request that was created or approved."""
        if event.type != DELETED:
            self.queue.add(event.entry.name)

    def enqueue_all(self) -> None:
        """Enqueue all requests."""
        for entry in self._requests.entries():
            self.queue.add(entry.name)

    async def reconcile(self, key: str) -> float | None:
        """Approve, deny or sign a request; return the seconds until it is deleted."""
        entry = self._requests.latest("", key)
        if entry is None or entry.deleting:
            return None
        request = entry.parse()
        due = _deletion_time(request)
        if current_time() >= due:
            call = internal_request(self._requests.kind, entry.key)
            await self.context.deleter.delete(call, DeleteOptions()).committed()
            return None
        if not _is_finished(request):
            if request["spec"]["signerName"] in SIGNERS:
                await self._handle(entry, request)
            elif request["spec"]["signerName"] == API_CLIENT_SIGNER:
                await self._handle_user(entry, request)
        return (due - current_time()).total_seconds()

    async def _handle(self, entry: StoredObject, request: Json) -> None:
        wanted = node_certificates.read(request)
        if _has(request, "Approved"):
            if isinstance(wanted, str):
                await self._add_condition(entry, "Failed", "SignerValidationFailure", wanted)
            else:
                await self._sign(entry, request, wanted.parsed, VALIDITY)
        elif not isinstance(wanted, str):
            await self._decide(entry, request, wanted)

    async def _handle_user(self, entry: StoredObject, request: Json) -> None:
        """Sign the request of a user, which a client has approved."""
        if not _has(request, "Approved"):
            return
        wanted = read_of_user(request)
        if isinstance(wanted, str):
            await self._add_condition(entry, "Failed", "SignerValidationFailure", wanted)
        else:
            await self._sign(entry, request, wanted, _USER_VALIDITY)

    async def _decide(self, entry: StoredObject, request: Json, wanted: NodeRequest) -> None:
        """Approve a request or deny it; one that an administrator has to decide stays."""
        spec = request["spec"]
        own = node_certificates.is_own(request, wanted.node)
        exists = self._nodes.latest("", wanted.node) is not None
        if spec["signerName"] == CLIENT_SIGNER:
            kind = "selfnodeclient" if own else "nodeclient"
            if not self._is_permitted(spec, kind):
                return
            problem = ""
            if self._is_revoked(f"{USER_PREFIX}{wanted.node}"):
                problem = f"the certificates of node {wanted.node} are revoked: choose another name"
            elif own and not exists:
                problem = f"node {wanted.node} does not exist: it was removed from the cluster"
            elif not own and exists:
                problem = (
                    f"node {wanted.node} exists: choose another name, or delete it before with "
                    f"`kubectl delete node {wanted.node}`"
                )
            elif not own and self._is_taken(entry, wanted):
                problem = f"another machine joins as {wanted.node}: choose another name"
        elif own:
            others = dict(self._addresses_of_others(wanted.node))
            problem = node_certificates.serving_problem(
                wanted, others=others, reserved=self._reserved
            )
        else:
            return
        if problem:
            log.warning("denied certificate", extra={"request": entry.name, "reason": problem})
            await self._add_condition(entry, "Denied", "AutoDenied", problem)
        else:
            text = f"Auto approving the certificate of node {wanted.node}"
            await self._add_condition(entry, "Approved", "AutoApproved", text)

    def _is_permitted(self, spec: Json, kind: str) -> bool:
        user = User(
            name=spec.get("username", ""),
            uid=spec.get("uid", ""),
            groups=tuple(spec.get("groups") or ()),
            extra={key: tuple(values) for key, values in (spec.get("extra") or {}).items()},
        )
        attributes = Attributes("create", CSRS.group, CSRS.plural, kind)
        return self._authorizer.authorize(user, attributes).allowed

    def _is_taken(self, entry: StoredObject, wanted: NodeRequest) -> bool:
        """Whether another key has just got a certificate of a node that has not registered yet."""
        key, earliest = wanted.parsed.public_key(), current_time() - _REGISTRATION
        for each in self._requests.latest_entries():
            other = each.parse()
            if each.name == entry.name or other["spec"]["signerName"] != CLIENT_SIGNER:
                continue
            found = node_certificates.read(other)
            if (
                _has(other, "Approved")
                and times.parse(other["metadata"]["creationTimestamp"]) > earliest
                and not isinstance(found, str)
                and found.node == wanted.node
                and found.parsed.public_key() != key
            ):
                return True
        return False

    def _addresses_of_others(self, node: str) -> Iterator[tuple[str, str]]:
        """Yield each address of another node, with its name."""
        for entry in self._nodes.latest_entries():
            if entry.name != node:
                for each in (entry.shared().get("status") or {}).get("addresses") or ():
                    yield each.get("address", ""), entry.name

    async def _sign(
        self,
        entry: StoredObject,
        request: Json,
        parsed: x509.CertificateSigningRequest,
        longest: timedelta,
    ) -> None:
        spec = request["spec"]
        seconds = spec.get("expirationSeconds")
        validity = longest if seconds is None else min(longest, timedelta(seconds=seconds))
        pem = sign_request(
            self._ca, parsed, usages=spec["usages"], now=current_time(), validity=validity
        )

        def signed(current: Json) -> Json:
            if current["metadata"]["uid"] != entry.uid:
                return current
            certificate = {"certificate": base64.b64encode(pem).decode()}
            return {**current, "status": {**(current.get("status") or {}), **certificate}}

        await self._update(entry, signed)

    async def _add_condition(
        self, entry: StoredObject, kind: str, reason: str, message: str
    ) -> None:
        moment = now()
        condition = {
            "type": kind,
            "status": "True",
            "reason": reason,
            "message": message,
            "lastUpdateTime": moment,
            "lastTransitionTime": moment,
        }

        def with_condition(current: Json) -> Json:
            if current["metadata"]["uid"] != entry.uid or _has(current, "Denied", kind):
                return current
            status = current.get("status") or {}
            conditions = [*(status.get("conditions") or ()), condition]
            return {**current, "status": {**status, "conditions": conditions}}

        await self._update(entry, with_condition)

    async def _update(self, entry: StoredObject, change: Any) -> None:
        try:
            written = self.context.update_unchecked(self._requests.kind, entry.key, change)
        except StatusError as error:
            if error.reason != "NotFound":
                raise
        else:
            await written.committed()


def _has(request: Json, *kinds: str) -> bool:
    conditions = (request.get("status") or {}).get("conditions") or ()
    return any(each.get("type") in kinds for each in conditions)


def _is_finished(request: Json) -> bool:
    return bool((request.get("status") or {}).get("certificate")) or _has(
        request, "Denied", "Failed"
    )


def _deletion_time(request: Json) -> datetime:
    created = times.parse(request["metadata"]["creationTimestamp"])
    decided = _has(request, "Approved", "Denied", "Failed")
    return created + (_KEEP_DECIDED if decided else _KEEP_PENDING)
