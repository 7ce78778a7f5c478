"""Time limits of jobs, and the limits that queues set for them."""

from collections.abc import Iterable, Iterator, Mapping

from ..model.admission import AdmissionRequest, Json, ObjectReader, nested_object
from ..model.field_errors import quote
from ..model.names import (
    DEFAULT_QUEUE,
    DEFAULT_TIME_LIMIT,
    MAX_TIME_LIMIT,
    MIN_RUNTIME,
    QUEUES,
    RUNNING_ESTIMATE,
    TIME_LIMIT,
    TIME_LIMIT_WARNING,
)
from ..model.run_times import seconds_of, time_limit_error


def set_default(job: Json, request: AdmissionRequest, reader: ObjectReader) -> Json:
    """Return *job* with the time limit of its queue, if it is new and has none.

    That is the default of the queue, or of the nearest one above it, but at most the maximum of any
    of them: without a limit, the job could run for longer.
    """
    metadata = nested_object(job, "metadata")
    annotations = nested_object(metadata, "annotations")
    if request.operation != "CREATE" or TIME_LIMIT in annotations:
        return job
    queue = str(nested_object(job, "spec").get("queue") or DEFAULT_QUEUE)
    above = list(_annotations_of_queues(queue, reader))
    default = next((each for each in above if seconds_of(each, DEFAULT_TIME_LIMIT)), None)
    longest = _lowest_maximum(above)
    if default is None and longest is None:
        return job
    text = "" if default is None else default[DEFAULT_TIME_LIMIT]
    if longest is not None and (
        default is None or longest[0] < (seconds_of(default, DEFAULT_TIME_LIMIT) or 0)
    ):
        text = longest[1]
    return job | {"metadata": metadata | {"annotations": annotations | {TIME_LIMIT: text}}}


Problem = tuple[str, str, str]
"""Name of an annotation, its value, and what is wrong with it."""


def job_errors(
    annotations: Mapping[str, str], queue: str, reader: ObjectReader, *, removed: bool = False
) -> Iterator[str]:
    """Yield what is wrong with the time limit and the estimate in *annotations* of a job or
    PodGroup in *queue*.

    *removed* is whether it had a time limit before: a queue with a maximum does not permit that.
    """
    problems = list(_malformed(annotations, TIME_LIMIT, TIME_LIMIT_WARNING, RUNNING_ESTIMATE))
    seconds = seconds_of(annotations, TIME_LIMIT)
    warning = seconds_of(annotations, TIME_LIMIT_WARNING)
    if not problems and warning is not None and (seconds is None or warning >= seconds):
        text = f"must be less than {TIME_LIMIT}"
        problems.append((TIME_LIMIT_WARNING, annotations[TIME_LIMIT_WARNING], text))
    longest = None if problems else _lowest_maximum(_annotations_of_queues(queue, reader))
    if longest is not None and (removed if seconds is None else seconds > longest[0]):
        text = f"queue `{queue}` permits at most {longest[1]}"
        problems.append((TIME_LIMIT, annotations.get(TIME_LIMIT, ""), text))
    for name, value, text in problems:
        yield f"metadata.annotations[{name}]: Invalid value: {quote(value)}: {text}"


def deadline_errors(
    path: str, seconds: object, annotations: Mapping[str, str], queue: str, reader: ObjectReader
) -> Iterator[str]:
    """Yield what is wrong with the deadline of a job in *queue*, which is in the field *path*: of
    it and a time limit the lesser ends the job."""
    if not isinstance(seconds, int) or seconds_of(annotations, TIME_LIMIT) is not None:
        return
    longest = _lowest_maximum(_annotations_of_queues(queue, reader))
    if longest is not None and seconds > longest[0]:
        yield f"{path}: Invalid value: {seconds}: queue `{queue}` permits at most {longest[1]}"


def queue_problems(annotations: Mapping[str, str]) -> Iterator[Problem]:
    """Yield what is wrong with the durations in *annotations* of a queue."""
    yield from _malformed(annotations, DEFAULT_TIME_LIMIT, MAX_TIME_LIMIT, MIN_RUNTIME)
    default, longest = (
        seconds_of(annotations, name) for name in (DEFAULT_TIME_LIMIT, MAX_TIME_LIMIT)
    )
    if default is not None and longest is not None and default > longest:
        text = f"must not be more than {MAX_TIME_LIMIT}"
        yield DEFAULT_TIME_LIMIT, annotations[DEFAULT_TIME_LIMIT], text


def _malformed(annotations: Mapping[str, str], *names: str) -> Iterator[Problem]:
    for name in names:
        value = annotations.get(name)
        if value is not None and (text := time_limit_error(value)):
            yield name, value, text


def _lowest_maximum(queues: Iterable[Mapping[str, str]]) -> tuple[float, str] | None:
    """Return the lowest maximum of *queues* in seconds and as text; ``None`` without any."""
    found = ((seconds_of(each, MAX_TIME_LIMIT), each.get(MAX_TIME_LIMIT, "")) for each in queues)
    return min(((s, text) for s, text in found if s is not None), default=None)


def _annotations_of_queues(name: str, reader: ObjectReader) -> Iterator[Mapping[str, str]]:
    """Yield the annotations of a queue and of those above it, the nearest first."""
    seen: set[str] = set()
    while name and name not in seen:
        seen.add(name)
        queue = reader.get(QUEUES, "", name)
        if queue is None:
            return
        found = nested_object(nested_object(queue, "metadata"), "annotations")
        yield {key: str(text) for key, text in found.items()}
        name = str(nested_object(queue, "spec").get("parent") or "")
