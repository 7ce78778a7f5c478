"""Validation of new PodGroups; updates are not validated."""

from ..model.admission import AdmissionRequest, DeniedError, ObjectReader
from ..model.field_errors import join_errors
from ..model.names import DEFAULT_QUEUE, QUEUES
from ..model.podgroup import PodGroup
from .decoding import decode
from .job_validation import leaf_error, queue_state_error
from .task_validation import topology_error
from .time_limits import job_errors


def validate(request: AdmissionRequest, reader: ObjectReader) -> None:
    """Validate a new PodGroup.

    Raises:
        DeniedError: with all errors, in one line.
    """
    podgroup = decode(request.object or {}, PodGroup)
    spec, annotations = podgroup.spec, podgroup.metadata.annotations
    errors = [_queue_error(spec.queue, reader), topology_error(spec.network_topology)]
    errors += job_errors(annotations, spec.queue or DEFAULT_QUEUE, reader)
    for policy in spec.sub_group_policy:
        if error := topology_error(policy.network_topology):
            errors.append(f"in subGroupPolicy '{policy.name}': {error}.")
            break
    if message := join_errors(errors):
        raise DeniedError(message)


def _queue_error(name: str, reader: ObjectReader) -> str:
    if not name:
        return ""
    queue = reader.get(QUEUES, "", name)
    if queue is None:
        return f'unable to find queue: queue.scheduling.volcano.sh "{name}" not found'
    if error := queue_state_error(queue, name):
        return f"can only submit PodGroup to queue with state `Open`, {error}"
    # Volcano checks this for Jobs only.
    return leaf_error(name, reader, kind="PodGroup")
