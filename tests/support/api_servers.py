"""The two API servers that behaviour is tested on: the embedded one and a real kube-apiserver.

A test that uses the fixture `servers` runs on each of them. `Servers.start` gives a test a
server that holds nothing but what every cluster has from the start: the embedded one is a new one
each time, the real one is started once and brought back to its beginnings each time.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from pathlib import Path
from typing import Any, TypedDict, Unpack

from support.embedded_apiserver import MERGE, Server, embedded_server
from support.polling import wait_until_true
from support.realkube import CONTROLLERS, RealKube, RealKubeOptions, server_view
from support.webhooks import serve_webhooks

from batholith.model import crds as definitions
from batholith.model import names
from batholith.model.admission import Webhook
from batholith.model.names import (
    API_SERVICES,
    CONFIGMAPS,
    CRDS,
    NAMESPACES,
    NODES,
    PODS,
    PRIORITYCLASSES,
    SERVICEACCOUNTS,
)

Json = dict[str, Any]

OWN_NAMESPACE = "volcano-system"
INITIAL_NAMESPACES = (
    "default", "kube-node-lease", "kube-public", "kube-system", OWN_NAMESPACE,
)  # fmt: skip


class ServerOptions(TypedDict, total=False):
    """What a test may choose of its server."""

    webhooks: Sequence[Webhook]
    crds: Sequence[Json]
    """More definitions; the real one always has ours."""
    node: str
    """On the embedded one, the user ``agent`` is the kubelet of this node, if any; on the real one,
    it may do everything."""


class ServerFactory(ABC):
    """Starts the server of a test."""

    name: str
    concurrent: bool
    """Whether several may run at a time."""

    @abstractmethod
    def start(
        self, directory: Path, **options: Unpack[ServerOptions]
    ) -> AbstractAsyncContextManager[Server]:
        """A server for the length of the block."""


class EmbeddedServerFactory(ServerFactory):
    """A new embedded server for each test."""

    name = "embedded"
    concurrent = True

    @asynccontextmanager
    async def start(
        self, directory: Path, **options: Unpack[ServerOptions]
    ) -> AsyncIterator[Server]:
        """See `Servers.start`.

        As at the real one, no controller changes the taints of nodes, unless there is a kubelet,
        which may not remove the first one.
        """
        has_node = bool(options.get("node"))
        async with embedded_server(directory, node_lifecycle=has_node, **options) as server:
            yield server


class RealServerFactory(ServerFactory):
    """One real server for all tests, one after the other."""

    name = "real"
    concurrent = False

    def __init__(self, kube: RealKube) -> None:
        self.kube = kube
        self._in_use = False

    @asynccontextmanager
    async def start(
        self, directory: Path, **options: Unpack[ServerOptions]
    ) -> AsyncIterator[Server]:
        """See `Servers.start`."""
        assert not self._in_use, "another test, or a fixture of this one, has the server"
        self._in_use = True
        if not self.kube.is_running:
            self.kube.start()
        touched = self.kube.restore()
        try:
            async with server_view(self.kube) as server, AsyncExitStack() as stack:
                await _wait_observed(server, touched)
                if webhooks := options.get("webhooks"):
                    await stack.enter_async_context(serve_webhooks(server, webhooks))
                yield server
        finally:
            self._in_use = False


def _key(resource: names.Resource) -> str:
    if resource.group.endswith("volcano.sh") or resource in (API_SERVICES, CRDS):
        return f"{resource.group}/{resource.plural}"
    return {"nodes": "minions", "services": "services/specs"}.get(resource.plural, resource.plural)


@contextmanager
def real_servers(
    directory: Path,
    *,
    controllers: Sequence[str] = CONTROLLERS,
    prepare: Callable[[RealKube], None] | None = None,
) -> Iterator[RealServerFactory]:
    """A real server with our definitions for the length of the block.

    *prepare* puts more there, for all tests.
    """
    crds = definitions.load()
    with RealKube(directory, RealKubeOptions(controllers=controllers, crds=crds)) as kube:
        kube.request_json("POST", NAMESPACES.path(), {"metadata": {"name": OWN_NAMESPACE}})
        for namespace in INITIAL_NAMESPACES:
            for path in _default_objects(namespace):
                kube.wait_status(200, path)
        if prepare is not None:
            prepare(kube)
        kube.snapshot()
        yield RealServerFactory(kube)


_OF_LATER_VERSIONS = (names.NATIVE_PODGROUPS_BETA, names.WORKLOADS_BETA)
_KEYS = {
    b"/registry/" + _key(each).encode() + b"/": each
    for each in vars(names).values()
    if isinstance(each, names.Resource) and each not in _OF_LATER_VERSIONS
}
"""Resources by the beginning of the keys that a real server stores them under."""


async def _wait_observed(server: Server, keys: Iterable[bytes]) -> None:
    """Wait until the API server itself has seen what was done to these keys behind its back.

    A list is as new as the store; a watch without a version may begin with something older.
    """
    resources = {found for key in keys for start, found in _KEYS.items() if key.startswith(start)}
    nothing = "fieldSelector=metadata.name%3Dnone"
    await asyncio.gather(*(server.get(f"{each.path()}?{nothing}") for each in resources))


async def add_namespace(server: Server, name: str, *, labels: dict[str, str] | None = None) -> None:
    """A namespace with all that pods in it need."""
    await server.create(NAMESPACES.path(), {"metadata": {"name": name, "labels": labels or {}}})
    for path in _default_objects(name):

        async def defaults_exist(path: str = path) -> bool:
            return (await server.request("GET", path)).status == 200

        await wait_until_true(defaults_exist)


def _default_objects(name: str) -> tuple[str, ...]:
    return SERVICEACCOUNTS.path(name, "default"), CONFIGMAPS.path(name, "kube-root-ca.crt")


async def add_priority_class(server: Server, name: str, value: int) -> None:
    """A class that pods may name: admission reads from an informer."""
    await server.create(PRIORITYCLASSES.path(), {"metadata": {"name": name}, "value": value})
    spec = {"priorityClassName": name, "containers": [{"name": "c", "image": "i"}]}
    pod = {"metadata": {"name": "prioritized"}, "spec": spec}

    async def is_known() -> bool:
        path = f"{PODS.path('default')}?dryRun=All"
        response = await server.request("POST", path, pod)
        assert response.status in (201, 403), response.body
        return response.status == 201

    await wait_until_true(is_known)


async def add_node(server: Server, name: str, **offers: str) -> None:
    """A node that is ready, as a kubelet and its controller would leave it."""
    allocatable = {"cpu": "8", "memory": "16Gi", "pods": "110"} | offers
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
    await server.create(NODES.path(), body)
    status = {"status": {"allocatable": allocatable, "capacity": allocatable}}
    await merge_patch(server, NODES.path("", name, "status"), status)
    await merge_patch(server, NODES.path("", name), {"spec": {"taints": None}})


async def merge_patch(server: Server, path: str, body: Json) -> None:
    """A merge patch, which must succeed."""
    response = await server.request("PATCH", path, body, content_type=MERGE)
    assert response.status == 200, response.body
