"""The condition of Kubernetes' own PodGroups, which is all that a scheduler writes of them.

It is True once the group was scheduled, and stays so; before, it is False with what keeps the group
from that. Nothing is written while pods are missing only because they are being created.
"""

from dataclasses import dataclass

from ...kube.client.client import Client, PatchType
from ...machinery.clock import Clock
from ...model.meta import Condition, MetadataOnly
from ...model.native_podgroup import SCHEDULED_CONDITIONS
from ..framework.completeness import SCHEDULED
from ..framework.podgroup_status import UNSCHEDULABLE, PodGroupReport
from ..state.gangs.native_gang import TranslatedPodGroup
from .pod_versions import is_newer


@dataclass(slots=True)
class _State:
    """The condition that a PodGroup is to have, and has."""

    podgroup: TranslatedPodGroup
    desired: Condition
    observed: Condition | None
    version: str
    written_at: float = float("-inf")


class NativeConditions:
    """Writes conditions of PodGroups that have changed."""

    def __init__(self, client: Client, clock: Clock) -> None:
        """Start without any."""
        self._client = client
        self._clock = clock
        self._states: dict[str, _State] = {}

    def submit(self, report: PodGroupReport, interval: float) -> float | None:
        """Take the desired condition from *report*; returns in how many seconds it is to be
        written, if it is.

        Another message alone is written *interval* seconds after the last write.
        """
        podgroup = report.podgroup
        if not isinstance(podgroup, TranslatedPodGroup):
            self._states.pop(report.key, None)
            return None
        state = self._states.get(report.key)
        desired = _desired(report, podgroup)
        if desired is None:
            return None
        if state is None or state.podgroup.metadata.uid != podgroup.metadata.uid:
            state = _State(podgroup, desired, podgroup.observed, podgroup.metadata.resource_version)
            self._states[report.key] = state
        elif is_newer(podgroup.metadata.resource_version, state.version):
            state.podgroup, state.observed = podgroup, podgroup.observed
            state.version = podgroup.metadata.resource_version
        state.desired = desired
        if not _differ(state.desired, state.observed):
            return None
        before = state.observed
        if before is None or (before.status, before.reason) != (desired.status, desired.reason):
            return 0.0
        return max(state.written_at + interval - self._clock.monotonic(), 0.0)

    async def write(self, key: str) -> float | None:
        """Write the condition of the PodGroup of the gang *key*, if it is not as desired.

        Raises:
            ApiError: the API server rejects it, as it does if the PodGroup has changed.
        """
        state = self._states.get(key)
        if state is None or not _differ(state.desired, state.observed):
            return None
        meta, desired, before = state.podgroup.metadata, state.desired, state.observed
        now = self._clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        is_kept = before is not None and before.status == desired.status
        condition = {
            "type": desired.type,
            "status": desired.status,
            "reason": desired.reason,
            "message": desired.message,
            "lastTransitionTime": before.last_transition_time if before and is_kept else now,
        }
        preconditions = {"uid": meta.uid, "resourceVersion": state.version}
        new = await self._client.patch(
            state.podgroup.resource,
            meta.name,
            {"metadata": preconditions, "status": {"conditions": [condition]}},
            namespace=meta.namespace,
            subresource="status",
            kind=PatchType.STRATEGIC,
            view=MetadataOnly,
        )
        if is_newer(new.metadata.resource_version, state.version):
            state.version, state.observed = new.metadata.resource_version, desired
        state.written_at = self._clock.monotonic()
        return None


def _desired(report: PodGroupReport, podgroup: TranslatedPodGroup) -> Condition | None:
    """Return the condition by what is reported, or ``None`` if there is none yet."""
    kind = SCHEDULED_CONDITIONS[podgroup.resource]
    conditions = {each.type: each for each in report.status.conditions}
    if SCHEDULED in conditions:
        return Condition(type=kind, status="True", reason=SCHEDULED)
    if (found := conditions.get(UNSCHEDULABLE)) is None:
        return None
    return Condition(type=kind, status="False", reason=UNSCHEDULABLE, message=found.message)


def _differ(desired: Condition, observed: Condition | None) -> bool:
    """Return whether *desired* is to be written."""
    if observed is None:
        return True
    if observed.status == "True":
        return False
    return (desired.status, desired.reason, desired.message) != (
        observed.status,
        observed.reason,
        observed.message,
    )
