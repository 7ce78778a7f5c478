"""Which pods a gang will have that is not admitted to its queue yet.

They are those that exist, or that the job controller describes in the PodGroup. Otherwise the
minimum of the gang is known as a sum alone, and its pods count as equal and without constraints.
"""

from collections import Counter

from ...model.meta import ObjectMeta
from ...model.pod_resources import Resources
from ..state.cache.cache import SchedulerCache
from ..state.core_types import Container, Pod, PodSpec
from ..state.gangs.gang import Gang
from ..state.planning.described_members import members_of, pods_of
from ..state.podinfo.equivalence import EquivalenceClass
from ..state.resources import to_quantity

ClassCount = tuple[EquivalenceClass, int]


def expected_pods(cache: SchedulerCache, gang: Gang) -> list[ClassCount]:
    """Return how many pods of which class are the minimum of *gang*; nothing if that is not
    known."""
    count = gang.min_member
    existing = [task.eq_class for task in gang.pending_tasks.values()]
    if existing:
        return _first(existing, count)
    members = members_of(gang)
    described = pods_of(gang, members, is_wanted=lambda pod: True) if members else None
    if described:
        return _first([cache.pod_classes.get(pod) for _, pod in described[:count]], count)
    if count < 1 or not gang.min_request:
        return []
    return [(cache.pod_classes.get(_average_pod(gang)), count)]


def _first(classes: list[EquivalenceClass], count: int) -> list[ClassCount]:
    return list(Counter(classes[:count]).items()) if len(classes) >= count else []


def _average_pod(gang: Gang) -> Pod:
    requests: dict[str, str | int | float] = {
        name: to_quantity(name, -(-units // gang.min_member))
        for name, units in gang.min_request.items()
        if name != "pods"
    }
    meta = ObjectMeta(name=gang.name, namespace=gang.namespace, uid=f"expected:{gang.key}")
    return Pod(
        metadata=meta, spec=PodSpec(containers=(Container(resources=Resources(requests=requests)),))
    )
