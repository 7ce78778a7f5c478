"""LeaderWorkerSets: each group of a leader and its workers is a gang."""

from collections.abc import Sequence

from ...model.base import ApiStruct
from ...model.meta import OwnerReference
from ...model.names import PODS, Resource
from ..core_types import Pod
from .base import (
    Described,
    Gang,
    Grouper,
    Membership,
    Role,
    RoleTemplate,
    owner_reference,
    podgroup_name,
)

SETS = Resource("leaderworkerset.x-k8s.io", "v1", "leaderworkersets", "LeaderWorkerSet")
_PREFIX = "leaderworkerset.sigs.k8s.io"
_NAME, _GROUP = f"{_PREFIX}/name", f"{_PREFIX}/group-index"
_INDEX = f"{_PREFIX}/worker-index"
_LEADER = "0"


class _Template(ApiStruct, frozen=True):
    size: int | None = None
    leader_template: RoleTemplate | None = None
    worker_template: RoleTemplate = RoleTemplate()


class _Spec(ApiStruct, frozen=True):
    leader_worker_template: _Template = _Template()
    startup_policy: str = ""


class LeaderWorkerSet(Described, frozen=True):
    """A LeaderWorkerSet."""

    spec: _Spec = _Spec()


def _membership(pod: Pod) -> Membership | None:
    labels = pod.metadata.labels
    name = labels.get(_NAME, "")
    group = podgroup_name("lws", name, labels.get(_GROUP, ""))
    return Membership(podgroup=group, owner=name) if group else None


def _gang(found: LeaderWorkerSet, pods: Sequence[Pod]) -> Gang:
    template = found.spec.leader_worker_template
    size = 1 if template.size is None else template.size
    workers = template.worker_template.spec
    leader = template.leader_template.spec if template.leader_template else workers
    # Workers that are created once their leader is ready cannot start together with it.
    alone = found.spec.startup_policy == "LeaderReady"
    return Gang(
        owner=_leader(pods) or owner_reference(found, SETS),
        roles=[
            Role(name="leader", count=1, spec=leader, labels={_INDEX: _LEADER}),
            # Their index distinguishes them from the leader only: no label has one value for all.
            *([Role(name="workers", count=size - 1, spec=workers, labels={})] if size > 1 else ()),
        ],
        min_member=1 if alone else None,
        annotations=found.metadata.annotations,
    )


def _leader(pods: Sequence[Pod]) -> OwnerReference | None:
    """Return the leader as the owner: the other pods of its group are deleted with it, too."""
    leader = next((pod for pod in pods if pod.metadata.labels.get(_INDEX) == _LEADER), None)
    if leader is None:
        return None
    return OwnerReference(
        api_version=PODS.api_version,
        kind=PODS.kind,
        name=leader.metadata.name,
        uid=leader.metadata.uid,
        controller=True,
    )


GROUPER = Grouper(
    name="leaderworkerset", resource=SETS, view=LeaderWorkerSet, membership=_membership, gang=_gang
)
