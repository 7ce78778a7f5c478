"""Controller of HorizontalPodAutoscalers, on metrics.k8s.io and the APIs of other metrics."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import assert_never

import msgspec

from ...kube.client.client import Client
from ...kube.errors import ApiError, ConflictError, NotFoundError
from ...kube.informer.informer import Informer, KindSource
from ...machinery.clock import Clock
from ...machinery.event_recorder import Recorder, object_reference
from ...machinery.merge_patch import merge_patch
from ...machinery.reconcile.cache import WriteThroughCache
from ...machinery.reconcile.controller import Controller, ControllerSettings, Sync
from ...machinery.reconcile.state import KeyStates
from ...model.names import PODS, Resource
from ...model.selectors import Selector, SelectorError, parse_label_selector
from .autoscaler_limits import History, Reason
from .autoscaler_metrics import MetricsError
from .autoscaler_rules import (
    MISSING_SELECTOR,
    AutoscalerEffect,
    AutoscalerView,
    RecordEvent,
    SetScale,
    WriteStatus,
    decide,
)
from .autoscaler_sources import MetricReader, TargetError
from .autoscaler_types import (
    AUTOSCALERS,
    POD_METRICS,
    Autoscaler,
    AutoscalerStatus,
    Discovered,
    PodMetrics,
    Scale,
    ScaledPod,
    TargetReference,
)

SYNC_PERIOD = 15.0
"""Seconds between two reconciles."""

_MAX_CONFLICTS = 5
"""Attempts to set a scale that others change."""


@dataclass(slots=True)
class _State:
    history: History = field(default_factory=History)
    selector: Selector | None = None
    """Of the pods of the target."""


class AutoscalerController(Controller[AutoscalerView, AutoscalerEffect]):
    """Scales the targets of HorizontalPodAutoscalers."""

    def __init__(
        self,
        client: Client,
        *,
        autoscalers: Informer[Autoscaler],
        recorder: Recorder | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Create the controller; *client* may read and set scales."""
        super().__init__("horizontalpodautoscaler", ControllerSettings(), clock=clock)
        self._client = client
        self._recorder = recorder
        self._autoscalers = WriteThroughCache(
            client, AUTOSCALERS, Autoscaler, autoscalers, clock=self.clock
        )
        self._metrics = MetricReader(client, self._plural)
        self._states: KeyStates[_State] = KeyStates(_State)
        self.keep(self._autoscalers, self._states)
        self.sources = [KindSource(autoscalers, self._on_autoscaler)]

    def _on_autoscaler(self, old: Autoscaler | None, new: Autoscaler | None) -> None:
        if new is None or old is None or new.spec != old.spec:
            found = new or old
            if found is not None:
                self.queue.add(found.metadata.key)

    async def observe(self, sync: Sync) -> AutoscalerView | None:
        """Return an autoscaler with its target and the usage of its pods."""
        found = self._autoscalers.get(sync.key)
        if found is None:
            return None
        sync.after(SYNC_PERIOD)
        state = self._states.of(found.metadata)
        view = AutoscalerView(
            autoscaler=found,
            history=state.history,
            now=self.clock.now(),
            monotonic=self.clock.monotonic(),
        )
        try:
            view.scale = await self._scale(found)
        except (ApiError, TargetError) as error:
            view.scale_error = error.message if isinstance(error, ApiError) else str(error)
            return view
        await self._read_usage(view, state, view.scale.status.selector)
        return view

    async def _scale(self, found: Autoscaler) -> Scale:
        """Return the scale of the target.

        Raises:
            TargetError, ApiError: there is none.
        """
        reference, namespace = found.spec.scale_target_ref, found.metadata.namespace
        resource = await self._resource(reference)
        path = resource.path(namespace, reference.name, "scale")
        return await self._client.get_path(path, view=Scale)

    async def _resource(self, reference: TargetReference) -> Resource:
        """Return the resource of a target, which is looked up each time: a definition may be new.

        Raises:
            TargetError: there is none with this kind.
            ApiError: it cannot be read.
        """
        group, _, version = reference.api_version.rpartition("/")
        path = f"/apis/{group}/{version}" if group else f"/api/{version}"
        try:
            served = (await self._client.get_path(path, view=Discovered)).resources
        except NotFoundError:
            served = ()
        for each in served:
            if each.kind == reference.kind and "/" not in each.name:
                return Resource(group, version, each.name, each.kind)
        raise TargetError(f'no matches for kind "{reference.kind}" in group "{group}"')

    async def _plural(self, reference: TargetReference) -> str:
        resource = await self._resource(reference)
        return f"{resource.plural}.{resource.group}" if resource.group else resource.plural

    async def _read_usage(self, view: AutoscalerView, state: _State, selector: str) -> None:
        """Read the pods of the target, and what they use, into *view*."""
        state.selector = None
        if not selector:
            view.selector_error = MISSING_SELECTOR
            return
        try:
            state.selector = parse_label_selector(selector)
        except SelectorError as error:
            text = (
                f"couldn't convert selector into a corresponding internal selector object: {error}"
            )
            view.selector_error = Reason("InvalidSelector", text)
            return
        namespace = view.autoscaler.metadata.namespace
        listed = await self._client.list(
            PODS, namespace=namespace, label_selector=selector, view=ScaledPod
        )
        view.pods = listed.items
        if len(others := self._selecting(view)) > 1:
            names = " ".join(f"{{{key.partition('/')[2]} {namespace}}}" for key in others)
            text = f"pods by selector {selector} are controlled by multiple HPAs: [{names}]"
            view.selector_error = Reason("AmbiguousSelector", text)
            return
        try:
            measured = await self._client.list(
                POD_METRICS, namespace=namespace, label_selector=selector, view=PodMetrics
            )
            view.metrics = measured.items
        except ApiError as error:
            view.metrics_error = (
                f"unable to fetch metrics from resource metrics API: {error.message}"
            )
        await self._read_other_metrics(view, selector)

    async def _read_other_metrics(self, view: AutoscalerView, selector: str) -> None:
        """Read the metrics that other API servers have into *view*."""
        namespace = view.autoscaler.metadata.namespace
        for index, metric in enumerate(view.autoscaler.spec.metrics):
            if metric.type in ("Pods", "Object", "External"):
                try:
                    read = self._metrics.read(metric, namespace, pods=selector)
                    view.values[index] = await read
                except MetricsError as error:
                    view.value_errors[index] = error

    def _selecting(self, view: AutoscalerView) -> list[str]:
        """Return the keys of the autoscalers whose targets have one of the pods."""
        prefix = f"{view.autoscaler.metadata.namespace}/"
        labels = [pod.metadata.labels for pod in view.pods]
        return sorted(
            key
            for key, state in self._states
            if key.startswith(prefix)
            and state.selector is not None
            and any(map(state.selector.matches, labels))
        )

    def decide(self, view: AutoscalerView) -> Iterator[AutoscalerEffect]:
        """Return what the target and the status need; see :func:`.autoscaler_rules.decide`."""
        return decide(view)

    async def execute(self, sync: Sync, view: AutoscalerView, effect: AutoscalerEffect) -> None:
        """Execute one effect."""
        match effect:
            case RecordEvent():
                self._record(view, effect)
            case SetScale():
                try:
                    await self._set_scale(view, effect.replicas)
                except (ApiError, TargetError) as error:
                    text = error.message if isinstance(error, ApiError) else str(error)
                    view.rescale_error = text
            case WriteStatus():
                patch = merge_patch(_encoded(view.autoscaler.status), _encoded(effect.status))
                if patch:
                    await self._autoscalers.patch_status(view.autoscaler.metadata, patch)
            case _:
                assert_never(effect)

    def _record(self, view: AutoscalerView, event: RecordEvent) -> None:
        if self._recorder is not None:
            regarding = object_reference(AUTOSCALERS, view.autoscaler.metadata)
            self._recorder.record(
                regarding, type=event.type, reason=event.reason, message=event.message
            )

    async def _set_scale(self, view: AutoscalerView, replicas: int) -> None:
        """Set the replicas of the target, also if others change it concurrently.

        Raises:
            TargetError, ApiError: it cannot be set.
        """
        reference = view.autoscaler.spec.scale_target_ref
        resource = await self._resource(reference)
        scale = view.scale or await self._scale(view.autoscaler)
        for attempt in range(_MAX_CONFLICTS):
            metadata = {
                "name": reference.name,
                "namespace": view.autoscaler.metadata.namespace,
                "uid": scale.metadata.uid,
                "resourceVersion": scale.metadata.resource_version,
            }
            body = {
                "apiVersion": "autoscaling/v1",
                "kind": "Scale",
                "metadata": metadata,
                "spec": {"replicas": replicas},
            }
            try:
                await self._client.replace(
                    resource,
                    reference.name,
                    body,
                    namespace=view.autoscaler.metadata.namespace,
                    subresource="scale",
                    view=msgspec.Raw,
                )
            except ConflictError:
                if attempt + 1 == _MAX_CONFLICTS:
                    raise
                scale = await self._scale(view.autoscaler)
            else:
                return


def _encoded(status: AutoscalerStatus) -> dict[str, object]:
    encoded: dict[str, object] = msgspec.to_builtins(status)
    return encoded
