"""Warnings about queues: jobs that their queue can never run, and the jobs of a deleted queue."""

import msgspec

from ..model import quantity
from ..model.admission import AdmissionRequest, DeniedError, ObjectReader, nested_object
from ..model.job import Job
from ..model.min_resources import min_resources, priority_classes
from ..model.names import QUEUES
from ..model.quantity import QuantityError
from ..model.queue import Queue
from .decoding import decode


def job_warnings(request: AdmissionRequest, reader: ObjectReader) -> list[str]:
    """Return which amounts the gang of a job needs beyond the capability of its queue."""
    new, old = nested_object(request.object, "spec"), nested_object(request.old_object, "spec")
    if new == old:
        return []
    job = decode(request.object or {}, Job)
    found = reader.get(QUEUES, "", job.spec.queue)
    if found is None:
        return []
    try:
        if len(priority_classes(job.spec.tasks)) > 1:
            return []  # which pods are in the gang depends on priorities, which are not known here
        capability = decode(found, Queue).spec.capability
        needed = min_resources(job.spec.tasks, job.spec.min_available, priorities={})
        exceeded = [
            f"{needed[name]} {name} (the capability is {limit})"
            for name, limit in sorted(capability.items())
            if name in needed and quantity.parse(needed[name]) > quantity.parse(limit)
        ]
    except (DeniedError, QuantityError, msgspec.MsgspecError):
        return []  # of a queue or job that was stored without validation
    if not exceeded:
        return []
    least = f"the {job.spec.min_available} pods that must run together"
    text = f"{least} need more than queue {job.spec.queue!r} may have: {', '.join(exceeded)}"
    return [f"spec.minAvailable: the job can never run: {text}"]


def queue_warnings(request: AdmissionRequest, reader: ObjectReader) -> list[str]:
    """Return how many jobs a queue has that is being deleted."""
    if request.operation != "DELETE" or request.old_object is None:
        return []
    try:
        status = decode(request.old_object, Queue).status
    except DeniedError:
        return []
    number = status.pending + status.inqueue + status.running + status.unknown
    if not number:
        return []
    jobs = "1 job that has" if number == 1 else f"{number} jobs that have"
    return [
        f"queue {request.name!r} is deleted with {jobs} not finished: those that wait do not start"
        " until a queue of this name exists"
    ]
