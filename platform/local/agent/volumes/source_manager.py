"""Sources of pods (ConfigMaps, Secrets, claims, tokens): fetched at their start, then watched.

A ConfigMap or Secret is watched as long as a pod refers to it: as a kubelet, the agent may not list
others. One informer serves all pods; it holds only metadata, and a changed object is fetched once.
A watch costs a connection, of which the API server has a limited number: beyond a limit, objects
are read at intervals instead.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from ....kube.client.client import Client
from ....kube.errors import NotFoundError
from ....kube.informer.informer import Informer
from ....kube.supervision import cancel_and_wait, supervise
from ....kube.timing import Timing
from ....machinery.clock import Clock
from ....model.names import (
    CONFIGMAPS,
    PERSISTENTVOLUMECLAIMS,
    PERSISTENTVOLUMES,
    ROOT_CA,
    SECRETS,
    SERVICEACCOUNTS,
    Resource,
)
from ....model.pod import PodPhase
from ..state.core_types import (
    BOUND,
    ConfigMap,
    MetadataOnly,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    Secret,
    TokenRequest,
)
from ..state.environment import ClaimVolume, ResolvedSources
from .pvc_dirs import claim_volume
from .volumes import PodReferences, references_of

MAX_WATCHES = 200
"""Objects that are watched."""

POLL_INTERVAL = 60.0
"""Seconds between two reads of an object that is not watched; kubelet's without watches."""

_MAX_TOKEN_AGE = 24 * 3600.0
_TOKEN_REFRESH_FRACTION = 0.8
"""Fraction of its lifetime after which a token is renewed, at the latest after a day."""

_VIEWS: dict[Resource, type[ConfigMap | Secret]] = {CONFIGMAPS: ConfigMap, SECRETS: Secret}
_Key = tuple[Resource, str]
"""Kind and ``namespace/name``."""


class _Content(NamedTuple):
    """What is read of a ConfigMap or Secret."""

    version: str
    data: dict[str, bytes] | None
    """``None`` if it does not exist."""


@dataclass(frozen=True, slots=True)
class Token:
    """A service account's token."""

    value: bytes
    refresh_at: float
    """Monotonic time."""


@dataclass(slots=True)
class _PodReferences:
    """References of one pod, and the callback for changes."""

    keys: frozenset[_Key]
    on_change: Callable[[], None]
    versions: dict[_Key, str] = field(default_factory=dict)
    """Versions of the objects as the pod has them."""

    tokens: dict[str, Token] = field(default_factory=dict)
    """By audience."""

    claim_volumes: dict[str, ClaimVolume | None] = field(default_factory=dict)
    """By name."""


