"""What a scheduler keeps over restarts: a ConfigMap, one key for each entry.

Only the leader writes it, at most once a minute, and when it ends. It is a cache of what the
scheduler has learned: without it, or with an entry that is malformed, the scheduler starts without
that.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ...kube.client.client import Client
from ...kube.errors import ApiError, ConnectionLostError, NotFoundError, NotSentError
from ...machinery.clock import Clock
from ...model.base import ApiStruct
from ...model.names import CONFIGMAPS

log = logging.getLogger(__name__)

WRITE_INTERVAL = 60.0
MAX_CHARACTERS = 900_000
"""Characters of all entries; the API server stores objects of up to 1 MiB or more."""

_FINAL_WRITE_TIMEOUT = 2.0
_FAILURES = (ApiError, ConnectionLostError, NotSentError)


class KeptEntry(Protocol):
    """An entry of the ConfigMap."""

    @property
    def version(self) -> int:
        """Grows when there is something new to be kept."""
        ...

    def encode(self) -> str:
        """Return what is to be kept, as text of a bounded size."""
        ...

    def restore(self, text: str) -> None:
        """Continue from what :meth:`encode` has returned before the restart.

        Raises:
            ValueError: the text is malformed.
        """
        ...


class _ConfigMap(ApiStruct, frozen=True):
    data: dict[str, str] = {}


@dataclass(slots=True)
class KeptState:
    """Reads and writes the ConfigMap *name* in *namespace*, with *entries* by key."""

    client: Client
    clock: Clock
    namespace: str
    name: str
    entries: Mapping[str, KeptEntry]
    restored: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the entries have been restored, or cannot be."""

    _written: dict[str, int] = field(default_factory=dict)
    """Versions of the entries that were written last."""

    _sizes: dict[str, int] = field(default_factory=dict)
    """Characters of the entries as they are stored."""

    async def run(
        self, *, ready: asyncio.Event | None = None, elected: asyncio.Event | None = None
    ) -> None:
        """Restore all entries, not before *elected*, and then write what has changed, once in
        :data:`WRITE_INTERVAL`, until cancelled, and then again."""
        if ready is not None:
            ready.set()
        if elected is not None:
            await elected.wait()
        try:
            await self._load()
        finally:
            self.restored.set()
        try:
            while True:
                await self.clock.sleep(WRITE_INTERVAL)
                await self._save()
        except asyncio.CancelledError:
            async with asyncio.timeout(_FINAL_WRITE_TIMEOUT):
                await self._save()
            raise

    async def _load(self) -> None:
        """Restore all entries, as far as that is possible."""
        try:
            found = await self.client.get(
                CONFIGMAPS, self.name, namespace=self.namespace, view=_ConfigMap
            )
        except NotFoundError:
            found = _ConfigMap()
        except _FAILURES as error:
            self._warn("cannot read what was kept of the last run", error)
            found = _ConfigMap()
        self._sizes = {key: len(text) for key, text in found.data.items()}
        for key, entry in self.entries.items():
            if key in found.data:
                try:
                    entry.restore(found.data[key])
                except ValueError as error:
                    self._warn(f"cannot use what was kept of {key}", error)
            self._written[key] = entry.version

    async def _save(self) -> None:
        versions = {key: entry.version for key, entry in self.entries.items()}
        changed = [key for key, version in versions.items() if self._written.get(key) != version]
        if not changed:
            return
        data, sizes = {}, dict(self._sizes)
        for key in changed:
            text = self.entries[key].encode()
            if sum((sizes | {key: len(text)}).values()) > MAX_CHARACTERS:
                self._warn("what is to be kept is too large", key)
            else:
                data[key], sizes[key] = text, len(text)
        if not data:
            return
        try:
            await self._write({"data": data})
        except _FAILURES as error:
            self._warn("cannot write what is to be kept", error)
            return
        self._sizes = sizes
        self._written.update({key: versions[key] for key in data})

    async def _write(self, body: dict[str, object]) -> None:
        try:
            await self.client.patch(CONFIGMAPS, self.name, body, namespace=self.namespace)
        except NotFoundError:
            created = {"metadata": {"name": self.name}, **body}
            await self.client.create(CONFIGMAPS, created, namespace=self.namespace)

    def _warn(self, text: str, reason: object) -> None:
        name = f"{self.namespace}/{self.name}"
        log.warning(text, extra={"configmap": name, "reason": str(reason)})
