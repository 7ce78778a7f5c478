"""HorizontalPodAutoscalers and scales, as the controller reads them."""

from typing import Any

from ...model.base import ApiStruct
from ...model.meta import Condition, ObjectMeta
from ...model.names import Resource
from .autoscaler_limits import Behavior

Json = dict[str, Any]

AUTOSCALERS = Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler")
POD_METRICS = Resource("metrics.k8s.io", "v1beta1", "pods", "PodMetrics")


class TargetReference(ApiStruct, frozen=True):
    """The object that is scaled."""

    api_version: str = ""
    kind: str = ""
    name: str = ""


class MetricTarget(ApiStruct, frozen=True):
    """Target of a metric."""

    type: str = ""
    average_utilization: int | None = None
    average_value: str | int | None = None
    value: str | int | None = None


class MetricIdentifier(ApiStruct, frozen=True):
    """Name of a metric of another API."""

    name: str = ""
    selector: Json | None = None


class ResourceSource(ApiStruct, frozen=True):
    """A resource that pods use, or one container of each."""

    name: str = ""
    container: str = ""
    target: MetricTarget = MetricTarget()


class OtherSource(ApiStruct, frozen=True):
    """A metric that another API server has."""

    metric: MetricIdentifier = MetricIdentifier()
    target: MetricTarget = MetricTarget()
    described_object: TargetReference = TargetReference()
    """What it is about, of the type ``Object``."""


class MeasuredValue(ApiStruct, frozen=True):
    """A value of such a metric."""

    described_object: TargetReference = TargetReference()
    value: str | int = 0
    timestamp: str = ""
    window_seconds: int | None = None


class MetricSpec(ApiStruct, frozen=True):
    """One metric."""

    type: str = ""
    resource: ResourceSource | None = None
    container_resource: ResourceSource | None = None
    pods: OtherSource | None = None
    object: OtherSource | None = None
    external: OtherSource | None = None


class AutoscalerSpec(ApiStruct, frozen=True):
    """``spec`` of an autoscaler."""

    scale_target_ref: TargetReference = TargetReference()
    min_replicas: int = 1
    max_replicas: int = 1
    metrics: tuple[MetricSpec, ...] = ()
    behavior: Behavior | None = None


class AutoscalerStatus(ApiStruct, frozen=True):
    """``status`` of an autoscaler."""

    observed_generation: int | None = None
    last_scale_time: str | None = None
    current_replicas: int = 0
    desired_replicas: int = 0
    current_metrics: tuple[Json, ...] | None = None
    conditions: tuple[Condition, ...] = ()


class Autoscaler(ApiStruct, frozen=True):
    """A HorizontalPodAutoscaler."""

    metadata: ObjectMeta = ObjectMeta()
    spec: AutoscalerSpec = AutoscalerSpec()
    status: AutoscalerStatus = AutoscalerStatus()


class ScaleSpec(ApiStruct, frozen=True):
    """``spec`` of a scale."""

    replicas: int = 0


class ScaleStatus(ApiStruct, frozen=True):
    """``status`` of a scale."""

    replicas: int = 0
    selector: str = ""


class Scale(ApiStruct, frozen=True):
    """The scale of an object."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ScaleSpec = ScaleSpec()
    status: ScaleStatus = ScaleStatus()


class Requests(ApiStruct, frozen=True):
    """Resources that are requested."""

    requests: dict[str, str | int | float] = {}


class ScaledContainer(ApiStruct, frozen=True):
    """A container of such a pod."""

    name: str = ""
    restart_policy: str = ""
    resources: Requests = Requests()


class ScaledPodSpec(ApiStruct, frozen=True):
    """``spec`` of a pod whose usage counts."""

    containers: tuple[ScaledContainer, ...] = ()
    init_containers: tuple[ScaledContainer, ...] = ()
    resources: Requests | None = None


class ScaledPodStatus(ApiStruct, frozen=True):
    """``status`` of such a pod."""

    phase: str = ""
    start_time: str | None = None
    conditions: tuple[Condition, ...] = ()


class ScaledPod(ApiStruct, frozen=True):
    """A pod whose usage counts."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ScaledPodSpec = ScaledPodSpec()
    status: ScaledPodStatus = ScaledPodStatus()


class ContainerUsage(ApiStruct, frozen=True):
    """Usage of a container."""

    name: str = ""
    usage: dict[str, str] = {}


class PodMetrics(ApiStruct, frozen=True):
    """Usage of a pod."""

    metadata: ObjectMeta = ObjectMeta()
    timestamp: str = ""
    window: str = "0s"
    containers: tuple[ContainerUsage, ...] = ()


class DiscoveredResource(ApiStruct, frozen=True):
    """A resource or subresource of a group and version."""

    name: str = ""
    kind: str = ""


class Discovered(ApiStruct, frozen=True):
    """The resources of a group and version."""

    resources: tuple[DiscoveredResource, ...] = ()
