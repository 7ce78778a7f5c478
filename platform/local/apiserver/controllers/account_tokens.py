"""Tokens of service accounts in Secrets that clients create for them.

They are those of kube-controller-manager: programs outside of a cluster still use them.
"""

import base64
from collections.abc import Sequence

from ....model import names
from ..builtin.core_objects import (
    ACCOUNT_NAME_ANNOTATION,
    ACCOUNT_UID_ANNOTATION,
    TOKEN_SECRET_TYPE,
)
from ..errors.status import StatusError
from ..http.auth import AUDIENCE
from ..http.requests import Json
from ..service_accounts.tokens import (
    STORED_SECONDS,
    TOKEN_KEY,
    ServiceAccountTokens,
    bound_claims,
)
from ..storage.resource_store import ResourceStore
from ..storage.stored_objects import DELETED, StoredObject, WatchEvent
from ..verbs.options import DeleteOptions
from .base import Controller, ControllerContext, internal_request

_ANNOTATIONS = ACCOUNT_NAME_ANNOTATION, ACCOUNT_UID_ANNOTATION
_NAMESPACE_KEY, _CA_KEY = "namespace", "ca.crt"


class AccountTokenController(Controller):
    """Writes tokens into Secrets, and deletes those without an account; the key is a Secret's."""

    name = "service-account-tokens"

    def __init__(self, context: ControllerContext, tokens: ServiceAccountTokens, ca: bytes) -> None:
        super().__init__(context)
        self._tokens, self._ca = tokens, base64.b64encode(ca).decode()
        self._secrets = context.resource_store(names.SECRETS)
        self._accounts = context.resource_store(names.SERVICEACCOUNTS)
        self.observed = (self._secrets, self._accounts)

    def on_event(self, resource_store: ResourceStore, event: WatchEvent) -> None:
        """Enqueue a Secret that was written, and those of a deleted account."""
        if resource_store is self._secrets and event.type != DELETED:
            self._enqueue([event.entry])
        elif resource_store is self._accounts and event.type == DELETED:
            self._enqueue(self._secrets.ordered(event.entry.namespace))

    def enqueue_all(self) -> None:
        """Enqueue all Secrets with tokens."""
        self._enqueue(self._secrets.ordered())

    def _enqueue(self, entries: Sequence[StoredObject]) -> None:
        for entry in entries:
            if _has_type(entry):
                self.queue.add(f"{entry.namespace}/{entry.name}")

    async def reconcile(self, key: str) -> float | None:
        """Complete one Secret, or delete it."""
        entry = self._secrets.latest(*key.split("/"))
        if entry is None or entry.deleting or not _has_type(entry):
            return None
        account = self._account_of(entry)
        try:
            if account is None:
                call = internal_request(self._secrets.kind, entry.key)
                await self.context.deleter.delete(call, DeleteOptions(uid=entry.uid)).committed()
            else:
                written = self.context.update_unchecked(
                    self._secrets.kind,
                    entry.key,
                    lambda obj: self._completed(entry, obj, account),
                )
                await written.committed()
        except StatusError as error:
            if error.reason not in ("NotFound", "Conflict"):
                raise
        return None

    def _account_of(self, secret: StoredObject) -> StoredObject | None:
        """Return the account that *secret* names, unless it was created again since."""
        annotations = secret.shared()["metadata"].get("annotations") or {}
        name, uid = (annotations.get(key, "") for key in _ANNOTATIONS)
        account = self._accounts.latest(secret.namespace, name)
        return account if account is not None and uid in ("", account.uid) else None

    def _completed(self, entry: StoredObject, obj: Json, account: StoredObject) -> Json:
        """Return *obj*, a version of the Secret *entry*, with what it lacks."""
        metadata, data = obj["metadata"], {**(obj.get("data") or {}), _CA_KEY: self._ca}
        if not data.get(_NAMESPACE_KEY):
            data[_NAMESPACE_KEY] = base64.b64encode(entry.namespace.encode()).decode()
        if not data.get(TOKEN_KEY):
            issued = self._tokens.issue(
                account,
                audiences=[AUDIENCE],
                seconds=STORED_SECONDS,
                bound=bound_claims(account, secret=entry, stored=True),
            )
            data[TOKEN_KEY] = base64.b64encode(issued.token.encode()).decode()
        elif data == obj.get("data"):
            return obj
        own = dict(zip(_ANNOTATIONS, (account.name, account.uid), strict=True))
        annotations = {**(metadata.get("annotations") or {}), **own}
        return {**obj, "metadata": {**metadata, "annotations": annotations}, "data": data}


def _has_type(secret: StoredObject) -> bool:
    """Whether a token is written into *secret*; others, of which there may be many, stay bytes."""
    is_possible = TOKEN_SECRET_TYPE.encode() in secret.data
    return is_possible and secret.shared().get("type") == TOKEN_SECRET_TYPE
