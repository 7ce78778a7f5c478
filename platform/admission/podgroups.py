"""What a PodGroup must fulfil when it is created; changes are not checked."""

from ..model.admission import DeniedError, Lookup, Review
from ..model.names import QUEUES
from ..model.podgroup import PodGroup
from .decoding import decode
from .field_errors import joined
from .job_validation import leaf_problem, queue_state_problem
from .task_validation import topology_problem


def validate(review: Review, lookup: Lookup) -> None:
    """Check a PodGroup that is to be created.

    Raises:
        DeniedError: with everything that is wrong, in one line.
    """
    spec = decode(review.object or {}, PodGroup).spec
    found = [_queue_problem(spec.queue, lookup), topology_problem(spec.network_topology)]
    for policy in spec.sub_group_policy:
        if problem := topology_problem(policy.network_topology):
            found.append(f"in subGroupPolicy '{policy.name}': {problem}.")
            break
    if problems := joined(found):
        raise DeniedError(problems)


def _queue_problem(name: str, lookup: Lookup) -> str:
    if not name:
        return ""
    queue = lookup.get(QUEUES, "", name)
    if queue is None:
        return f'unable to find queue: queue.scheduling.volcano.sh "{name}" not found'
    if problem := queue_state_problem(queue, name):
        return f"can only submit PodGroup to queue with state `Open`, {problem}"
    # Volcano lets a gang in that it refuses as a job.
    return leaf_problem(name, lookup, what="PodGroup")
