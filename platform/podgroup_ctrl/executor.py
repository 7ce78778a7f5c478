"""Executes effects: every write of the PodGroup controller is here."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import assert_never

from ..kube.client.client import PatchType
from ..kube.errors import BadRequestError, ForbiddenError, InvalidError
from ..machinery.batches import run_concurrently
from ..machinery.reconcile.cache import WriteThroughCache
from ..machinery.reconcile.events import Events
from ..model.names import GROUP_NAME
from ..model.podgroup import PodGroup
from .core_types import Pod
from .decide import (
    AnnotatePods,
    CreatePodGroup,
    DeletePodGroup,
    Effect,
    PodGroupView,
    RecordEvent,
    UpdatePodGroup,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodGroupExecutor:
    """Executes the effects on one PodGroup and its pods in their order."""

    podgroups: WriteThroughCache[PodGroup]
    pods: Mapping[str, WriteThroughCache[Pod]]
    """Caches of pods by the name of their scheduler."""
    events: Events
    """Events on pods."""
    rejected: set[str]
    """Keys of the PodGroups that the server has rejected; `execute` adds to it."""

    async def execute(self, view: PodGroupView, effect: Effect) -> None:
        """Execute one effect.

        Raises:
            RequeueError: an object was modified concurrently.
            ApiError, ConnectionLostError: a write was rejected, or may not have arrived.
        """
        match effect:
            case CreatePodGroup(podgroup):
                await self._create(view, podgroup)
            case UpdatePodGroup(podgroup, patch):
                await self.podgroups.patch(podgroup.metadata, patch)
            case DeletePodGroup(podgroup):
                await self.podgroups.delete(podgroup.metadata, unmodified=True)
            case AnnotatePods(pods, podgroup_name):
                annotate = partial(self._annotate, podgroup_name)
                result = await run_concurrently(pods, annotate)
                if result.first_error is not None:
                    raise result.first_error
            case RecordEvent(pod, event):
                self.events.record(pod.metadata, event)
            case _:
                assert_never(effect)

    async def _create(self, view: PodGroupView, podgroup: PodGroup) -> None:
        """Create the PodGroup, or find that it exists; a rejection is recorded on the pods."""
        try:
            await self.podgroups.create_or_get(podgroup)
        except (BadRequestError, ForbiddenError, InvalidError) as error:
            self.rejected.add(view.key)
            for pod in view.pods:
                text = f"cannot create PodGroup: {error.message}"
                self.events.warning(pod.metadata, "PodGroupRefused", text)
            raise
        log.info("podgroup created", extra={"podgroup": view.key})

    async def _annotate(self, podgroup_name: str, pod: Pod) -> None:
        """Write the annotation if the pod is unmodified."""
        annotations = {GROUP_NAME: podgroup_name}
        await self.pods[pod.spec.scheduler_name].patch(
            pod.metadata, {"metadata": {"annotations": annotations}}, kind=PatchType.STRATEGIC
        )
