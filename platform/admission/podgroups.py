"""What a PodGroup must fulfil when it is created; changes are not checked."""

from ..model.admission import AdmissionRequest, DeniedError, ObjectReader
from ..model.names import QUEUES
from ..model.podgroup import PodGroup
from .decoding import decode
from .field_errors import join_errors
from .job_validation import leaf_error, queue_state_error
from .task_validation import topology_error


def validate(request: AdmissionRequest, reader: ObjectReader) -> None:
    """Check a PodGroup that is to be created.

    Raises:
        DeniedError: with everything that is wrong, in one line.
    """
    spec = decode(request.object or {}, PodGroup).spec
    found = [_queue_error(spec.queue, reader), topology_error(spec.network_topology)]
    for policy in spec.sub_group_policy:
        if problem := topology_error(policy.network_topology):
            found.append(f"in subGroupPolicy '{policy.name}': {problem}.")
            break
    if problems := join_errors(found):
        raise DeniedError(problems)


def _queue_error(name: str, reader: ObjectReader) -> str:
    if not name:
        return ""
    queue = reader.get(QUEUES, "", name)
    if queue is None:
        return f'unable to find queue: queue.scheduling.volcano.sh "{name}" not found'
    if problem := queue_state_error(queue, name):
        return f"can only submit PodGroup to queue with state `Open`, {problem}"
    # Volcano lets a gang in that it refuses as a job.
    return leaf_error(name, reader, kind="PodGroup")
