"""What pods read of the API besides themselves: fetched at their start, and watched while they run.

One watch of ConfigMaps, one of Secrets and one of claims serve all pods of a node. They remember
versions only; what changed is fetched once, however many pods read it.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ...kube.client.client import Client
from ...kube.errors import ApiError, NotFoundError
from ...kube.informer.informer import Informer
from ...machinery.clock import Clock
from ...model.names import (
    CONFIGMAPS,
    PERSISTENTVOLUMECLAIMS,
    PERSISTENTVOLUMES,
    SECRETS,
    SERVICEACCOUNTS,
    Resource,
)
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

_MAX_TOKEN_AGE = 24 * 3600.0
_TOKEN_REFRESH_FRACTION = 0.8
"""A token is renewed after this part of its life, or when it is a day old."""

_VIEWS: dict[Resource, type[ConfigMap | Secret]] = {CONFIGMAPS: ConfigMap, SECRETS: Secret}
_Key = tuple[Resource, str]
"""Kind and ``namespace/name``."""


@dataclass(frozen=True, slots=True)
class Token:
    """A service account's token."""

    value: bytes
    refresh_at: float
    """By the steady clock."""


@dataclass(slots=True)
class _PodReferences:
    """One pod, and whom to tell when something that it reads changed."""

    keys: frozenset[_Key]
    on_change: Callable[[], None]
    tokens: dict[str, Token] = field(default_factory=dict)
    """By audience."""

    claim_volumes: dict[str, ClaimVolume | None] = field(default_factory=dict)
    """By name."""


