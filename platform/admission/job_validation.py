"""Validation of new Jobs; comments give the numbers of Volcano's rules."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

import msgspec

from ..model import durations, quantity, validation
from ..model.admission import DeniedError, Json, ObjectReader, nested_object
from ..model.arrays import array_errors
from ..model.field_errors import ErrorList, join_errors, quote
from ..model.job import Job, VolumeSpec
from ..model.names import QUEUES, ROOT_QUEUE
from ..model.quantity import QuantityError
from ..model.queue import QueueState
from . import policy_validation
from .annotations import AnnotatedJob, annotation_errors
from .pod_template_validation import decode_template, validate_template
from .pod_types import Container, PodTemplate
from .settings import AdmissionSettings
from .task_validation import (
    dependency_error,
    negative_errors,
    partition_errors,
    size_error,
    topology_error,
)

MAX_CACHED_TEMPLATE = 16 * 1024
"""Maximum size in bytes of a template whose errors are cached."""


def validate_job_create(job: Job, reader: ObjectReader, settings: AdmissionSettings) -> None:
    """Validate a new job.

    Raises:
        DeniedError: with all errors, in one line.
    """
    if not job.spec.tasks:  # C1
        raise DeniedError("No task specified in job spec")
    if error := size_error(job, settings.max_pods_per_job):
        raise DeniedError(error)
    if error := _mpi_error(job):  # C2
        raise DeniedError(error)
    annotated = AnnotatedJob(
        name=job.metadata.name, annotations=job.metadata.annotations, queue=job.spec.queue
    )
    errors = [
        topology_error(job.spec.network_topology),  # C3
        *negative_errors(job),
        *_task_errors(job),  # C4 to C10
        *_name_errors(job),  # C11
        _min_available_error(job),  # C12
        policy_validation.policies_error(job.spec.policies, "spec.policies"),  # C13
        *_plugin_errors(job, settings),  # C14
        *_estimate_error(job),
        volume_error(job.spec.volumes),  # C15
        *_queue_errors(job.spec.queue, reader),  # C16 to C19
        dependency_error(job.spec.tasks),  # C20
        *annotation_errors(annotated, None, reader, volcano=True),
        *array_errors(job),
    ]
    if message := join_errors(errors):
        raise DeniedError(message)


def _mpi_error(job: Job) -> str:
    arguments = job.spec.plugins.get("mpi")
    if arguments is None:
        return ""
    master = "master"
    for argument, following in pairwise((*arguments, "")):
        name, equals, value = argument.lstrip("-").partition("=")
        if argument.startswith("-") and name == "master":
            master = value if equals else following
    if any(task.name == master for task in job.spec.tasks):
        return ""
    return f"The specified mpi master task was not found: no task is named {quote(master)}"


def _task_errors(job: Job) -> Iterator[str]:
    name = job.metadata.name
    seen = set()
    for index, task in enumerate(job.spec.tasks):
        if task.min_available is not None and task.min_available > task.replicas:  # C4
            # Volcano's messages on update and on create: clients match both.
            yield (
                f"'minAvailable' must be <= 'replicas' in task: {task.name}:"
                f" 'minAvailable' is greater than 'replicas' in task: {task.name}, job: {name}"
            )
        if task.name in seen:  # C5
            yield f"duplicated task name {task.name}"
            continue
        seen.add(task.name)
        yield policy_validation.policies_error(task.policies, f"spec.tasks[{index}].policies")  # C6
        pod = f"{name}-{task.name}-{max(task.replicas - 1, 0)}"  # The longest pod name.
        if error := validation.name_error(pod):  # C7
            yield f"create pod with name {pod} validate failed [{error}]"
        whole_cpus = task.topology_policy not in ("", "none")
        template = bytes(task.template)
        check = _template_errors if len(template) > MAX_CACHED_TEMPLATE else _cached_template_errors
        yield from check(template, index, whole_cpus=whole_cpus)  # C8, C9
        yield from partition_errors(task, name)  # C10


def _template_errors(text: bytes, index: int, *, whole_cpus: bool) -> Sequence[str]:
    """Return the errors of the template *text* of one task, which is JSON."""
    errors = ErrorList()
    path = f"spec.task[{index}].template"
    template = decode_template(msgspec.json.decode(text), path, errors)
    if template is not None:
        validate_template(template, path, errors)
        if not errors.errors and whole_cpus:
            return tuple(_whole_cpu_errors(template, index))
    return tuple(errors.errors)


_cached_template_errors = lru_cache(maxsize=128)(_template_errors)
"""Return the errors of a template, from a cache: the jobs of a burst often have equal templates."""


def _whole_cpu_errors(template: PodTemplate, task: int) -> Iterator[str]:
    """Check that CPU requests are integers: a topology policy pins whole CPUs."""
    containers = (*template.spec.containers, *template.spec.init_containers)
    for index, container in enumerate(containers):
        if not _requests_whole_cpus(container):
            yield f"the cpu request isn't an integer in spec.task[{task}] container[{index}]."


def _requests_whole_cpus(container: Container) -> bool:
    requests = container.resources.requests or container.resources.limits
    try:
        cpus = quantity.parse(requests.get("cpu", 0))
    except QuantityError:
        return False
    return bool(cpus) and cpus.is_whole


def _name_errors(job: Job) -> Iterator[str]:
    """Check that the job's name is valid for the objects named after it."""
    name, plugins = job.metadata.name, job.spec.plugins
    if error := validation.name_error(name):
        yield f"create job with name {name} validate failed [{error}]"
        return
    if "svc" in plugins and (not name[0].isalpha() or validation.dns1123_label_error(name)):
        yield (
            f"metadata.name: Invalid value: {quote(name)}: plugin svc creates a Service of this"
            " name, so it must consist of a-z, 0-9 and '-' and start with a letter"
        )
    elif (job.spec.volumes or "ssh" in plugins) and validation.dns1123_label_error(name):
        yield (
            f"metadata.name: Invalid value: {quote(name)}: pod volumes are named after the job:"
            f" {validation.dns1123_label_error(name)}"
        )


