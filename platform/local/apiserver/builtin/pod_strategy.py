"""Validation of pod updates: few fields may change, because a kubelet runs the pod."""

from collections.abc import Iterator
from typing import Any

from ..errors.fields import IMMUTABLE, FieldError, forbidden, invalid, quote
from ..kinds.info import SubresourceStrategy
from ..kinds.metadata import validate_annotations
from .addresses import address_error
from .known_pod_specs import validate_new_pod_spec
from .pod_claims import pod_claim_status_errors
from .pod_validation import validate_pod_spec

Json = dict[str, Any]

_UPDATE_ERROR = (
    "pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only "
    "additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set "
    "to 1 if it was previously negative)"
)
_CONTAINER_LISTS = ("containers", "initContainers")


def prepare_pod_for_update(pod: Json, old: Json) -> None:
    """Keep the class by which a pod is guarded when memory runs short: it never changes."""
    kept = old.get("status", {}).get("qosClass")
    if kept and "status" in pod:
        pod["status"].setdefault("qosClass", kept)


def validate_pod(pod: Json, old: Json | None) -> list[FieldError]:
    """Validate a pod, or with *old* an update of it."""
    spec = pod.get("spec", {})
    if old is None:
        return [*validate_new_pod_spec(spec), *_validate_create(pod)]
    before = old.get("spec", {})
    if spec == before:
        # Unchanged specs are not validated again: status updates are most of the traffic.
        return [
            *validate_annotations(pod["metadata"].get("annotations"), "metadata.annotations"),
            *pod_claim_status_errors(pod),
            *_status_errors(pod.get("status") or {}, old.get("status") or {}),
        ]
    return [*validate_pod_spec(spec, "spec"), *_validate_update(spec, before)]


def _status_errors(status: Json, old: Json) -> Iterator[FieldError]:
    if status == old:
        return
    before, quality = old.get("qosClass"), status.get("qosClass")
    if before and quality != before:
        yield invalid("status.qosClass", quality, IMMUTABLE)
    if (observed := status.get("observedGeneration", 0)) < 0:
        yield invalid("status.observedGeneration", observed, "must be a non-negative integer")
    for index, each in enumerate(status.get("hostIPs") or ()):
        path, address = f"status.hostIPs[{index}]", each.get("ip", "")
        if index == 0 and address != status.get("hostIP", ""):
            yield invalid(f"{path}.ip", address, "must be equal to `hostIP`")
        if problem := address_error(address):
            yield invalid(path, address, problem)


def _keep_all_but_ephemeral_containers(pod: Json, old: Json) -> None:
    containers = pod.get("spec", {}).get("ephemeralContainers")
    pod["spec"] = {key: old["spec"][key] for key in old["spec"] if key != "ephemeralContainers"}
    if containers:
        pod["spec"]["ephemeralContainers"] = containers


def _validate_ephemeral_containers_update(pod: Json, old: Json) -> list[FieldError]:
    return [*validate_pod_spec(pod["spec"], "spec"), *_changed_ephemeral_containers(pod, old)]


def _changed_ephemeral_containers(pod: Json, old: Json) -> Iterator[FieldError]:
    path = "spec.ephemeralContainers"
    by_name = {each.get("name"): each for each in pod["spec"].get("ephemeralContainers", ())}
    for before in old["spec"].get("ephemeralContainers", ()):
        found, name = by_name.get(before["name"]), quote(before["name"])
        if found is None:
            yield forbidden(path, f"existing ephemeral containers {name} may not be removed\n")
        elif found != before:
            yield forbidden(path, f"existing ephemeral containers {name} may not be changed\n")


EPHEMERAL_CONTAINERS = SubresourceStrategy(
    _keep_all_but_ephemeral_containers, _validate_ephemeral_containers_update
)


def _validate_create(pod: Json) -> list[FieldError]:
    """Validate what is rejected at creation only."""
    spec = pod.get("spec", {})
    errors = []
    if spec.get("ephemeralContainers"):
        errors.append(forbidden("spec.ephemeralContainers", "cannot be set on create"))
    if spec.get("schedulingGates") and spec.get("nodeName"):
        text = "cannot be set until all schedulingGates have been cleared"
        errors.append(forbidden("spec.nodeName", text))
    return errors


def _validate_update(spec: Json, old: Json) -> list[FieldError]:
    errors: list[FieldError] = []
    for name in _CONTAINER_LISTS:
        if len(spec.get(name) or ()) != len(old.get(name) or ()):
            text = "pod updates may not add or remove containers"
            return [forbidden(f"spec.{name}", text)]
    errors += _validate_deadline(spec, old)
    errors += _validate_gates(spec, old)
    if _immutable_fields(spec, old) != _immutable_fields(old, old):
        errors.append(forbidden("spec", _UPDATE_ERROR))
    return errors


def _validate_deadline(spec: Json, old: Json) -> list[FieldError]:
    new_value, old_value = spec.get("activeDeadlineSeconds"), old.get("activeDeadlineSeconds")
    if old_value is None or new_value == old_value:
        return []
    path = "spec.activeDeadlineSeconds"
    if new_value is None:
        return [forbidden(path, "must not update from a positive integer to nil value")]
    if new_value > old_value:
        text = f"must be less than or equal to previous value {old_value}"
        return [invalid(path, new_value, text)]
    return []


def _validate_gates(spec: Json, old: Json) -> list[FieldError]:
    before = {gate.get("name") for gate in old.get("schedulingGates", ())}
    text = "only deletion is allowed, but found new scheduling gate"
    return [
        forbidden(f"spec.schedulingGates[{index}].name", f"{text} '{gate.get('name')}'")
        for index, gate in enumerate(spec.get("schedulingGates", ()))
        if gate.get("name") not in before
    ]


def _immutable_fields(spec: Json, old: Json) -> Json:
    """Return the immutable fields of *spec*: the others are removed, or set as in *old*."""
    apart = {"activeDeadlineSeconds", "schedulingGates", *_CONTAINER_LISTS}
    rest = {key: value for key, value in spec.items() if key not in apart}
    for name in _CONTAINER_LISTS:
        rest[name] = [{**container, "image": ""} for container in spec.get(name) or ()]
    # A list that may only grow.
    kept = {frozenset(each.items()) for each in spec.get("tolerations", ())}
    rest["tolerations"] = [
        each for each in old.get("tolerations", ()) if frozenset(each.items()) in kept
    ]
    if rest.get("terminationGracePeriodSeconds") == 1 and old["terminationGracePeriodSeconds"] < 0:
        rest["terminationGracePeriodSeconds"] = old["terminationGracePeriodSeconds"]
    if old.get("schedulingGates"):
        _allow_stricter(rest, old)
    return rest


def _allow_stricter(rest: Json, old: Json) -> None:
    """Check that a gated pod only narrows its node selection: no selector may be removed."""
    kept = old.get("nodeSelector", {})
    if kept.items() <= rest.get("nodeSelector", {}).items():
        rest.pop("nodeSelector", None)
        if kept:
            rest["nodeSelector"] = kept
    if "affinity" not in old:
        rest.pop("affinity", None)
