"""What all pods of a real node share: addresses, names, sources, and how to tell people."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...kube.client import Client
from ...kube.errors import ApiError, NotFoundError
from ...kube.events import EventType
from ...machinery.clock import Clock, Timer
from ...machinery.recording import Recorder, reference
from ...model.meta import ResourceList
from ...model.names import CONFIGMAPS, PODS, SECRETS, SERVICEACCOUNTS, Resource
from . import hosts
from .environment import Sources
from .objects import ConfigMap, Pod, Secret, Service, TokenRequest
from .runner import Level
from .settings import AgentSettings
from .volumes import Needs, Places, needs_of

HOST_IP = "127.0.0.1"
_SETTLE = 0.05
"""Seconds that changes of names are gathered before hosts files are written."""


class NameBook:
    """Keeps the hosts file of every pod current."""

    def __init__(self, services: Callable[[str], Iterable[Service]], *, clock: Clock) -> None:
        self._services = services
        self._clock = clock
        self._peers: dict[str, tuple[hosts.Peer, Path]] = {}
        self._shared: dict[str, str] = {}
        """What all hosts files of a namespace have in common, as written last."""

        self._dirty: set[str] = set()
        self._timer: Timer | None = None

    def set(self, peer: hosts.Peer, file: Path) -> None:
        """Make a pod known, or known to be ready; its own *file* is written at once if missing."""
        meta = peer.pod.metadata
        known = self._peers.get(meta.uid)
        self._peers[meta.uid] = (peer, file)
        if known is None:
            _write(peer, file, self._shared.get(meta.namespace, ""))
        if known is None or _shown(known[0]) != _shown(peer):
            self.touch(meta.namespace)

    def drop(self, uid: str) -> None:
        """Forget a pod."""
        known = self._peers.pop(uid, None)
        if known:
            self.touch(known[0].pod.metadata.namespace)

    def touch(self, namespace: str) -> None:
        """Pods or services of *namespace* changed."""
        self._dirty.add(namespace)
        if self._timer is None:
            self._timer = self._clock.call_later(_SETTLE, self._write_dirty)

    def close(self) -> None:
        """Write nothing more."""
        if self._timer:
            self._timer.cancel()

    def _write_dirty(self) -> None:
        self._timer, dirty, self._dirty = None, self._dirty, set()
        for namespace in dirty:
            before, text = self._shared.get(namespace, ""), self._shared_part(namespace)
            if text != before:
                self._shared[namespace] = text
                for peer, file in self._in(namespace):
                    _write(peer, file, text)

    def _in(self, namespace: str) -> list[tuple[hosts.Peer, Path]]:
        return [
            pair for pair in self._peers.values() if pair[0].pod.metadata.namespace == namespace
        ]

    def _shared_part(self, namespace: str) -> str:
        peers = (peer for peer, _ in self._in(namespace))
        return hosts.shared_part(peers, self._services(namespace))


def _write(peer: hosts.Peer, file: Path, shared: str) -> None:
    # In place: a running container has this very file mounted.
    with suppress(FileNotFoundError):
        file.write_text(hosts.own_part(peer.pod, peer.ip) + shared)


def _shown(peer: hosts.Peer) -> tuple[object, ...]:
    """What of a peer others' hosts files depend on."""
    return peer.ip, peer.ready, peer.pod.metadata.labels


@dataclass(slots=True, kw_only=True)
class Machine:
    """One real node, as its pods' workers see it."""

    client: Client
    settings: AgentSettings
    clock: Clock
    level: Level
    allocatable: ResourceList
    names: NameBook
    services: Callable[[str], Iterable[Service]]
    recorder: Recorder | None
    addresses: dict[str, str]
    """Loopback address by pod uid."""

    def take_address(self, uid: str) -> str:
        """The pod's address, a free one the first time."""
        if uid not in self.addresses:
            self.addresses[uid] = hosts.address_of(uid, set(self.addresses.values()))
        return self.addresses[uid]

    def places(self, folder: Path) -> Places:
        """Where a pod's volumes lie."""
        claims = self.settings.data_dir / "volumes"
        return Places(pod=folder, claims=claims, host_paths=self.settings.host_paths)

    def tell(self, pod: Pod, reason: str, message: str, *, warning: bool = False) -> None:
        """Record an event about *pod*."""
        if self.recorder is None:
            return
        kind: EventType = "Warning" if warning else "Normal"
        about = reference(PODS, pod.metadata)
        self.recorder.record(about, type=kind, reason=reason, message=message)

    async def fetch_sources(self, pod: Pod) -> Sources:
        """The ConfigMaps, Secrets and tokens that *pod* names, as far as they exist."""
        needs: Needs = needs_of(pod)
        space = pod.metadata.namespace
        config_maps = {
            name: await self._content(CONFIGMAPS, name, space, ConfigMap)
            for name in sorted(needs.config_maps)
        }
        secrets = {
            name: await self._content(SECRETS, name, space, Secret)
            for name in sorted(needs.secrets)
        }
        tokens: dict[str, bytes] = {}
        for audience, seconds in sorted(needs.tokens):
            token = await self._token(pod, audience=audience, seconds=seconds)
            if token:
                tokens[audience] = token
        return Sources(config_maps=config_maps, secrets=secrets, tokens=tokens)

    async def _content(
        self, resource: Resource, name: str, namespace: str, view: type[ConfigMap | Secret]
    ) -> dict[str, bytes] | None:
        try:
            found = await self.client.get(resource, name, namespace=namespace, view=view)
        except NotFoundError:
            return None
        return found.content()

    async def _token(self, pod: Pod, *, audience: str, seconds: int) -> bytes | None:
        """A token of the pod's service account; ``None`` if the server makes none."""
        meta = pod.metadata
        account = pod.spec.service_account_name or "default"
        bound = {"apiVersion": "v1", "kind": "Pod", "name": meta.name, "uid": meta.uid}
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {
                "audiences": [audience] if audience else [],
                "expirationSeconds": seconds,
                "boundObjectRef": bound,
            },
        }
        path = SERVICEACCOUNTS.path(meta.namespace, account, "token")
        try:
            answer = await self.client.post(path, body, view=TokenRequest)
        except ApiError as error:
            if error.status in (404, 405):
                return None
            raise
        return answer.status.token.encode()
