"""Decisions about one HorizontalPodAutoscaler, from its target and what was measured. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from ...kube.client.events import EventType
from ...model import times
from ...model.durations import DurationError
from ...model.durations import parse as parse_duration
from ...model.meta import Condition
from ...model.quantity import Format, Quantity, QuantityError, parse
from .autoscaler_limits import History, Reason, Request, limit
from .autoscaler_metrics import (
    MetricsError,
    PodState,
    PodUsage,
    Proposal,
    Target,
    Tolerance,
    propose,
    propose_for_average,
    propose_for_value,
)
from .autoscaler_types import (
    Autoscaler,
    AutoscalerStatus,
    MeasuredValue,
    MetricSpec,
    OtherSource,
    PodMetrics,
    ResourceSource,
    Scale,
    ScaledPod,
)

Json = dict[str, Any]

ABLE, ACTIVE, LIMITED = "AbleToScale", "ScalingActive", "ScalingLimited"
_DEFAULT_TOLERANCE = 0.1
_MICRO = 1_000_000
_OTHER_SOURCES = {
    "Pods": ("pods", "FailedGetPodsMetric"),
    "Object": ("object", "FailedGetObjectMetric"),
    "External": ("external", "FailedGetExternalMetric"),
}
"""Sources that other API servers have, by type: their field, and the reason of the condition."""


@dataclass(frozen=True, slots=True)
class RecordEvent:
    """Record an event about the autoscaler."""

    type: EventType
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class SetScale:
    """Set the replicas of the target; *view.rescale_error* is set if it fails."""

    replicas: int


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Write the status."""

    status: AutoscalerStatus


AutoscalerEffect = RecordEvent | SetScale | WriteStatus


@dataclass(slots=True, kw_only=True)
class AutoscalerView:
    """An autoscaler, its target, and the usage of the target's pods."""

    autoscaler: Autoscaler
    history: History
    now: datetime
    monotonic: float
    """Seconds, for the history."""

    scale: Scale | None = None
    scale_error: str = ""
    """Why there is no scale."""

    selector_error: Reason | None = None
    pods: Sequence[ScaledPod] = ()
    metrics: Sequence[PodMetrics] = ()
    metrics_error: str = ""
    values: dict[int, Sequence[MeasuredValue]] = field(default_factory=dict)
    """Those of other API servers, by the index of their metric."""

    value_errors: dict[int, MetricsError] = field(default_factory=dict)
    rescale_error: str = ""
    """Why the target could not be scaled."""

    conditions: list[Condition] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.conditions = list(self.autoscaler.status.conditions)

    def set_condition(self, kind: str, *, status: bool, reason: Reason) -> None:
        """Set a condition; its time changes with its status."""
        text, now = str(status), times.format(self.now)
        new = Condition(kind, text, reason.reason, reason.message, last_transition_time=now)
        for index, each in enumerate(self.conditions):
            if each.type == kind:
                if each.status == text:
                    new = msgspec.structs.replace(
                        new, last_transition_time=each.last_transition_time
                    )
                self.conditions[index] = new
                return
        self.conditions.append(new)


def decide(view: AutoscalerView) -> Iterator[AutoscalerEffect]:
    """Yield what the target and the status need, in order."""
    if view.scale is None:
        yield RecordEvent("Warning", "FailedGetScale", view.scale_error)
        able = "the HPA controller was unable to get the target's current scale"
        text = f"{able}: {view.scale_error}"
        view.set_condition(ABLE, status=False, reason=Reason("FailedGetScale", text))
        yield WriteStatus(_with_conditions(view))
        return
    able = "the HPA controller was able to get the target's current scale"
    view.set_condition(ABLE, status=True, reason=Reason("SucceededGetScale", able))
    spec, current = view.autoscaler.spec, view.scale.spec.replicas
    if not view.history.recommendations:
        view.history.recommendations.append((view.monotonic, current))
    if current == 0:
        text = "scaling is disabled since the replica count of the target is zero"
        view.set_condition(ACTIVE, status=False, reason=Reason("ScalingDisabled", text))
        yield WriteStatus(_status(view, 0, None, rescaled=False))
    elif current > spec.max_replicas:
        why = "Current number of replicas above Spec.MaxReplicas"
        yield from _rescale(view, spec.max_replicas, why, None)
    elif current < spec.min_replicas:
        why = "Current number of replicas below Spec.MinReplicas"
        yield from _rescale(view, spec.min_replicas, why, None)
    else:
        yield from _follow_metrics(view, view.scale)


