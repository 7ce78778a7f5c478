"""Deployments as their controller sees them, and what it does."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from ...machinery.reconcile.controller import RequeueAfter
from ...model.base import ApiStruct
from ...model.meta import LabelSelector, ObjectMeta
from ...model.selectors import Selector, from_label_selector
from .replica_rules import ReplicaSet
from .types import Json

HASH_LABEL = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
REVISION_HISTORY = "deployment.kubernetes.io/revision-history"
DESIRED_REPLICAS = "deployment.kubernetes.io/desired-replicas"
MAX_REPLICAS = "deployment.kubernetes.io/max-replicas"

NO_DEADLINE = 2**31 - 1
"""``progressDeadlineSeconds`` that means none; also the limit of a history without one."""


class RollingUpdate(ApiStruct, frozen=True):
    """Limits of a rolling update; percentages are of the replicas."""

    max_unavailable: int | str = "25%"
    max_surge: int | str = "25%"


class Strategy(ApiStruct, frozen=True):
    """``spec.strategy``."""

    type: str = "RollingUpdate"
    rolling_update: RollingUpdate | None = None


class DeploymentSpec(ApiStruct, frozen=True):
    """``spec`` of a Deployment."""

    replicas: int = 1
    selector: LabelSelector | None = None
    template: msgspec.Raw = msgspec.Raw(b"{}")
    strategy: Strategy = Strategy()
    min_ready_seconds: int = 0
    revision_history_limit: int | None = None
    paused: bool = False
    progress_deadline_seconds: int | None = None


class Deployment(ApiStruct, frozen=True):
    """A Deployment."""

    metadata: ObjectMeta = ObjectMeta()
    spec: DeploymentSpec = DeploymentSpec()
    status: Json = {}

    @property
    def selector(self) -> Selector:
        """The selector of its ReplicaSets and their pods."""
        return from_label_selector(self.spec.selector)

    @property
    def is_rolling(self) -> bool:
        """Whether pods are replaced little by little."""
        return self.spec.strategy.type == "RollingUpdate"

    @property
    def deadline(self) -> int | None:
        """Seconds without progress after which a rollout has failed."""
        seconds = self.spec.progress_deadline_seconds
        return None if seconds == NO_DEADLINE else seconds

    @property
    def max_surge(self) -> int:
        """How many pods there may be beyond the replicas."""
        return self._limits()[0] if self.is_rolling else 0

    @property
    def max_unavailable(self) -> int:
        """How many of the replicas may be unavailable."""
        if not self.is_rolling or not self.spec.replicas:
            return 0
        return min(self._limits()[1], self.spec.replicas)

    def _limits(self) -> tuple[int, int]:
        """Return the surge, rounded up, and the unavailable, rounded down; never both zero."""
        rolling, replicas = self.spec.strategy.rolling_update or RollingUpdate(), self.spec.replicas
        surge = scaled(rolling.max_surge, replicas, up=True)
        unavailable = scaled(rolling.max_unavailable, replicas, up=False)
        return surge, unavailable if surge or unavailable else 1

    def count(self, name: str) -> int:
        """Return a count of the status."""
        return int(self.status.get(name) or 0)


def scaled(value: int | str, total: int, *, up: bool) -> int:
    """Return a number, or a percentage of *total*."""
    if isinstance(value, int):
        return value
    share = int(value.rstrip("%")) * total / 100
    return math.ceil(share) if up else math.floor(share)


@dataclass(slots=True)
class DeploymentView:
    """A Deployment and its ReplicaSets."""

    deployment: Deployment
    replica_sets: Sequence[ReplicaSet]
    """All that it controls, the oldest first."""
    old_pods_run: bool
    """Whether pods of other ReplicaSets than the new one have not ended."""
    now: float
    """Seconds since the epoch."""
    template: Json = field(default_factory=dict)
    """The pod template."""


@dataclass(frozen=True, slots=True)
class CreateReplicaSet:
    """The ReplicaSet of the current template."""

    name: str
    hash: str
    replicas: int
    annotations: dict[str, str]


@dataclass(frozen=True, slots=True)
class UpdateReplicaSet:
    """A ReplicaSet to change."""

    current: ReplicaSet
    replicas: int | None = None
    annotations: dict[str, str] = field(default_factory=dict)
    min_ready_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class DeleteReplicaSet:
    """A ReplicaSet beyond the limit of the history."""

    current: ReplicaSet


@dataclass(frozen=True, slots=True)
class WriteDeployment:
    """The status of the Deployment, and the annotation of its revision."""

    status: Json
    revision: str = ""


DeploymentEffect = (
    CreateReplicaSet | UpdateReplicaSet | DeleteReplicaSet | WriteDeployment | RequeueAfter
)
