"""Resizes of one pod: resources that its spec asks for are allocated, and applied to containers.

Allocated resources are on disk before they are applied, so that the next agent continues.
"""

from collections.abc import Callable, Iterable

import msgspec

from ....model.pod_resources import Resources
from ..state import resizes
from ..state.core_types import Container, Pod
from ..state.resizes import DEFERRED, Allocation
from ..state.status import Event, PodState, Resized, ResizeReviewed, is_resizing
from .container_worker import ResizeError
from .containers import PodContainers
from .node_context import NodeContext
from .records import PodDir


class PodResizer:
    """Allocates resources to one pod, and applies them.

    *apply* handles an event of the pod, *state* returns its state.
    """

    def __init__(
        self,
        node: NodeContext,
        pod: Pod,
        pod_dir: PodDir,
        *,
        state: Callable[[], PodState],
        apply: Callable[[Event], None],
    ) -> None:
        record = pod_dir.read_record()
        known = record.resources if record is not None else None
        self._node = node
        self._desired = pod
        self._pod_dir = pod_dir
        self._state = state
        self._apply = apply
        self._was_resizing = False
        self._allocation: Allocation = (
            resizes.allocation_from_status(pod) if known is None else known
        )

    def update(self, desired: Pod) -> Pod:
        """Handle an update of the pod; return it with its allocated resources."""
        self._desired = desired
        return resizes.with_allocation(desired, self._allocation)

    @property
    def is_deferred(self) -> bool:
        """Whether the node lacks resources that the pod asks for."""
        rejection = self._state().resize_rejection
        return rejection is not None and rejection.reason == DEFERRED

    def review(self) -> Pod | None:
        """Allocate what the spec asks for, if the node has it; return the pod then."""
        desired, state = self._desired, self._state()
        if resizes.allocation_of(desired) == self._allocation:
            if state.resize_rejection is not None:
                self._apply(ResizeReviewed(error=state.resize_error))
            return None
        others = self._node.other_pods(desired.metadata.uid)
        rejection = resizes.find_rejection(desired, others, self._node.allocatable)
        if rejection is not None:
            if rejection != state.resize_rejection:
                what = f"Pod resize {rejection.reason}: "
                self._record(f"Resize{rejection.reason}", what, rejection.message, warning=True)
                self._apply(ResizeReviewed(rejection, state.resize_error))
            return None
        self._allocate(resizes.allocation_of(desired))
        self._apply(ResizeReviewed())
        self._record("ResizeStarted", "Pod resize started: ")
        return desired

    def _allocate(self, allocation: dict[str, Resources]) -> None:
        record = self._pod_dir.read_record()
        if record is not None:  # else it is written when the pod is set up
            self._pod_dir.write_record(msgspec.structs.replace(record, resources=allocation))
        self._allocation = allocation

    async def actuate(self, pod: Pod, containers: PodContainers) -> bool:
        """Apply the allocated resources; return whether to try again later.

        *pod* is the pod with its allocated resources.
        """
        state, error, resizing = self._state(), "", False
        for each in _resizable(pod):
            known = state.of(each.name)
            if not known.running or known.resources is None:
                continue
            if resizes.is_equal(known.resources, each.resources):
                continue
            resizing = True
            try:
                applied = await containers.resize(each.name)
            except ResizeError as failed:
                error = str(failed)
            else:
                if applied is not None:
                    self._apply(Resized(each.name, applied))
        state = self._state()
        if error != state.resize_error:
            self._apply(ResizeReviewed(state.resize_rejection, error))
            if error:
                self._record("ResizeError", "Pod resize error: ", error, warning=True)
        self._report_completion(resizing=resizing, pod=pod)
        return bool(error)

    def _report_completion(self, *, resizing: bool, pod: Pod) -> None:
        self._was_resizing |= resizing
        if self._was_resizing and not is_resizing(pod, self._state()):
            self._was_resizing = False
            self._record("ResizeCompleted", "Pod resize completed: ")

    def _record(self, reason: str, what: str, error: str = "", *, warning: bool = False) -> None:
        message = what + resizes.describe(self._desired, error)
        self._node.record_event(self._desired, reason, message, warning=warning)


def _resizable(pod: Pod) -> Iterable[Container]:
    return (*pod.spec.init_containers, *pod.spec.containers)