def _min_available_error(job: Job) -> str:
    if sum(task.replicas for task in job.spec.tasks) < job.spec.min_available:
        # Volcano's messages on update and on create: clients match both.
        return (
            "job 'minAvailable' must not be greater than total replicas:"
            " job 'minAvailable' should not be greater than total replicas in tasks"
        )
    return ""


def _plugin_errors(job: Job, settings: AdmissionSettings) -> Iterator[str]:
    for name in job.spec.plugins:
        if name not in settings.job_plugins:
            yield f"unable to find job plugin: {name}"


def _estimate_error(job: Job) -> Iterator[str]:
    estimate = job.spec.running_estimate
    try:
        durations.parse("0" if estimate is None else estimate)
    except durations.DurationError as error:
        yield f"spec.runningEstimate: Invalid value: {quote(estimate)}: {error}"


def volume_error(volumes: tuple[VolumeSpec, ...]) -> str:
    """Return the first error of the job's volumes, or ``""``."""
    seen = set()
    for index, volume in enumerate(volumes):
        name = volume.volume_claim_name
        if not volume.mount_path:
            return f"spec.volumes[{index}]: mountPath is required;"
        if volume.mount_path in seen:
            return f"spec.volumes[{index}]: duplicated mountPath: {volume.mount_path};"
        seen.add(volume.mount_path)
        if volume.volume_claim is None and not name:
            where = f"spec.volumes[{index}]"
            return f"{where}: either VolumeClaim or VolumeClaimName must be specified;"
        if volume.volume_claim is not None and name:
            return (
                "conflict: If you want to use an existing PVC, just specify VolumeClaimName."
                " For a new one just specify VolumeClaim:"
                f" mountPath {volume.mount_path} has both, at spec.volumes[{index}]"
            )
        if name and (error := validation.dns1123_subdomain_error(name)):
            return f"invalid VolumeClaimName {name} : [{error}]"
    return ""


def _queue_errors(name: str, reader: ObjectReader) -> Iterator[str]:
    raw = reader.get(QUEUES, "", name)
    if raw is None:
        yield f'unable to find job queue: queue.scheduling.volcano.sh "{name}" not found'
        return
    if error := queue_state_error(raw, name):
        yield f"can only submit job to queue with state `Open`, {error}"
    yield leaf_error(name, reader, kind="job")


def leaf_error(name: str, reader: ObjectReader, *, kind: str) -> str:
    """Return why a *kind* cannot be submitted to a queue that is not a leaf, or ``""``."""
    if name == ROOT_QUEUE:
        return f"can not submit {kind} to root queue"
    children = sum(
        nested_object(other, "spec").get("parent") == name for other in reader.list(QUEUES)
    )
    if not children:
        return ""
    return f"can only submit {kind} to leaf queue, queue `{name}` has {children} child queues"


def queue_state_error(queue: Json, name: str) -> str:
    """Return why the queue is not open, or ``""``.

    A new queue whose state is not written yet counts as open.
    """
    state = nested_object(queue, "status").get("state") or ""
    if state in ("", QueueState.OPEN):
        return ""
    return f"queue `{name}` status is `{state}`"
