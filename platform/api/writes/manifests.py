"""The object to create for the body of a POST: a manifest, or the short form of a Volcano job.

A field either has an effect or is an error: fields that the server would drop or overwrite, and the
annotations that this API sets, are rejected; unknown ones are by the API server.
"""

import json
import math
import re
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError

from ...model.names import OPERATION, SCHEDULER_NAME, SUBMITTED_BY
from ...model.quantity_advice import quantity_advice
from ..jobs.kinds import JobKind
from ..problems import ProblemError, invalid_fields
from ..schemas.jobs import JobManifest, ShortJob

Json = dict[str, Any]
Model = TypeVar("Model", bound=BaseModel)

TASK = "main"
"""Name of the task, and of the container, of a short form."""

GPU = "nvidia.com/gpu"

_ID_LENGTH = 10
_MAX_GENERATE_NAME = 63 - _ID_LENGTH
_SET_BY_SERVER = (
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "selfLink",
    "uid",
)
"""Fields of ``metadata``, which ``kubectl get -o json`` prints."""

_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


def decode_body(body: bytes) -> object:
    """Decode a body that is to be sent on.

    Raises:
        ProblemError: 400 if it is not JSON of text, finite numbers and unique names; 422 if it
            contains a NUL character.
    """
    try:
        found = json.loads(
            body,
            object_pairs_hook=_unique,
            parse_constant=_reject_constant,
            parse_float=_finite,
        )
        # Also rejects lone surrogates, which no UTF-8 text has.
        encoded = msgspec.json.encode(found)
    except (ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        detail = str(error) if isinstance(error, _DuplicateFieldError) else "the body is not JSON"
        raise ProblemError(400, detail) from None
    if b"\\u0000" in encoded and _NUL.search(encoded):
        raise ProblemError(422, "the body contains a NUL character")
    return found


def build_job(
    body: object, kind: JobKind, *, namespace: str, operation: uuid.UUID, user: str
) -> Json:
    """Return the object to create, with its name and the annotations of this API.

    Raises:
        ProblemError: 422 if a field is invalid or has no effect.
    """
    if not isinstance(body, dict):
        raise ProblemError(422, "the body must be a JSON object")
    is_short = kind.is_volcano and not {"apiVersion", "kind", "metadata", "spec"} & body.keys()
    found = from_short(_validated(body, ShortJob)) if is_short else _from_manifest(body, kind)
    errors = list(_metadata_errors(found["metadata"], namespace=namespace, user=user))
    errors += _quantity_errors(found.get("spec"))
    if errors:
        raise invalid_fields(*errors)
    return _marked(found, operation=operation, user=user)


def from_short(job: ShortJob) -> Json:
    """Return the Volcano job of a short form.

    Raises:
        ProblemError: 422 if the gang has more pods than the job.
    """
    container: Json = {"name": TASK, "image": job.image}
    if job.command is not None:
        container["command"] = job.command
    if job.env:
        container["env"] = [{"name": name, "value": value} for name, value in job.env.items()]
    if resources := _resources(job):
        container["resources"] = resources
    pod = {"containers": [container], "restartPolicy": "Never"}
    minimum = job.replicas if job.min_available is None else job.min_available
    if minimum > job.replicas:
        raise invalid_fields(("min_available", "must not be greater than replicas"))
    spec: Json = {
        "schedulerName": SCHEDULER_NAME,
        "minAvailable": minimum,
        "tasks": [
            {
                "name": TASK,
                "replicas": job.replicas,
                "minAvailable": minimum,
                "template": {"spec": pod},
            }
        ],
    }
    if job.queue is not None:
        spec["queue"] = job.queue
    if job.max_retry is not None:
        spec["maxRetry"] = job.max_retry
        spec["policies"] = [{"event": "PodFailed", "action": "RestartJob"}]
    if job.ttl_seconds_after_finished is not None:
        spec["ttlSecondsAfterFinished"] = job.ttl_seconds_after_finished
    metadata: Json = {"generateName": "job-"} if job.name is None else {"name": job.name}
    if job.labels:
        metadata["labels"] = job.labels
    return {"metadata": metadata, "spec": spec}


def _resources(job: ShortJob) -> Json:
    requests: Json = {}
    limits: Json = {}
    for field, value in (("cpu", job.cpu), ("memory", job.memory)):
        if value is not None:
            requests[field] = value
    if "memory" in requests:
        limits["memory"] = requests["memory"]
    if job.gpus:
        requests[GPU] = limits[GPU] = str(job.gpus)
    found = {"requests": requests, "limits": limits}
    return {name: amounts for name, amounts in found.items() if amounts}


def _from_manifest(body: Json, kind: JobKind) -> Json:
    manifest = _validated(body, JobManifest)
    expected = (kind.resource.api_version, kind.resource.kind)
    errors = [
        (field, f"must be {wanted!r} on this path")
        for field, given, wanted in zip(
            ("apiVersion", "kind"), (manifest.apiVersion, manifest.kind), expected, strict=True
        )
        if given != wanted
    ]
    if body.get("status"):
        errors.append(("status", "is written by controllers, and has no effect here"))
    if errors:
        raise invalid_fields(*errors)
    left_out = {"apiVersion", "kind", "status"}
    metadata = body.get("metadata") or {}
    return {**{key: body[key] for key in body if key not in left_out}, "metadata": metadata}


def _metadata_errors(metadata: Json, *, namespace: str, user: str) -> Iterable[tuple[str, str]]:
    if metadata.get("namespace") not in (None, "", namespace):
        yield "metadata.namespace", f"must be {namespace!r} on this path, or missing"
    for field in ("name", "generateName"):
        if not isinstance(metadata.get(field), str | None):
            yield f"metadata.{field}", "must be a string"
    if metadata.get("name") and metadata.get("generateName"):
        yield "metadata.generateName", "has no effect next to a name"
    for field in _SET_BY_SERVER:
        if metadata.get(field) is not None:
            yield f"metadata.{field}", "is set by the server"
    annotations = metadata.get("annotations")
    if not isinstance(annotations, dict | None):
        yield "metadata.annotations", "must be an object"
        return
    for key, own in ((OPERATION, None), (SUBMITTED_BY, user)):
        if annotations and key in annotations and annotations[key] != own:
            yield f"metadata.annotations[{key}]", "is set by this API"


def _quantity_errors(spec: object) -> Iterator[tuple[str, str]]:
    """Yield the malformed amounts of resources: the response of the API server has a
    regular expression.

    Of equal requests and limits of a container only the limit is reported.
    """
    nested: list[tuple[str, object]] = [("spec", spec)]
    while nested:
        path, value = nested.pop()
        if isinstance(value, list):
            nested += [(f"{path}[{index}]", each) for index, each in enumerate(value)]
        elif isinstance(value, dict):
            nested += [(f"{path}.{key}", each) for key, each in value.items()]
            yield from _amount_errors(value.get("resources"), f"{path}.resources")


def _amount_errors(resources: object, path: str) -> Iterator[tuple[str, str]]:
    if not isinstance(resources, dict):
        return
    seen = set()
    for kind in ("limits", "requests"):
        amounts = resources.get(kind)
        for name, amount in amounts.items() if isinstance(amounts, dict) else ():
            advice = "" if amount is None else quantity_advice(amount)
            if advice and (name, advice) not in seen:
                seen.add((name, advice))
                yield f"{path}.{kind}.{name}", advice


def _marked(job: Json, *, operation: uuid.UUID, user: str) -> Json:
    """Return *job* with its name and the annotations of this API."""
    given = {key: value for key, value in job["metadata"].items() if value is not None}
    marks = {OPERATION: str(operation), SUBMITTED_BY: user}
    metadata = {**given, "annotations": {**given.get("annotations", {}), **marks}}
    if not metadata.get("name"):
        # A name of the operation's, so that a repetition meets the job; generateName stays: it
        # marks the name as a generated one.
        prefix = metadata.get("generateName") or "job-"
        metadata["name"] = prefix[:_MAX_GENERATE_NAME] + operation.hex[:_ID_LENGTH]
    return {**job, "metadata": metadata}


def _validated(body: Json, model: type[Model]) -> Model:
    try:
        return model.model_validate(body)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        raise invalid_fields(
            *((".".join(map(str, each["loc"])) or "body", each["msg"]) for each in found)
        ) from None


class _DuplicateFieldError(ValueError):
    """A JSON object has one name twice."""


def _unique(pairs: list[tuple[str, Any]]) -> Json:
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        doubled = next(name for name, count in counts.items() if count > 1)
        raise _DuplicateFieldError(f"the body has the field {doubled!r} twice in one object")
    return found


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is out of range")
    return number
