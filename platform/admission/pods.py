"""Defaulting and validation of pod annotations on create."""

from ..model.admission import AdmissionRequest, DeniedError, Json, nested_list, nested_object
from ..model.field_errors import quote
from ..model.names import QUEUE_GATE
from .settings import AdmissionSettings

JDB_ANNOTATIONS = ("volcano.sh/jdb-min-available", "volcano.sh/jdb-max-unavailable")
"""Disruption budget of a job: pods that must stay available, or may be unavailable."""


def validate(request: AdmissionRequest, settings: AdmissionSettings) -> None:
    """Validate a new pod; pods of other schedulers are allowed.

    Reads the raw object, since pods are created in large numbers.

    Raises:
        DeniedError: an annotation is neither a positive number nor a percentage, or both are set.
    """
    pod = request.object or {}
    if nested_object(pod, "spec").get("schedulerName") not in settings.scheduler_names:
        return
    annotations = nested_object(nested_object(pod, "metadata"), "annotations")
    given = [key for key in JDB_ANNOTATIONS if key in annotations]
    for key in given:
        if error := _amount_error(key, str(annotations[key])):
            raise DeniedError(error)
    if len(given) > 1:
        both = f"[{' '.join(given)}]"
        raise DeniedError(f"not allow configure multiple annotations <{both}> at same time")


def with_queue_gate(pod: Json, settings: AdmissionSettings) -> Json:
    """Return *pod* with the queue's scheduling gate if its annotation requests it.

    Only for pods of Batholith's schedulers: other schedulers would never remove the gate.
    """
    spec = nested_object(pod, "spec")
    annotations = nested_object(nested_object(pod, "metadata"), "annotations")
    if (
        annotations.get(QUEUE_GATE) != "true"
        or spec.get("schedulerName") not in settings.scheduler_names
    ):
        return pod
    gate, gates = {"name": QUEUE_GATE}, nested_list(spec, "schedulingGates")
    return pod if gate in gates else pod | {"spec": spec | {"schedulingGates": [*gates, gate]}}


def _amount_error(key: str, text: str) -> str:
    number, percent = text.removesuffix("%"), text.endswith("%")
    invalid = f"invalid value <{quote(text)}> for {key}, it must be a"
    if not (number.isascii() and number.lstrip("+-").isdigit()):
        return f"invalid type: neither int nor percentage for {key}: {quote(text)}"
    if percent and not 0 < int(number) < 100:
        return f"{invalid} valid percentage which between 1% ~ 99%"
    if not percent and int(number) <= 0:
        return f"{invalid} positive integer"
    return ""
