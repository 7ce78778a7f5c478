"""What pods read of the API besides themselves: fetched at their start, and watched while they run.

One watch of ConfigMaps, one of Secrets and one of claims serve all pods of a node. They remember
versions only; what changed is fetched once, however many pods read it.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ...kube.client.client import Client
from ...kube.errors import ApiError, NotFoundError
from ...kube.informer.informer import Cache
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
    Claim,
    ConfigMap,
    Marked,
    PersistentVolume,
    Pod,
    Secret,
    TokenRequest,
)
from ..state.environment import ClaimVolume, Sources
from .pvc_dirs import claim_volume
from .volumes import Needs, needs_of

_OLDEST_TOKEN = 24 * 3600.0
_PART_OF_LIFE = 0.8
"""A token is renewed after this part of its life, or when it is a day old."""

_VIEWS: dict[Resource, type[ConfigMap | Secret]] = {CONFIGMAPS: ConfigMap, SECRETS: Secret}
_Key = tuple[Resource, str]
"""Kind and ``namespace/name``."""


@dataclass(frozen=True, slots=True)
class Token:
    """A service account's token."""

    text: bytes
    renew_at: float
    """By the steady clock."""


@dataclass(slots=True)
class _Reader:
    """One pod, and whom to tell when something that it reads changed."""

    keys: frozenset[_Key]
    changed: Callable[[], None]
    tokens: dict[str, Token] = field(default_factory=dict)
    """By audience."""

    claims: dict[str, ClaimVolume | None] = field(default_factory=dict)
    """By name."""


