"""What the annotations of a pod of ours mean when it is created, and must fulfil."""

from ..model.admission import AdmissionRequest, DeniedError, Json
from ..model.names import QUEUE_GATE
from .decoding import nested_list, nested_object
from .field_errors import quote
from .settings import AdmissionSettings

JDB_ANNOTATIONS = ("volcano.sh/jdb-min-available", "volcano.sh/jdb-max-unavailable")
"""How many pods of a job must stay up, or may go down, when others need their room."""


def validate(request: AdmissionRequest, settings: AdmissionSettings) -> None:
    """Check a pod that is to be created; pods of other schedulers pass.

    Pods come by the thousand, so this reads the raw object.

    Raises:
        DeniedError: an annotation is neither a number above 0 nor a percentage, or both are there.
    """
    pod = request.object or {}
    if nested_object(pod, "spec").get("schedulerName") not in settings.scheduler_names:
        return
    annotations = nested_object(nested_object(pod, "metadata"), "annotations")
    given = [key for key in JDB_ANNOTATIONS if key in annotations]
    for key in given:
        if problem := _amount_error(key, str(annotations[key])):
            raise DeniedError(problem)
    if len(given) > 1:
        both = f"[{' '.join(given)}]"
        raise DeniedError(f"not allow configure multiple annotations <{both}> at same time")


def with_queue_gate(pod: Json, settings: AdmissionSettings) -> Json:
    """*pod* with the gate of its queue, if its annotation asks for it.

    Only if one of our schedulers places it: nobody else would ever lift the gate.
    """
    spec = nested_object(pod, "spec")
    asks = nested_object(nested_object(pod, "metadata"), "annotations").get(QUEUE_GATE) == "true"
    if not asks or spec.get("schedulerName") not in settings.scheduler_names:
        return pod
    gate, there = {"name": QUEUE_GATE}, nested_list(spec, "schedulingGates")
    return pod if gate in there else pod | {"spec": spec | {"schedulingGates": [*there, gate]}}


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
