"""The API server of `batholith.testing` for tests of controllers, with objects in namespace d."""

from collections.abc import Iterable
from typing import Any, Self

from batholith.model import crds
from batholith.model.names import NAMESPACES, Resource
from batholith.testing import ApiServer, Fault, HeldRequests, RecordedRequest, RequestMatcher

Json = dict[str, Any]
NAMESPACE = "d"
_CRDS = crds.load()


class ControllerApi(ApiServer):
    """An API server that serves these custom resources of Volcano, and has namespace d.

    *definitions* are further CRDs.
    """

    def __init__(
        self, *resources: Resource, definitions: Iterable[Json] = (), **options: Any
    ) -> None:
        names = {f"{each.plural}.{each.group}" for each in resources}
        found = [each for each in _CRDS if each["metadata"]["name"] in names]
        super().__init__(crds=[*found, *definitions], **{"collect_garbage": False, **options})

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        super().put(NAMESPACES, NAMESPACE)
        return self

    def put(
        self, resource: Resource | str, name: str, *, namespace: str = NAMESPACE, **fields: Any
    ) -> Json:
        """Store an object as it is, in namespace d."""
        return super().put(resource, name, namespace=namespace, **fields)

    def remove(self, resource: Resource | str, name: str, *, namespace: str = NAMESPACE) -> bool:
        """Remove an object of namespace d."""
        return super().remove(resource, name, namespace=namespace)

    def fail(self, status: int, method: str = "", path: str = "", *, count: int = 1) -> Fault:
        """Refuse requests that are no watches."""
        matcher = RequestMatcher(
            method, path=path, count=count, where=lambda request: request.verb != "watch"
        )
        return self.faults.error(matcher, status)

    def created(self, resource: Resource) -> int:
        """Count the objects of *resource* created so far."""
        return sum(each.resource == resource and each.type == "ADDED" for each in self.changes)

    def hold_writes(self) -> HeldRequests:
        """Hold all requests that are no reads."""
        return self.faults.hold(RequestMatcher(count=None, where=_is_write))

    def writes(self, path: str = "") -> int:
        """Count the requests that are no reads."""
        return self.count(path=path, where=_is_write)


def _is_write(request: RecordedRequest) -> bool:
    return request.method != "GET"