class SourceBook:
    """Knows which pods read what."""

    def __init__(self, client: Client, *, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        followed = (*_VIEWS, PERSISTENTVOLUMECLAIMS)
        self._caches = {resource: Cache(client, resource, Marked) for resource in followed}
        self._readers: dict[str, _Reader] = {}
        self._by_key: dict[_Key, dict[str, _Reader]] = {}
        self._fetched: dict[_Key, tuple[str, dict[str, bytes]]] = {}
        """Version and content of what changed, as long as somebody reads it."""

        self._turns: dict[_Key, asyncio.Lock] = {}
        for resource, cache in self._caches.items():
            cache.add_handler(self._teller(resource))

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            for cache in self._caches.values():
                group.create_task(cache.run())

    def _teller(self, resource: Resource) -> Callable[[Marked | None, Marked | None], None]:
        def tell(old: Marked | None, new: Marked | None) -> None:
            if new is not None:  # of what is gone, pods keep what they have
                for reader in tuple(self._by_key.get((resource, new.metadata.key), {}).values()):
                    reader.changed()

        return tell

    @property
    def claims(self) -> Cache[Marked]:
        """All claims there are."""
        return self._caches[PERSISTENTVOLUMECLAIMS]

    def is_read(self, resource: Resource, key: str) -> bool:
        """Whether a pod that is not at its end names the object ``namespace/name``."""
        return (resource, key) in self._by_key

    def follow(self, pod: Pod, changed: Callable[[], None]) -> None:
        """Call *changed*, which must be quick, whenever something changes that *pod* reads."""
        meta = pod.metadata
        if meta.uid in self._readers:
            return
        keys = frozenset(_keys(needs_of(pod), meta.namespace))
        reader = self._readers[meta.uid] = _Reader(keys, changed)
        for key in keys:
            self._by_key.setdefault(key, {})[meta.uid] = reader

    def leave(self, uid: str) -> None:
        """The pod needs nothing any more."""
        reader = self._readers.pop(uid, None)
        for key in reader.keys if reader else ():
            others = self._by_key[key]
            del others[uid]
            if not others:
                del self._by_key[key]
                self._fetched.pop(key, None)
                self._turns.pop(key, None)

    async def fetch(self, pod: Pod, *, anew: bool = True) -> Sources:
        """What *pod* reads, as far as it exists; not *anew* means as new as the watches know.

        The pod must be followed.

        Raises:
            ApiError, ConnectionLostError: the server refused, or could not be reached.
        """
        needs = needs_of(pod)
        held: dict[Resource, dict[str, dict[str, bytes] | None]] = {r: {} for r in _VIEWS}
        claims: dict[str, ClaimVolume | None] = {}
        for resource, key in sorted(_keys(needs, pod.metadata.namespace), key=_order):
            name = key.partition("/")[2]
            if resource is PERSISTENTVOLUMECLAIMS:
                known = self._readers[pod.metadata.uid].claims
                before = known.get(name)
                if before is None or before.problem:  # else the pod has it, whatever becomes of it
                    known[name] = await self._claim(pod.metadata.namespace, name)
                claims[name] = known[name]
            else:
                content = await (self._get if anew else self._get_once)((resource, key))
                held[resource][name] = content
        return Sources(
            config_maps=held[CONFIGMAPS],
            secrets=held[SECRETS],
            tokens=await self._tokens(pod, needs),
            claims=claims,
        )

    def renewal(self, uid: str) -> float | None:
        """When the first of the pod's tokens has to be renewed, by the steady clock."""
        reader = self._readers.get(uid)
        return min((t.renew_at for t in reader.tokens.values()), default=None) if reader else None

    async def _claim(self, namespace: str, name: str) -> ClaimVolume | None:
        """What a claim is bound to, if it is there."""
        claims = PERSISTENTVOLUMECLAIMS
        try:
            found = await self._client.get(claims, name, namespace=namespace, view=Claim)
        except NotFoundError:
            return None
        volume_name = found.spec.volume_name
        if found.status.phase != BOUND or not volume_name:
            phase = found.status.phase or "not bound"
            return ClaimVolume(problem=f'persistentvolumeclaim "{name}" is {phase}')
        try:
            volume = await self._client.get(PERSISTENTVOLUMES, volume_name, view=PersistentVolume)
        except NotFoundError:
            return ClaimVolume(problem=f'persistentvolume "{volume_name}" not found')
        return claim_volume(found.metadata.uid, volume)

    async def _get(self, key: _Key) -> dict[str, bytes] | None:
        resource, place = key
        namespace, _, name = place.partition("/")
        try:
            found = await self._client.get(
                resource, name, namespace=namespace, view=_VIEWS[resource]
            )
        except NotFoundError:
            return None
        return found.content()

    async def _get_once(self, key: _Key) -> dict[str, bytes] | None:
        """The content, fetched by the first who asks after a change."""
        async with self._turns.setdefault(key, asyncio.Lock()):
            mark = self._caches[key[0]].get(key[1])
            version = mark.metadata.resource_version if mark else ""
            known = self._fetched.get(key)
            if known is not None and version and known[0] == version:
                return known[1]
            content = await self._get(key)
            if content is not None and key in self._by_key:
                self._fetched[key] = (version, content)
            return content

    async def _tokens(self, pod: Pod, needs: Needs) -> dict[str, bytes]:
        reader, now = self._readers[pod.metadata.uid], self._clock.monotonic()
        for audience, seconds in sorted(needs.tokens):
            known = reader.tokens.get(audience)
            if known is None or known.renew_at <= now:
                token = await self._token(pod, audience=audience, seconds=seconds)
                if token is not None:
                    reader.tokens[audience] = token
        return {audience: token.text for audience, token in reader.tokens.items()}

    async def _token(self, pod: Pod, *, audience: str, seconds: int) -> Token | None:
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
        age = min(max(lasts * _PART_OF_LIFE, 1.0), _OLDEST_TOKEN)
        return Token(answer.status.token.encode(), asked + age)


def _keys(needs: Needs, namespace: str) -> Iterator[_Key]:
    for resource, names in (
        (CONFIGMAPS, needs.config_maps),
        (SECRETS, needs.secrets),
        (PERSISTENTVOLUMECLAIMS, needs.claims),
    ):
        for name in names:
            yield resource, f"{namespace}/{name}"


def _order(key: _Key) -> tuple[str, str]:
    return key[0].plural, key[1]