def _follow_metrics(view: AutoscalerView, scale: Scale) -> Iterator[AutoscalerEffect]:
    current = scale.spec.replicas
    computed = _Computed(view)
    yield from computed.run(scale)
    if computed.error and computed.replicas < 0:
        yield WriteStatus(_status(view, None, computed.statuses, rescaled=False))
        yield RecordEvent("Warning", "FailedComputeMetricsReplicas", computed.error)
        return
    reason = ""
    if computed.replicas > current:
        reason = f"{computed.name} above target"
    elif computed.replicas < current:
        reason = "All metrics below target"
    spec = view.autoscaler.spec
    request = Request(
        current=current,
        desired=computed.replicas,
        minimum=spec.min_replicas,
        maximum=spec.max_replicas,
        now=view.monotonic,
    )
    limited = limit(request, spec.behavior, view.history)
    view.set_condition(ABLE, status=True, reason=limited.able_to_scale)
    view.set_condition(LIMITED, status=limited.is_limited, reason=limited.scaling_limited)
    if limited.replicas != current:
        yield from _rescale(view, limited.replicas, reason, computed.statuses)
    else:
        yield WriteStatus(_status(view, current, computed.statuses, rescaled=False))


def _rescale(
    view: AutoscalerView, replicas: int, reason: str, metrics: tuple[Json, ...] | None
) -> Iterator[AutoscalerEffect]:
    before = view.scale.spec.replicas if view.scale is not None else 0
    yield SetScale(replicas)
    size = f"New size: {replicas}; reason: {reason}"
    if view.rescale_error:
        yield RecordEvent("Warning", "FailedRescale", f"{size}; error: {view.rescale_error}")
        text = f"the HPA controller was unable to update the target scale: {view.rescale_error}"
        view.set_condition(ABLE, status=False, reason=Reason("FailedUpdateScale", text))
        yield WriteStatus(_status(view, None, metrics, rescaled=False))
        return
    text = f"the HPA controller was able to update the target scale to {replicas}"
    view.set_condition(ABLE, status=True, reason=Reason("SucceededRescale", text))
    yield RecordEvent("Normal", "SuccessfulRescale", size)
    if (behavior := view.autoscaler.spec.behavior) is not None:
        view.history.changed(view.monotonic, before, replicas, behavior)
    yield WriteStatus(_status(view, replicas, metrics, rescaled=True))


def _with_conditions(view: AutoscalerView) -> AutoscalerStatus:
    return msgspec.structs.replace(view.autoscaler.status, conditions=tuple(view.conditions))


def _status(
    view: AutoscalerView,
    desired: int | None,
    metrics: tuple[Json, ...] | None,
    *,
    rescaled: bool,
) -> AutoscalerStatus:
    """Return the new status; *desired* is as before if it is ``None``."""
    before = view.autoscaler.status
    now = times.format(view.now)
    return AutoscalerStatus(
        last_scale_time=now if rescaled else before.last_scale_time,
        current_replicas=view.scale.spec.replicas if view.scale is not None else 0,
        desired_replicas=before.desired_replicas if desired is None else desired,
        current_metrics=metrics,
        conditions=tuple(view.conditions),
    )


class _MetricError(Exception):
    """A metric asks for no number; *condition* is the reason for the condition."""

    def __init__(self, text: str, condition: Reason) -> None:
        super().__init__(text)
        self.condition = condition


class _Computed:
    """The replicas that the metrics ask for; set by :meth:`run`."""

    def __init__(self, view: AutoscalerView) -> None:
        self._view = view
        self.replicas = -1
        """-1 if they ask for no number."""

        self.name = ""
        self.statuses: tuple[Json, ...] | None = None
        self.error = ""

    def run(self, scale: Scale) -> Iterator[RecordEvent]:
        """Compute all metrics; yield the events about errors."""
        view = self._view
        if (problem := view.selector_error) is not None:
            yield RecordEvent("Warning", *_selector_event(problem))
            view.set_condition(ACTIVE, status=False, reason=problem)
            self.error = _selector_event(problem)[1]
            return
        statuses: list[Json] = []
        failures: list[_MetricError] = []
        replicas, name = 0, ""
        for index, metric in enumerate(view.autoscaler.spec.metrics):
            try:
                proposal, found, status = _compute(view, index, metric, scale)
            except _MetricError as error:
                yield RecordEvent("Warning", error.condition.reason, error.condition.message)
                failures.append(error)
                statuses.append({"type": ""})
                continue
            statuses.append(status)
            if replicas == 0 or proposal.replicas > replicas:
                replicas, name = proposal.replicas, found
        self.statuses = tuple(statuses)
        total = len(statuses)
        if failures:
            self.error = (
                f"invalid metrics ({len(failures)} invalid out of {total}), first error is: "
                f"{failures[0]}"
            )
        if len(failures) == total or (failures and replicas < scale.spec.replicas):
            first = failures[0].condition
            text = f"the HPA was unable to compute the replica count: {first.message}"
            view.set_condition(ACTIVE, status=False, reason=Reason(first.reason, text))
            return
        text = f"the HPA was able to successfully calculate a replica count from {name}"
        view.set_condition(ACTIVE, status=True, reason=Reason("ValidMetricFound", text))
        self.replicas, self.name = replicas, name


