"""Fields of pods and Services that the controllers of workloads read."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from ...model import times
from ...model.base import ApiStruct
from ...model.meta import Condition, ObjectMeta
from ...model.pod import FINISHED
from ...model.service_network import HEADLESS

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Effect: write the whole status."""

    status: Json


class ContainerPort(ApiStruct, frozen=True):
    """A named port of a container."""

    name: str = ""
    container_port: int = 0
    protocol: str = "TCP"


class Container(ApiStruct, frozen=True):
    """A container of a pod."""

    name: str = ""
    restart_policy: str = ""
    ports: tuple[ContainerPort, ...] = ()


class ContainerStatus(ApiStruct, frozen=True):
    """Status of a container."""

    name: str = ""
    restart_count: int = 0


class ClaimSource(ApiStruct, frozen=True):
    """Volume that is a claim."""

    claim_name: str = ""


class EphemeralSource(ApiStruct, frozen=True):
    """Volume whose claim is created for the pod."""

    volume_claim_template: Json = {}


class Volume(ApiStruct, frozen=True):
    """A volume of a pod."""

    name: str = ""
    persistent_volume_claim: ClaimSource | None = None
    ephemeral: EphemeralSource | None = None


class PodClaim(ApiStruct, frozen=True):
    """A claim of devices that a pod names."""

    name: str = ""
    resource_claim_name: str = ""
    resource_claim_template_name: str = ""


class PodClaimStatus(ApiStruct, frozen=True):
    """The claim that was created for a pod from a template."""

    name: str = ""
    resource_claim_name: str = ""


class PodSpec(ApiStruct, frozen=True):
    """``spec`` of a pod."""

    node_name: str = ""
    hostname: str = ""
    subdomain: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    volumes: tuple[Volume, ...] = ()
    affinity: Json | None = None
    resource_claims: tuple[PodClaim, ...] = ()


class PodStatus(ApiStruct, frozen=True):
    """``status`` of a pod."""

    phase: str = ""
    pod_ip: str = msgspec.field(name="podIP", default="")
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    resource_claim_statuses: tuple[PodClaimStatus, ...] = ()

    @property
    def claim_names(self) -> dict[str, str]:
        """The claims that were created from templates, by their names in the spec."""
        return {each.name: each.resource_claim_name for each in self.resource_claim_statuses}


class Pod(ApiStruct, frozen=True):
    """A pod."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def is_terminating(self) -> bool:
        """Whether the pod has a deletion timestamp."""
        return self.metadata.deletion_timestamp is not None

    @property
    def is_finished(self) -> bool:
        """Whether the phase is final."""
        return self.status.phase in FINISHED

    @property
    def is_active(self) -> bool:
        """Whether the pod counts as a replica."""
        return not self.is_finished and not self.is_terminating

    @property
    def ready_condition(self) -> Condition | None:
        """The condition Ready, if there is one."""
        return next((each for each in self.status.conditions if each.type == "Ready"), None)

    @property
    def is_ready(self) -> bool:
        """Whether the condition Ready is true."""
        condition = self.ready_condition
        return condition is not None and condition.status == "True"

    def available_in(self, min_ready_seconds: int, now: float) -> float | None:
        """Return in how many seconds a ready pod is available, 0 if it is; None if not ready.

        *now* is the time in seconds since the epoch.
        """
        condition = self.ready_condition
        if condition is None or condition.status != "True":
            return None
        if not min_ready_seconds:
            return 0.0
        if not condition.last_transition_time:
            return None
        since = times.parse(condition.last_transition_time).timestamp()
        return max(since + min_ready_seconds - now, 0.0)

    def is_available(self, min_ready_seconds: int, now: float) -> bool:
        """Whether the pod has been ready for *min_ready_seconds*."""
        return self.available_in(min_ready_seconds, now) == 0.0


def next_available_in(pods: Iterable[Pod], min_ready_seconds: int, now: float) -> float | None:
    """Return in how many seconds the next ready pod becomes available, if there is one."""
    waits = (pod.available_in(min_ready_seconds, now) for pod in pods)
    return min((wait for wait in waits if wait), default=None)


class ServicePort(ApiStruct, frozen=True):
    """A port of a Service."""

    name: str = ""
    port: int = 0
    target_port: int | str = 0
    protocol: str = "TCP"
    app_protocol: str | None = None


class ServiceSpec(ApiStruct, frozen=True):
    """``spec`` of a Service."""

    type: str = "ClusterIP"
    cluster_ip: str = msgspec.field(name="clusterIP", default="")
    selector: dict[str, str] = {}
    ports: tuple[ServicePort, ...] = ()
    publish_not_ready_addresses: bool = False


class Service(ApiStruct, frozen=True):
    """A Service."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ServiceSpec = ServiceSpec()

    @property
    def is_headless(self) -> bool:
        """Whether the Service has no address."""
        return self.spec.cluster_ip == HEADLESS

    @property
    def selects_pods(self) -> bool:
        """Whether its endpoints are those of pods."""
        return bool(self.spec.selector) and self.spec.type != "ExternalName"

    def selects(self, pod: Pod) -> bool:
        """Whether *pod*, of the same namespace, matches the selector."""
        labels = pod.metadata.labels
        return self.selects_pods and all(
            labels.get(key) == value for key, value in self.spec.selector.items()
        )


class Endpoints(ApiStruct, frozen=True):
    """Endpoints of a Service, in the old form."""

    metadata: ObjectMeta = ObjectMeta()
    subsets: tuple[Json, ...] = ()


class EndpointSlice(ApiStruct, frozen=True):
    """Endpoints of a Service with the same ports."""

    metadata: ObjectMeta = ObjectMeta()
    address_type: str = ""
    endpoints: tuple[Json, ...] | None = ()
    ports: tuple[Json, ...] | None = ()
