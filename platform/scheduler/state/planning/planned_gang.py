"""A gang with members that are, or were, allocated before their pods existed."""

from dataclasses import dataclass, field

from ....model.placement import GRACE_SECONDS, MAX_MEMBERS, Members, Plan
from ..gangs.gang import Gang, Task


@dataclass(frozen=True, slots=True)
class PlanNote:
    """What the annotation of a PodGroup is to contain."""

    text: str | None
    """The plan; ``None`` for no annotation."""

    is_due: bool
    """Whether it is written at once, and not with the next write."""

    id: str = ""
    pods: int = 0
    nodes: int = 0


@dataclass(frozen=True, slots=True)
class FormerNode:
    """A node that a member has left, but on which its pod may still be created."""

    node: str
    until: float
    """When the last plan that names it ends."""

    uid: str
    """Uid of the assumed pod."""


@dataclass(slots=True)
class PlannedGang:
    """A gang with a plan, or whose members are to be tried."""

    gang: Gang
    uid: str
    """Uid of the PodGroup."""

    members: Members
    hash: str
    since: float
    """When the members were added, as Unix time."""

    unseen: dict[str, Task] = field(default_factory=dict)
    """Members whose pods were not seen, by the name of the pod."""

    leaving: list[str] = field(default_factory=list)
    """Those that are to get another node, as theirs cannot take them any more."""

    lost: set[str] = field(default_factory=set)
    """Those that have left the plan, as no other node could take them."""

    is_decided: bool = False
    plan: Plan | None = None
    until: float = 0.0
    texts: set[str] = field(default_factory=set)
    """The texts of all its plans."""

    text: str = ""
    promised: dict[str, tuple[str, float]] = field(default_factory=dict)
    """By name of the pod: the node in a plan, and when that ends."""

    former: dict[str, list[FormerNode]] = field(default_factory=dict)
    """By name of the pod: its nodes in earlier plans."""

    indexes: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Task and index by the name of the pod."""

    has_progress: bool = False

    @property
    def is_live(self) -> bool:
        """Whether there is a plan with members that were not seen."""
        return self.plan is not None and bool(self.unseen.keys() - self.lost)

    def make_plan(self, plan_id: str, *, now: float, with_former: bool = True) -> str:
        """Set the plan of the members that were not seen and are not lost; returns its text."""
        staying = {name: task for name, task in self.unseen.items() if name not in self.lost}
        self.plan = Plan(
            id=plan_id,
            members=self.hash,
            version=self.members.version,
            until=int(self.until),
            nodes={self.indexes[name]: task.node for name, task in staying.items()},
            former=self._former_nodes(now) if with_former else (),
        )
        self.text = self.plan.encode()
        for name, task in staying.items():
            self.promised[name] = (task.node, self.until)
        return self.text

    def _former_nodes(self, now: float) -> tuple[tuple[tuple[str, int], str], ...]:
        """Return where pods may still be created by earlier plans."""
        found = {
            (self.indexes[name], each.node)
            for name, former in self.former.items()
            if name in self.unseen
            for each in former
            if each.until + GRACE_SECONDS > now
        }
        found |= {(self.indexes[name], self.unseen[name].node) for name in self.lost}
        return tuple(sorted(found)[:MAX_MEMBERS])

    def promises(self, name: str) -> list[tuple[str, float]]:
        """Return the nodes that plans have named for a pod, and when they end."""
        former = [(each.node, each.until) for each in self.former.get(name, ())]
        return [self.promised[name], *former] if name in self.promised else former
