"""Defaulting of Queues, and validation of their fields.

Rules that relate queues to each other are in :mod:`.queue_tree`.
"""

import math
from collections.abc import Iterable, Iterator

from ..model import quantity
from ..model.admission import AdmissionRequest, DeniedError, Json, ObjectReader, nested_object
from ..model.budgets import budget_problems
from ..model.field_errors import ErrorList, aggregate_errors, quote
from ..model.names import QUEUES, ROOT_QUEUE
from ..model.notifications import errors_of
from ..model.quantity import Quantity, QuantityError
from ..model.quantity_advice import quantity_advice
from ..model.queue import Quantities, Queue, QueueState
from ..model.resource_names import is_extended
from .decoding import decode
from .queue_tree import QueueTree, validate_delete, validate_parent, validate_resources
from .settings import AdmissionSettings
from .time_limits import Problem, queue_problems

HIERARCHY = "volcano.sh/hierarchy"
HIERARCHY_WEIGHTS = "volcano.sh/hierarchy-weights"

_STATES = (QueueState.OPEN, QueueState.CLOSED)
_INTEGER_RESOURCES = frozenset(
    (
        "pods",
        "services",
        "replicationcontrollers",
        "resourcequotas",
        "secrets",
        "configmaps",
        "persistentvolumeclaims",
        "services.nodeports",
        "services.loadbalancers",
    )
)


def set_defaults(queue: Json) -> Json:
    """Return *queue* with defaults; the same object if nothing was missing.

    Fields of a wrong type are left to the schema.
    """
    changed: Json = {}
    spec = queue.get("spec") or {}
    if isinstance(spec, dict):
        added: Json = {}
        if spec.get("reclaimable") is None:
            added["reclaimable"] = True
        if spec.get("weight") is None or (type(spec["weight"]) is int and spec["weight"] == 0):
            added["weight"] = 1
        if added:
            changed["spec"] = spec | added
    metadata = nested_object(queue, "metadata")
    annotations = nested_object(metadata, "annotations")
    path, weights = annotations.get(HIERARCHY), annotations.get(HIERARCHY_WEIGHTS)
    if path and weights and str(path).partition("/")[0] != ROOT_QUEUE:
        rooted = {HIERARCHY: f"{ROOT_QUEUE}/{path}", HIERARCHY_WEIGHTS: f"1/{weights}"}
        changed["metadata"] = metadata | {"annotations": annotations | rooted}
    return queue | changed if changed else queue


def validate(request: AdmissionRequest, reader: ObjectReader, settings: AdmissionSettings) -> None:
    """Validate the create, update or delete of a queue.

    Raises:
        DeniedError: the queue is invalid, or must not be deleted.
    """
    tree = QueueTree(reader)
    if request.object is None:
        validate_delete(request.name, tree, settings)
        return
    queue = decode(request.object, Queue)
    old = decode(request.old_object, Queue) if request.old_object is not None else None
    _validate_fields(queue, old, reader)
    is_root = queue.metadata.name == ROOT_QUEUE
    moved = old is None or old.spec.parent != queue.spec.parent
    changed = old is None or _resource_attributes(old) != _resource_attributes(queue)
    if moved:
        validate_parent(queue, tree, settings)
    if is_root and old is not None and changed and settings.root_queue_protection:
        raise DeniedError(
            "root queue's resource attributes (capability, deserved, guarantee) cannot be modified"
        )
    if not is_root and (moved or changed):
        validate_resources(queue, tree)


def _resource_attributes(queue: Queue) -> tuple[dict[str, Quantity], ...]:
    spec = queue.spec
    amounts = (spec.capability, spec.deserved, spec.guarantee.resource)
    return tuple({name: quantity.parse(value) for name, value in each.items()} for each in amounts)


def _validate_fields(queue: Queue, old: Queue | None, reader: ObjectReader) -> None:
    errors = ErrorList()
    _validate_amounts(queue, errors)
    state = queue.status.state
    # Closing and Unknown, set by the controller, must not block other changes.
    if (old is None or old.status.state != state) and state not in ("", *_STATES):
        detail = f"queue state must be in [{' '.join(_STATES)}]"
        errors.invalid("requestBody.spec.state", state, detail)
    if text := _hierarchy_error(queue, old, reader):
        errors.add("requestBody.metadata.annotations", text)
    known = set() if old is None else set(_annotation_problems(old))
    for problem in _annotation_problems(queue):
        if problem not in known:  # stored without validation, it must not block other changes
            name, value, text = problem
            errors.invalid(f"requestBody.metadata.annotations[{name}]", value, text)
    if errors.errors:
        raise DeniedError(aggregate_errors(errors.errors))


