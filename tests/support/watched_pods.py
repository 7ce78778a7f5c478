"""Pods of an API server that an informer follows."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from support.controller_api import NAMESPACE, ControllerApi, Json

from batholith.kube.client.client import Client, ClientOptions
from batholith.kube.timing import Timing
from batholith.model.names import PODS, Resource
from batholith.testing import HeldRequests, RecordedRequest, RequestMatcher


class PodsApi(ControllerApi):
    """An API server; it keeps which pods were changed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.pods_version = 0
        """Resource version of the newest change of a pod."""
        self.changed: set[str] = set()
        """Keys of the pods that were changed."""

    def put(
        self, resource: Resource | str, name: str, *, namespace: str = NAMESPACE, **fields: Any
    ) -> Json:
        """Store an object as it is, in namespace d."""
        obj = super().put(resource, name, namespace=namespace, **fields)
        if resource == PODS:
            self._on_pod_changed(name, namespace)
        return obj

    def remove(self, resource: Resource | str, name: str, *, namespace: str = NAMESPACE) -> bool:
        """Remove an object of namespace d."""
        existed = super().remove(resource, name, namespace=namespace)
        if existed and resource == PODS:
            self._on_pod_changed(name, namespace)
        return existed

    def _on_pod_changed(self, name: str, namespace: str) -> None:
        self.changed.add(f"{namespace}/{name}")
        self.pods_version = self.newest_version

    def pod_versions(self) -> dict[str, str]:
        """Return the resource version of each pod."""
        pods = self.objects(PODS).items()
        return {key: pod["metadata"]["resourceVersion"] for key, pod in pods}

    def end_watches(self) -> None:
        """End all watches of pods, as a server does at their time limit."""
        for stream in self.watches(PODS):
            stream.close()

    def drop_watches(self, *, after: int = 0) -> None:
        """Break the connections of all watches of pods, *after* more bytes."""
        for stream in self.watches(PODS):
            if after:
                stream.abort_after(after)
            else:
                stream.abort()

    def hold_lists(self) -> HeldRequests:
        """Hold the responses to lists and watch lists; they are outdated when released."""
        return self.faults.hold_response(RequestMatcher(where=is_list, count=None))


def is_watch_list(request: RecordedRequest) -> bool:
    return request.query.get("sendInitialEvents") == "true"


def is_list(request: RecordedRequest) -> bool:
    """Whether it lists more than the one object that a request for the latest version lists."""
    if request.verb == "watch":
        return is_watch_list(request)
    return request.verb == "list" and request.query.get("limit") != "1"


@asynccontextmanager
async def impatient_client(api: ControllerApi, delays: list[float]) -> AsyncIterator[Client]:
    """A client that does not retry; it adds delays to *delays* instead of waiting."""

    async def sleep(seconds: float) -> None:
        delays.append(seconds)
        await asyncio.sleep(0.001)

    options = ClientOptions(timing=Timing(sleep=sleep, random=lambda: 0.0), max_read_attempts=1)
    async with Client(api.credentials, user_agent="t", options=options) as client:
        yield client
