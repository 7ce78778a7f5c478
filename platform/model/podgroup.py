"""Volcano's PodGroup (``scheduling.volcano.sh/v1beta1``): the gang as a unit of scheduling."""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from .base import ApiStruct
from .job import NetworkTopology
from .meta import LabelSelector, ObjectMeta
from .names import PODGROUP_MIN_MEMBER


class PodGroupPhase(StrEnum):
    """``status.phase`` of a PodGroup; empty counts as PENDING."""

    PENDING = "Pending"
    INQUEUE = "Inqueue"
    RUNNING = "Running"
    UNKNOWN = "Unknown"
    COMPLETED = "Completed"


class SubGroupPolicy(ApiStruct, frozen=True):
    """A gang within the gang."""

    name: str = ""
    network_topology: NetworkTopology | None = None
    sub_group_size: int = 1
    min_sub_groups: int = 0
    label_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()


class PodGroupSpec(ApiStruct, frozen=True):
    """Minimum members and resources, queue and priority of the gang."""

    min_member: int = 0
    min_task_member: dict[str, int] = {}
    queue: str = ""
    priority_class_name: str = ""
    min_resources: dict[str, str | int | float] | None = None
    network_topology: NetworkTopology | None = None
    sub_group_policy: tuple[SubGroupPolicy, ...] = ()


class PodGroupCondition(ApiStruct, frozen=True):
    """Scheduling condition of the gang (``Unschedulable``, ``Scheduled``)."""

    type: str = ""
    status: str = ""
    transition_id: str = msgspec.field(default="", name="transitionID")
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class PodGroupStatus(ApiStruct, frozen=True):
    """Status written by the scheduler alone."""

    phase: str = ""
    conditions: tuple[PodGroupCondition, ...] = ()
    running: int = 0
    succeeded: int = 0
    failed: int = 0


class PodGroup(ApiStruct, frozen=True):
    """A gang of pods."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodGroupSpec = PodGroupSpec()
    status: PodGroupStatus = PodGroupStatus()

    @property
    def is_stored(self) -> bool:
        """Whether it is an object of the API server, not only described by a pod."""
        return bool(self.metadata.uid)


def min_member(owner: Mapping[str, str]) -> int:
    """Return the gang size in the annotations of the owner of pods without a job, or one."""
    text = owner.get(PODGROUP_MIN_MEMBER, "")
    if not text.removeprefix("+").isdecimal() or not text.isascii():
        return 1
    size = int(text)
    return size if size < 2**31 else 1