def _selector_event(problem: Reason) -> tuple[str, str]:
    if problem.message == MISSING_SELECTOR.message:
        return "SelectorRequired", "selector is required"
    return problem.reason, problem.message


MISSING_SELECTOR = Reason("InvalidSelector", "the HPA target's scale is missing a selector")


def _compute(
    view: AutoscalerView, index: int, metric: MetricSpec, scale: Scale
) -> tuple[Proposal, str, Json]:
    """Return the proposal of one metric, its name in messages, and its status.

    Raises:
        _MetricError: it asks for no number.
    """
    if metric.type == "Resource" and metric.resource is not None:
        source, reason = metric.resource, "FailedGetResourceMetric"
        text, field_name = f"failed to get {source.name} resource metric value", "resource"
    elif metric.type == "ContainerResource" and metric.container_resource is not None:
        source, reason = metric.container_resource, "FailedGetContainerResourceMetric"
        text, field_name = f"failed to get {source.container} container metric value", ""
    else:
        return _compute_other(view, index, metric, scale)
    try:
        proposal = _propose(view, source, scale.spec.replicas)
    except MetricsError as error:
        what = "usage" if source.target.average_value is not None else "utilization"
        problem = f"failed to get {source.name} {what}: {error}"
        raise _MetricError(f"{text}: {problem}", Reason(reason, problem)) from error
    value: Json = {"averageValue": _quantity(source.name, proposal.average)}
    name = f"{source.name} resource"
    if proposal.utilization is not None:
        value["averageUtilization"] = proposal.utilization
        kind = "resource" if field_name else "container resource"
        name = f"{source.name} {kind} utilization (percentage of request)"
    named = {"name": source.name, "current": value}
    if field_name:
        return proposal, name, {"type": metric.type, "resource": named}
    named["container"] = source.container
    return proposal, name, {"type": metric.type, "containerResource": named}


def _compute_other(
    view: AutoscalerView, index: int, metric: MetricSpec, scale: Scale
) -> tuple[Proposal, str, Json]:
    """Do as :func:`_compute` for a metric of another API server."""
    what, reason = _OTHER_SOURCES[metric.type]
    source: OtherSource = getattr(metric, what)
    try:
        if error := view.value_errors.get(index):
            raise error
        proposal = _propose_by_values(view, view.values[index], source, scale, what)
    except MetricsError as error:
        text = f"failed to get {what} metric value: {error}"
        raise _MetricError(text, Reason(reason, str(error))) from error
    name = f"{what} metric {source.metric.name}"
    status: Json = {"metric": {"name": source.metric.name}}
    if source.metric.selector is not None:
        status["metric"]["selector"] = source.metric.selector
    if what == "object":
        about = source.described_object
        name = f"{about.kind} metric {source.metric.name}"
        status["describedObject"] = msgspec.to_builtins(about)
    kind = "averageValue" if source.target.average_value is not None else "value"
    status["current"] = {kind: _quantity("", proposal.average)}
    return proposal, name, {"type": metric.type, what: status}


def _propose_by_values(
    view: AutoscalerView,
    values: Sequence[MeasuredValue],
    source: OtherSource,
    scale: Scale,
    what: str,
) -> Proposal:
    """Return the proposal for a value of each pod, for one value, or for a sum of values.

    Raises:
        MetricsError: it cannot be computed.
    """
    tolerance, target = _tolerance(view.autoscaler), source.target
    if what == "pods":
        return propose(
            scale.spec.replicas,
            Target(_milli(target.average_value or 0), is_utilization=False),
            pods=[_pod_state(pod, ResourceSource()) for pod in view.pods],
            usages={each.described_object.name: _value_of_pod(each) for each in values},
            resource="",
            tolerance=tolerance,
            now=view.now.timestamp(),
        )
    found = values if what == "external" else values[:1]
    value = sum(_measured(each) for each in found)
    if target.average_value is not None:
        average = _milli(target.average_value)
        return propose_for_average(scale.status.replicas, value, average, tolerance=tolerance)
    ready = sum(map(_is_ready, view.pods))
    replicas = propose_for_value(
        scale.spec.replicas, value, _milli(target.value or 0), ready=ready, tolerance=tolerance
    )
    return Proposal(replicas, value)


