"""Fields of EndpointSlices that the agent reads."""

from ....model.base import ApiStruct
from ....model.meta import ObjectMeta

_SERVICE_NAME = "kubernetes.io/service-name"


class EndpointConditions(ApiStruct, frozen=True):
    """Conditions of an endpoint."""

    ready: bool | None = None


class Endpoint(ApiStruct, frozen=True):
    """An endpoint of a slice."""

    addresses: tuple[str, ...] = ()
    hostname: str | None = None
    node_name: str | None = None
    conditions: EndpointConditions = EndpointConditions()


class EndpointSlice(ApiStruct, frozen=True):
    """Endpoints of a Service."""

    metadata: ObjectMeta = ObjectMeta()
    endpoints: tuple[Endpoint, ...] | None = None

    @property
    def service(self) -> str:
        """Name of the Service."""
        return self.metadata.labels.get(_SERVICE_NAME, "")
