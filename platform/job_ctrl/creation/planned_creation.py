"""Which pods of a job are created with a node: the job's side of placement at creation.

The PodGroup of an eligible job describes its pods. A plan of the scheduler is used if it is for
this description and this version of the job; each index is created by it once.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from ...kube.errors import NotSentError
from ...machinery.clock import Clock
from ...model import names
from ...model.job import Job
from ...model.placement import Plan, decode_plan
from ...model.podgroup import PodGroup
from ..plugins.registry import JobPlugins
from ..pods import Pod
from ..tracker.core_types import PriorityClass
from .placement import Description, NotDescribedError, Unplaced, describe, scheduling_fields


@dataclass(slots=True)
class PlanUse:
    """What is known of the description and of the plan of one job."""

    podgroup_uid: str = ""
    described: tuple[object, ...] = ()
    """What the description was computed from."""

    description: Description | None = None
    text: str = ""
    """The annotation that was read last."""

    plan: Plan | None = None
    ended: str = ""
    """Id of a plan by which no more pods are created."""

    created: set[tuple[str, int]] = field(default_factory=set)
    """Task and index of pods that existed while the PodGroup has had a plan."""

    counted: set[Unplaced] = field(default_factory=set)
    was_planned: bool = False
    """Whether the PodGroup has had a plan."""

    checked: tuple[object, ...] | None = None
    """Plan, plugins and job for which the last comparison found no difference."""

    def begin(self, podgroup_uid: str) -> None:
        """Forget what was known of another PodGroup."""
        if self.podgroup_uid and self.podgroup_uid != podgroup_uid:
            self.text, self.plan, self.ended, self.was_planned = "", None, "", False
            self.checked = None
            self.created.clear()
            self.counted.clear()
        self.podgroup_uid = podgroup_uid

    def observe_created(self, task: str, index: int) -> None:
        """Note that a pod exists, or existed: the next one is created unplaced."""
        self.created.add((task, index))


class PlannedCreation:
    """Describes jobs, and reads plans."""

    def __init__(
        self,
        *,
        enabled: bool,
        clock: Clock,
        priority_classes: Iterable[PriorityClass],
        exclude: Callable[[str, Collection[Mapping[str, str]]], Unplaced | None],
        count: Callable[[Unplaced], object],
    ) -> None:
        """*exclude* returns why pods of a namespace, given by labels, are created without nodes, if
        they are; *count* is called with each reason."""
        self._enabled = enabled
        self._clock = clock
        self._priority_classes = priority_classes
        self._exclude = exclude
        self._count = count

    def description_of(self, job: Job, plugins: JobPlugins, use: PlanUse) -> str:
        """Return the annotation for the PodGroup that is created for *job*; empty for none."""
        if not self._enabled:
            return ""
        try:
            return self._describe(job, plugins, use).text
        except NotDescribedError as error:
            self._count(error.reason)
            return ""

    def plan_for(
        self,
        job: Job,
        podgroup: PodGroup | None,
        plugins: JobPlugins,
        use: PlanUse,
    ) -> Plan | None:
        """Return the plan by which missing pods of *job* may be created now, or ``None``."""
        if not self._enabled or podgroup is None:
            return None
        use.begin(podgroup.metadata.uid)
        text = podgroup.metadata.annotations.get(names.PLAN, "")
        if text != use.text:
            use.text, use.plan = text, decode_plan(text) if text else None
            if text and use.plan is None:
                self.note(use, Unplaced.INVALID_PLAN)
        plan = use.plan
        if plan is None:
            if names.MEMBERS in podgroup.metadata.annotations and not use.was_planned:
                self.note(use, Unplaced.NO_PLAN)
            return None
        use.was_planned = True
        if plan.id == use.ended or self._clock.now().timestamp() >= plan.until:
            return None
        reason = self._why_not(job, plugins, use, plan)
        if reason is not None:
            self.note(use, reason)
            return None
        return plan

    def node_for(self, use: PlanUse, plan: Plan | None, task: str, index: int, *, body: Pod) -> str:
        """Return the node on which pod *body* is created by *plan*; empty for none.

        A rejected predecessor, or another change, may have ended the plan since it was chosen.
        """
        if plan is None or plan.id == use.ended or use.description is None:
            return ""
        node = plan.nodes.get((task, index), "")
        if not node or (task, index) in use.created or plan.members != use.description.hash:
            return ""
        if use.description.is_uniform:
            return node
        try:
            if scheduling_fields(body) == use.description.pods[task]:
                return node
        except (NotDescribedError, KeyError, TypeError, AttributeError):
            pass
        self.note(use, Unplaced.CHANGED)
        return ""

    def require_valid(self, plan: Plan) -> None:
        """Check that pods may still be created by *plan*.

        Raises:
            NotSentError: they may not.
        """
        if self._clock.now().timestamp() >= plan.until:
            raise NotSentError(f"plan {plan.id} has ended")

    def end(self, use: PlanUse, plan: Plan, reason: Unplaced) -> None:
        """Create no more pods by *plan*."""
        use.ended = plan.id
        self.note(use, reason)

    def note(self, use: PlanUse, reason: Unplaced) -> None:
        """Count *reason*, once for each PodGroup."""
        if reason not in use.counted:
            use.counted.add(reason)
            self._count(reason)

    def _why_not(self, job: Job, plugins: JobPlugins, use: PlanUse, plan: Plan) -> Unplaced | None:
        """Return why *plan* is not used, if it is not."""
        if plan.version != job.status.version:
            return Unplaced.CHANGED
        checked = (plan, plugins, job)
        if checked == use.checked and use.description is not None:
            return self._exclude(job.metadata.namespace, use.description.labels)
        try:
            description = self._describe(job, plugins, use)
        except NotDescribedError as error:
            return error.reason
        if plan.members != description.hash:
            return Unplaced.CHANGED
        use.checked = checked
        return None

    def _describe(self, job: Job, plugins: JobPlugins, use: PlanUse) -> Description:
        meta = job.metadata
        priorities = tuple(
            (each.metadata.name, each.value, each.global_default) for each in self._priority_classes
        )
        key = (plugins, job.spec, job.status.version, meta.labels, meta.annotations, priorities)
        if use.description is None or use.described != key:
            use.description = describe(job, plugins, priority_of=self._priority_of)
            use.described = key
        reason = self._exclude(meta.namespace, use.description.labels)
        if reason is not None:
            raise NotDescribedError(reason)
        return use.description

    def _priority_of(self, name: str) -> int | None:
        """Return the priority of pods of a class, or of the default class."""
        for each in self._priority_classes:
            if each.metadata.name == name or (not name and each.global_default):
                return each.value
        return None
