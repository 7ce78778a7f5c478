"""What a PodGroup gets and must fulfil when it is created; changes are not checked."""

from ..model.names import DEFAULT_QUEUE, NAMESPACES, QUEUES
from ..model.podgroup import PodGroup
from ..model.review import DeniedError, Json, Lookup, Review
from .decoding import decode, part
from .job_rules import queue_state_problem
from .tasks import topology_problem

NAMESPACE_QUEUE = "scheduling.volcano.sh/queue-name"
"""Annotation of a namespace: the queue of its PodGroups that name none."""


def fill_in(review: Review, lookup: Lookup) -> Json:
    """The PodGroup, in its namespace's queue if it would be in the default queue."""
    group = review.object or {}
    spec = part(group, "spec")
    if spec.get("queue", DEFAULT_QUEUE) != DEFAULT_QUEUE:
        return group
    namespace = lookup.get(NAMESPACES, "", review.namespace)
    queue = part(part(namespace, "metadata"), "annotations").get(NAMESPACE_QUEUE)
    return group | {"spec": spec | {"queue": queue}} if queue else group


def validate(review: Review, lookup: Lookup) -> None:
    """Check a PodGroup that is to be created.

    Raises:
        DeniedError: with everything that is wrong, in one line.
    """
    spec = decode(review.object or {}, PodGroup).spec
    found = [_queue_problem(spec.queue, lookup), topology_problem(spec.network_topology)]
    for policy in spec.sub_group_policy:
        if problem := topology_problem(policy.network_topology):
            found.append(f"{problem} in subGroupPolicy {policy.name}")
            break
    if problems := list(filter(None, found)):
        raise DeniedError("; ".join(problems))


def _queue_problem(name: str, lookup: Lookup) -> str:
    if not name:
        return ""
    queue = lookup.get(QUEUES, "", name)
    if queue is None:
        return f'unable to find queue: queue.scheduling.volcano.sh "{name}" not found'
    if problem := queue_state_problem(queue, name):
        return f"can only submit PodGroup to queue with state `Open`, {problem}"
    return ""