def _annotation_problems(queue: Queue) -> Iterator[Problem]:
    annotations = queue.metadata.annotations
    yield from queue_problems(annotations)
    yield from errors_of(annotations)
    yield from budget_problems(annotations)


def _validate_amounts(queue: Queue, errors: ErrorList) -> None:
    path = "requestBody.spec"
    spec = queue.spec
    capability = _parse_amounts(spec.capability, f"{path}.capability", errors)
    deserved = _parse_amounts(spec.deserved, f"{path}.deserved", errors)
    guarantee = _parse_amounts(spec.guarantee.resource, f"{path}.guarantee.resource", errors)
    for name, minimum in guarantee.items():
        amount = deserved.get(name)
        if amount is None or amount < minimum:
            value = "<nil>" if amount is None else str(amount)
            suffix = "" if amount is None else f"={amount}"
            detail = f"deserved[{name}]{suffix} must be >= guarantee[{name}]={minimum}"
            errors.invalid(f"{path}.deserved.{name}", value, detail)
    for name, amount in deserved.items():
        maximum = capability.get(name)
        if maximum is not None and amount > maximum:
            detail = f"deserved[{name}]={amount} must be <= capability[{name}]={maximum}"
            errors.invalid(f"{path}.deserved.{name}", str(amount), detail)


def _parse_amounts(amounts: Quantities, path: str, errors: ErrorList) -> dict[str, Quantity]:
    parsed = {}
    for name, value in amounts.items():
        where = f"{path}.{name}"
        try:
            amount = quantity.parse(value)
        except QuantityError as error:
            errors.invalid(where, value, f"{error}: {quantity_advice(value)}")
            continue
        parsed[name] = amount
        if amount < quantity.ZERO:
            errors.invalid(where, str(amount), "must be greater than or equal to 0")
        elif not amount.is_whole and (name in _INTEGER_RESOURCES or is_extended(name)):
            errors.invalid(where, str(amount), "must be an integer")
    return parsed


def _hierarchy_error(queue: Queue, old: Queue | None, reader: ObjectReader) -> str:
    """Return the error of the legacy hierarchy annotations, or ``""``."""
    annotations = queue.metadata.annotations
    path, weights = annotations.get(HIERARCHY, ""), annotations.get(HIERARCHY_WEIGHTS, "")
    if not path and not weights:
        return ""
    names, weight_list = path.split("/"), weights.split("/")
    if not path or not weights or len(names) != len(weight_list):
        return (
            f"{HIERARCHY} must have the same length with {HIERARCHY_WEIGHTS}:"
            f" {quote(path)}, {quote(weights)}"
        )
    for weight in weight_list:
        if error := _weight_error(weight, weights):
            return f"{HIERARCHY_WEIGHTS}: {error}"
    is_new = old is None or old.metadata.annotations.get(HIERARCHY) != path
    for name, other in _other_hierarchy_paths(queue.metadata.name, reader.list(QUEUES)):
        if other.startswith(f"{path}/"):
            return (
                f"{path} is not allowed to be in the sub path of {other} of queue {name}:"
                " a path ends at a leaf"
            )
        # Volcano allows such paths; a queue that has one can still be updated.
        if is_new and other != ROOT_QUEUE and path.startswith(f"{other}/"):
            return (
                f"{path} is not allowed to be in the sub path of {other} of queue {name}:"
                " that queue is a leaf"
            )
    return ""


def _weight_error(weight: str, weights: str) -> str:
    """Return the error of *weight*, one of the hierarchy *weights*, or ``""``."""
    try:
        number = float(weight)
    except ValueError:
        return f"{weight} in the {weights} is invalid number: {quote(weight)}"
    if not math.isfinite(number):
        return f"{weight} in the {weights} is invalid number: it must be finite"
    return "" if number > 0 else f"{weight} in the {weights} must be larger than 0"


def _other_hierarchy_paths(own: str, queues: Iterable[Json]) -> Iterator[tuple[str, str]]:
    for queue in queues:
        metadata = nested_object(queue, "metadata")
        path = nested_object(metadata, "annotations").get(HIERARCHY)
        if metadata.get("name") != own and isinstance(path, str):
            yield str(metadata.get("name")), path