class SourceManager:
    """Knows which pods read what."""

    def __init__(self, client: Client, *, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        followed = (*_VIEWS, PERSISTENTVOLUMECLAIMS)
        self._informers = {
            resource: Informer(client, resource, MetadataOnly) for resource in followed
        }
        self._pods: dict[str, _PodReferences] = {}
        self._pods_by_key: dict[_Key, dict[str, _PodReferences]] = {}
        self._fetched: dict[_Key, tuple[str, dict[str, bytes]]] = {}
        """Version and content of what changed, as long as somebody reads it."""

        self._locks: dict[_Key, asyncio.Lock] = {}
        for resource, cache in self._informers.items():
            cache.add_event_handler(self._event_handler(resource))

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            for cache in self._informers.values():
                group.create_task(cache.run())

    def _event_handler(
        self, resource: Resource
    ) -> Callable[[MetadataOnly | None, MetadataOnly | None], None]:
        def on_event(old: MetadataOnly | None, new: MetadataOnly | None) -> None:
            if new is not None:  # of what is gone, pods keep what they have
                for reader in tuple(
                    self._pods_by_key.get((resource, new.metadata.key), {}).values()
                ):
                    reader.on_change()

        return on_event

    @property
    def pvc_informer(self) -> Informer[MetadataOnly]:
        """All claims there are."""
        return self._informers[PERSISTENTVOLUMECLAIMS]

    def is_referenced(self, resource: Resource, key: str) -> bool:
        """Whether a pod that is not at its end names the object ``namespace/name``."""
        return (resource, key) in self._pods_by_key

    def register_pod(self, pod: Pod, on_change: Callable[[], None]) -> None:
        """Call *changed*, which must be quick, whenever something changes that *pod* reads."""
        meta = pod.metadata
        if meta.uid in self._pods:
            return
        keys = frozenset(_reference_keys(references_of(pod), meta.namespace))
        reader = self._pods[meta.uid] = _PodReferences(keys, on_change)
        for key in keys:
            self._pods_by_key.setdefault(key, {})[meta.uid] = reader

    def unregister_pod(self, uid: str) -> None:
        """The pod needs nothing any more."""
        reader = self._pods.pop(uid, None)
        for key in reader.keys if reader else ():
            others = self._pods_by_key[key]
            del others[uid]
            if not others:
                del self._pods_by_key[key]
                self._fetched.pop(key, None)
                self._locks.pop(key, None)

    async def get(self, pod: Pod, *, force: bool = True) -> ResolvedSources:
        """What *pod* reads, as far as it exists; not *anew* means as new as the watches know.

        The pod must be followed.

        Raises:
            ApiError, ConnectionLostError: the server refused, or could not be reached.
        """
        needs = references_of(pod)
        held: dict[Resource, dict[str, dict[str, bytes] | None]] = {r: {} for r in _VIEWS}
        claims: dict[str, ClaimVolume | None] = {}
        for resource, key in sorted(_reference_keys(needs, pod.metadata.namespace), key=_order):
            name = key.partition("/")[2]
            if resource is PERSISTENTVOLUMECLAIMS:
                known = self._pods[pod.metadata.uid].claim_volumes
                before = known.get(name)
                if before is None or before.error:  # else the pod has it, whatever becomes of it
                    known[name] = await self._resolve_claim(pod.metadata.namespace, name)
                claims[name] = known[name]
            else:
                content = await (self._fetch if force else self._get_cached)((resource, key))
                held[resource][name] = content
        return ResolvedSources(
            config_maps=held[CONFIGMAPS],
            secrets=held[SECRETS],
            tokens=await self._tokens(pod, needs),
            claims=claims,
        )

    def next_token_refresh(self, uid: str) -> float | None:
        """When the first of the pod's tokens has to be renewed, by the steady clock."""
        reader = self._pods.get(uid)
        return min((t.refresh_at for t in reader.tokens.values()), default=None) if reader else None

    async def _resolve_claim(self, namespace: str, name: str) -> ClaimVolume | None:
        """What a claim is bound to, if it is there."""
        claims = PERSISTENTVOLUMECLAIMS
        try:
            found = await self._client.get(
                claims, name, namespace=namespace, view=PersistentVolumeClaim
            )
        except NotFoundError:
            return None
        volume_name = found.spec.volume_name
        if found.status.phase != BOUND or not volume_name:
            phase = found.status.phase or "not bound"
            return ClaimVolume(error=f'persistentvolumeclaim "{name}" is {phase}')
        try:
            volume = await self._client.get(PERSISTENTVOLUMES, volume_name, view=PersistentVolume)
        except NotFoundError:
            return ClaimVolume(error=f'persistentvolume "{volume_name}" not found')
        return claim_volume(found.metadata.uid, volume)

    async def _fetch(self, key: _Key) -> dict[str, bytes] | None:
        resource, place = key
        namespace, _, name = place.partition("/")
        try:
            found = await self._client.get(
                resource, name, namespace=namespace, view=_VIEWS[resource]
            )
        except NotFoundError:
            return None
        return found.content()

    async def _get_cached(self, key: _Key) -> dict[str, bytes] | None:
        """The content, fetched by the first who asks after a change."""
        async with self._locks.setdefault(key, asyncio.Lock()):
            mark = self._informers[key[0]].get(key[1])
            version = mark.metadata.resource_version if mark else ""
            known = self._fetched.get(key)
            if known is not None and version and known[0] == version:
                return known[1]
            content = await self._fetch(key)
            if content is not None and key in self._pods_by_key:
                self._fetched[key] = (version, content)
            return content

    async def _tokens(self, pod: Pod, references: PodReferences) -> dict[str, bytes]:
        reader, now = self._pods[pod.metadata.uid], self._clock.monotonic()
        for audience, seconds in sorted(references.tokens):
            known = reader.tokens.get(audience)
            if known is None or known.refresh_at <= now:
                token = await self._request_token(pod, audience=audience, seconds=seconds)
                if token is not None:
                    reader.tokens[audience] = token
        return {audience: token.value for audience, token in reader.tokens.items()}

    async def _request_token(self, pod: Pod, *, audience: str, seconds: int) -> Token | None:
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
        asked = self._clock.monotonic()
        try:
            answer = await self._client.post(path, body, view=TokenRequest)
        except ApiError as error:
            if error.status in (404, 405, 501):
                return None
            raise
        # Its length of life, not its end: the server's clock may differ from this machine's.
        lasts = answer.spec.expiration_seconds or seconds
        age = min(max(lasts * _TOKEN_REFRESH_FRACTION, 1.0), _MAX_TOKEN_AGE)
        return Token(answer.status.token.encode(), asked + age)


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
