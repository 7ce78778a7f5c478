"""Deletes the Secrets of bootstrap tokens that have expired, as kube-controller-manager does."""

from ....model import bootstrap_tokens, names
from ..current_time import current_time
from ..storage.resource_store import ResourceStore
from ..storage.stored_objects import DELETED, WatchEvent
from ..verbs.options import DeleteOptions
from .base import Controller, ControllerContext, internal_request


class BootstrapTokenController(Controller):
    """Deletes expired tokens; the key is the name of a Secret."""

    name = "bootstrap-tokens"

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._secrets = context.resource_store(names.SECRETS)
        self.observed = (self._secrets,)

    def on_event(self, resource_store: ResourceStore, event: WatchEvent) -> None:
        """Enqueue a token that was written."""
        if event.type != DELETED:
            self._enqueue(*event.entry.key)

    def enqueue_all(self) -> None:
        """Enqueue all tokens."""
        for entry in self._secrets.entries():
            self._enqueue(*entry.key)

    def _enqueue(self, namespace: str, name: str) -> None:
        if namespace == bootstrap_tokens.NAMESPACE and name.startswith(
            bootstrap_tokens.NAME_PREFIX
        ):
            self.queue.add(name)

    async def reconcile(self, key: str) -> float | None:
        """Delete a token, or return the seconds until it expires."""
        entry = self._secrets.latest(bootstrap_tokens.NAMESPACE, key)
        if entry is None or entry.deleting:
            return None
        token = bootstrap_tokens.from_secret(entry.shared())
        if token is None or token.expires_at is None:
            return None
        if not token.is_expired(current_time()):
            return (token.expires_at - current_time()).total_seconds()
        call = internal_request(self._secrets.kind, entry.key)
        await self.context.deleter.delete(call, DeleteOptions()).committed()
        return None
