"""Fields of Services and EndpointSlices that the proxy and the name server read."""

import msgspec

from ...model.base import ApiStruct
from ...model.meta import ObjectMeta

SERVICE_NAME = "kubernetes.io/service-name"
"""Label of a slice with the name of its Service."""


class ServicePort(ApiStruct, frozen=True):
    """A port of a Service."""

    name: str = ""
    port: int = 0
    protocol: str = "TCP"
    node_port: int = 0


class ClientIpConfig(ApiStruct, frozen=True):
    """How long a client stays with its endpoint."""

    timeout_seconds: int = 10800


class AffinityConfig(ApiStruct, frozen=True):
    """Options of the session affinity."""

    client_ip: ClientIpConfig = msgspec.field(name="clientIP", default=ClientIpConfig())


class ServiceSpec(ApiStruct, frozen=True):
    """``spec`` of a Service."""

    type: str = "ClusterIP"
    cluster_ip: str = msgspec.field(name="clusterIP", default="")
    external_name: str = ""
    ports: tuple[ServicePort, ...] = ()
    session_affinity: str = "None"
    session_affinity_config: AffinityConfig = AffinityConfig()

    @property
    def affinity_seconds(self) -> int:
        """Seconds after its last connection in which a client stays with its endpoint; 0: none."""
        if self.session_affinity != "ClientIP":
            return 0
        return self.session_affinity_config.client_ip.timeout_seconds


class Service(ApiStruct, frozen=True):
    """A Service."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ServiceSpec = ServiceSpec()


class EndpointConditions(ApiStruct, frozen=True):
    """Conditions of an endpoint; unknown ones count as true, but for terminating."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class Endpoint(ApiStruct, frozen=True):
    """An endpoint of a slice."""

    addresses: tuple[str, ...] = ()
    hostname: str | None = None
    conditions: EndpointConditions = EndpointConditions()


class EndpointPort(ApiStruct, frozen=True):
    """A port of all endpoints of a slice."""

    name: str | None = None
    port: int | None = None
    protocol: str | None = None


class EndpointSlice(ApiStruct, frozen=True):
    """Endpoints of a Service with the same ports."""

    metadata: ObjectMeta = ObjectMeta()
    address_type: str = "IPv4"
    endpoints: tuple[Endpoint, ...] | None = None
    ports: tuple[EndpointPort, ...] | None = None

    @property
    def service(self) -> str:
        """Name of the Service."""
        return self.metadata.labels.get(SERVICE_NAME, "")