class SourceManager:
    """Fetches and watches the objects that the pods of a node refer to."""

    def __init__(
        self,
        client: Client,
        *,
        clock: Clock,
        volumes: Client | None = None,
        has_claims: bool = True,
    ) -> None:
        """*volumes* may list claims, which a kubelet may not; default: *client*.

        *has_claims*: the directories of claims are on this machine.
        """
        self._has_claims = has_claims
        self._client = client
        self._clock = clock
        self.claims = Informer(volumes or client, PERSISTENTVOLUMECLAIMS, MetadataOnly)
        self.claims.add_event_handler(self._event_handler(PERSISTENTVOLUMECLAIMS))
        self._watches: dict[_Key, tuple[Informer[MetadataOnly] | None, asyncio.Task[None]]] = {}
        """By object: its informer, unless it is read at intervals, and the task that reads."""

        self._pods: dict[str, _PodReferences] = {}
        self._pods_by_key: dict[_Key, dict[str, _PodReferences]] = {}
        self._fetched: dict[_Key, _Content] = {}
        """Version and content of the changed objects that pods refer to."""

        self._locks: dict[_Key, asyncio.Lock] = {}

    async def run(self) -> None:
        """Watch claims until cancelled."""
        await self.claims.run()

    async def close(self) -> None:
        """Stop to watch the objects that pods refer to."""
        tasks = [task for _, task in self._watches.values()]
        self._watches.clear()
        await cancel_and_wait(*tasks)

    def _event_handler(
        self, resource: Resource
    ) -> Callable[[MetadataOnly | None, MetadataOnly | None], None]:
        def on_event(old: MetadataOnly | None, new: MetadataOnly | None) -> None:
            if new is None:  # pods keep the files of deleted objects
                return
            key, version = (resource, new.metadata.key), new.metadata.resource_version
            for references in tuple(self._pods_by_key.get(key, {}).values()):
                if references.versions.get(key) != version:
                    references.on_change()

        return on_event

    def _observe(self, key: _Key) -> None:
        """Watch an object, or read it at intervals."""
        resource, (namespace, _, name) = key[0], key[1].partition("/")
        timing = Timing(monotonic=self._clock.monotonic, sleep=self._clock.sleep)
        if len(self._watches) >= MAX_WATCHES:
            polling = supervise(
                f"reads of {resource.plural}", lambda: self._poll(key), timing=timing
            )
            self._watches[key] = None, asyncio.get_running_loop().create_task(polling)
            return
        informer = Informer(
            self._client,
            resource,
            MetadataOnly,
            namespace=namespace,
            field_selector=f"metadata.name={name}",
        )
        informer.add_event_handler(self._event_handler(resource))
        work = supervise(f"watch of {resource.plural}", informer.run, timing=timing)
        self._watches[key] = informer, asyncio.get_running_loop().create_task(work)

    async def _poll(self, key: _Key) -> None:
        resource, (namespace, _, name) = key[0], key[1].partition("/")
        on_event = self._event_handler(resource)
        while True:
            await self._clock.sleep(POLL_INTERVAL)
            with suppress(NotFoundError):
                found = await self._client.get(
                    resource, name, namespace=namespace, view=MetadataOnly
                )
                on_event(None, found)

    def is_referenced(self, resource: Resource, key: str) -> bool:
        """Return whether a registered pod refers to the object ``namespace/name``."""
        return (resource, key) in self._pods_by_key

    def register_pod(self, pod: Pod, on_change: Callable[[], None]) -> None:
        """Call *on_change*, which must not block, whenever an object changes that *pod* reads."""
        meta = pod.metadata
        if meta.uid in self._pods:
            return
        keys = frozenset(_reference_keys(references_of(pod), meta.namespace))
        references = self._pods[meta.uid] = _PodReferences(keys, on_change)
        for key in keys:
            self._pods_by_key.setdefault(key, {})[meta.uid] = references
            if key[0] in _VIEWS and key not in self._watches:
                self._observe(key)

    def unregister_pod(self, uid: str) -> None:
        """Stop watching the objects that the pod reads."""
        references = self._pods.pop(uid, None)
        for key in references.keys if references else ():
            others = self._pods_by_key[key]
            del others[uid]
            if not others:
                del self._pods_by_key[key]
                self._fetched.pop(key, None)
                self._locks.pop(key, None)
                if (watch := self._watches.pop(key, None)) is not None:
                    watch[1].cancel()

    async def get(self, pod: Pod, *, force: bool = True) -> ResolvedSources:
        """Return the objects that *pod* reads; without *force*, from the cache if it is current.

        The pod must be registered.

        Raises:
            ApiError, ConnectionLostError: a request failed.
        """
        references, registered = references_of(pod), self._pods[pod.metadata.uid]
        contents: dict[Resource, dict[str, dict[str, bytes] | None]] = {r: {} for r in _VIEWS}
        claims: dict[str, ClaimVolume | None] = {}
        for resource, key in sorted(
            _reference_keys(references, pod.metadata.namespace), key=_order
        ):
            name = key.partition("/")[2]
            if resource is PERSISTENTVOLUMECLAIMS:
                known = registered.claim_volumes
                before = known.get(name)
                if before is None or before.error:  # a bound claim stays resolved
                    known[name] = await self._resolve_claim(pod, name)
                claims[name] = known[name]
            else:
                found = await self._get((resource, key), force=force)
                registered.versions[resource, key] = found.version
                contents[resource][name] = found.data
        return ResolvedSources(
            config_maps=contents[CONFIGMAPS],
            secrets=contents[SECRETS],
            tokens=await self._tokens(pod, references),
            claims=claims,
        )

    def next_token_refresh(self, uid: str) -> float | None:
        """Return the monotonic time of the first renewal of the pod's tokens."""
        references = self._pods.get(uid)
        tokens = references.tokens.values() if references else ()
        return min((token.refresh_at for token in tokens), default=None)

    async def _resolve_claim(self, pod: Pod, name: str) -> ClaimVolume | None:
        """Return the volume of a claim; ``None`` if the claim does not exist.

        A pod that has not started cannot use a claim that is being deleted.
        """
        claims, namespace = PERSISTENTVOLUMECLAIMS, pod.metadata.namespace
        try:
            found = await self._client.get(
                claims, name, namespace=namespace, view=PersistentVolumeClaim
            )
        except NotFoundError:
            return None
        if found.metadata.deletion_timestamp and pod.status.phase in ("", PodPhase.PENDING):
            return ClaimVolume(error=f'persistentvolumeclaim "{name}" is being deleted')
        volume_name = found.spec.volume_name
        if found.status.phase != BOUND or not volume_name:
            phase = found.status.phase or "not bound"
            return ClaimVolume(error=f'persistentvolumeclaim "{name}" is {phase}')
        try:
            volume = await self._client.get(PERSISTENTVOLUMES, volume_name, view=PersistentVolume)
        except NotFoundError:
            return ClaimVolume(error=f'persistentvolume "{volume_name}" not found')
        return claim_volume(found.metadata.uid, volume, has_dirs=self._has_claims)

    async def _fetch(self, key: _Key) -> _Content:
        resource, object_key = key
        namespace, _, name = object_key.partition("/")
        try:
            found = await self._client.get(
                resource, name, namespace=namespace, view=_VIEWS[resource]
            )
        except NotFoundError:
            return _Content("", None)
        return _Content(found.metadata.resource_version, found.content())

    async def _get(self, key: _Key, *, force: bool) -> _Content:
        """Return the content, fetched by the first caller after a change, or with *force*.

        Nearly all pods have the certificates of the API server, which hardly ever change: a pod
        that starts gets them as another one has them. It gets changed ones by the watch.
        """
        is_ca = key[0] is CONFIGMAPS and key[1].endswith(f"/{ROOT_CA}")
        if force and not is_ca:
            return await self._fetch(key)
        async with self._locks.setdefault(key, asyncio.Lock()):
            informer, _ = self._watches.get(key, (None, None))
            current = informer.get(key[1]) if informer is not None else None
            version = current.metadata.resource_version if current else ""
            known = self._fetched.get(key)
            if known is not None and (force or known.version == version):
                return known
            content = await self._fetch(key)
            if content.data is not None and key in self._pods_by_key:
                self._fetched[key] = content
            return content

    async def _tokens(self, pod: Pod, references: PodReferences) -> dict[str, bytes]:
        tokens, now = self._pods[pod.metadata.uid].tokens, self._clock.monotonic()
        for audience, seconds in sorted(references.tokens):
            known = tokens.get(audience)
            if known is None or known.refresh_at <= now:
                tokens[audience] = await self._request_token(
                    pod, audience=audience, seconds=seconds
                )
        return {audience: token.value for audience, token in tokens.items()}

    async def _request_token(self, pod: Pod, *, audience: str, seconds: int) -> Token:
        """Request a token of the pod's service account."""
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
        requested_at = self._clock.monotonic()
        response = await self._client.post(path, body, view=TokenRequest)
        # Its lifetime, not its expiry: the API server's clock may differ from this machine's.
        lifetime = response.spec.expiration_seconds or seconds
        max_age = min(max(lifetime * _TOKEN_REFRESH_FRACTION, 1.0), _MAX_TOKEN_AGE)
        return Token(response.status.token.encode(), requested_at + max_age)


def _reference_keys(references: PodReferences, namespace: str) -> Iterator[_Key]:
    for resource, names in (
        (CONFIGMAPS, references.config_maps),
        (SECRETS, references.secrets),
        (PERSISTENTVOLUMECLAIMS, references.claims),
    ):
        for name in names:
            yield resource, f"{namespace}/{name}"


def _order(key: _Key) -> tuple[str, str]:
    return key[0].plural, key[1]