def _value_of_pod(measured: MeasuredValue) -> PodUsage:
    at = times.known(measured.timestamp)
    seconds = float(measured.window_seconds or 0)
    return PodUsage(_measured(measured), 0.0 if at is None else at.timestamp(), seconds)


def _measured(measured: MeasuredValue) -> int:
    try:
        return parse(measured.value).milli_value()
    except QuantityError as error:
        raise MetricsError(f"the value of the metric is no quantity: {error}") from error


def _is_ready(pod: ScaledPod) -> bool:
    ready = any((each.type, each.status) == ("Ready", "True") for each in pod.status.conditions)
    return ready and pod.status.phase == "Running"


def _propose(view: AutoscalerView, source: ResourceSource, current: int) -> Proposal:
    target = source.target
    if target.average_value is not None:
        wanted = Target(parse(target.average_value).milli_value(), is_utilization=False)
    elif target.average_utilization is not None:
        wanted = Target(target.average_utilization, is_utilization=True)
    else:
        raise MetricsError("the target is neither an average utilization nor an average value")
    if view.metrics_error or not view.metrics:
        text = view.metrics_error or "no metrics returned from resource metrics API"
        raise MetricsError(f"unable to get metrics for resource {source.name}: {text}")
    return propose(
        current,
        wanted,
        pods=[_pod_state(pod, source) for pod in view.pods],
        usages=_usages(view.metrics, source),
        resource=source.name,
        tolerance=_tolerance(view.autoscaler),
        now=view.now.timestamp(),
    )


def _tolerance(autoscaler: Autoscaler) -> Tolerance:
    behavior = autoscaler.spec.behavior
    if behavior is None:
        return Tolerance()
    up, down = (
        _DEFAULT_TOLERANCE if rules.tolerance is None else parse(rules.tolerance).nanos / 1e9
        for rules in (behavior.scale_up, behavior.scale_down)
    )
    return Tolerance(up=up, down=down)


def _usages(metrics: Sequence[PodMetrics], source: ResourceSource) -> Mapping[str, PodUsage]:
    found = {}
    for pod in metrics:
        values = [
            each.usage.get(source.name)
            for each in pod.containers
            if source.container in ("", each.name)
        ]
        known = [value for value in values if value is not None]
        if known and len(known) == len(values):
            total = sum(parse(value).milli_value() for value in known)
            at = times.known(pod.timestamp)
            found[pod.metadata.name] = PodUsage(
                total, 0.0 if at is None else at.timestamp(), _seconds(pod.window)
            )
    return found


def _seconds(window: str) -> float:
    try:
        return parse_duration(window).total_seconds()
    except DurationError:
        return 0.0


def _pod_state(pod: ScaledPod, source: ResourceSource) -> PodState:
    ready = next((each for each in pod.status.conditions if each.type == "Ready"), None)
    started = times.known(pod.status.start_time)
    since = None if ready is None else times.known(ready.last_transition_time)
    request, error = _request(pod, source)
    return PodState(
        name=pod.metadata.name,
        phase=pod.status.phase,
        deleting=pod.metadata.deletion_timestamp is not None,
        started_at=None if started is None else started.timestamp(),
        ready=None if ready is None else ready.status != "False",
        ready_since=0.0 if since is None else since.timestamp(),
        request=request,
        request_error=error,
    )


def _request(pod: ScaledPod, source: ResourceSource) -> tuple[int, str]:
    """Return what a pod, or its container, requests in thousandths, and why it does not."""
    whole = pod.spec.resources
    if whole is not None and whole.requests and not source.container:
        if source.name in whole.requests:
            return _milli(whole.requests[source.name]), ""
        return 0, f"missing pod-level request for {source.name} in Pod {pod.metadata.name}"
    sidecars = [each for each in pod.spec.init_containers if each.restart_policy == "Always"]
    total, found = 0, False
    for container in (*pod.spec.containers, *sidecars):
        if source.container not in ("", container.name):
            continue
        found = True
        if source.name not in container.resources.requests:
            where = f"container {container.name} of Pod {pod.metadata.name}"
            return 0, f"missing request for {source.name} in {where}"
        total += _milli(container.resources.requests[source.name])
    if source.container and not found:
        return 0, f"container {source.container} not found in Pod {pod.metadata.name}"
    return total, ""


def _milli(value: str | float) -> int:
    try:
        return parse(value).milli_value()
    except QuantityError:
        return 0


def _quantity(resource: str, milli: int) -> str:
    return str(Quantity(milli * _MICRO, Format.BINARY if resource == "memory" else Format.DECIMAL))
