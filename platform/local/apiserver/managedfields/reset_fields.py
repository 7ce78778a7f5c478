"""Fields that a write ignores, so that its manager does not own them."""

from ....model import names
from ..kinds.info import KindInfo
from .fieldsets import FieldSet

_STATUS: FieldSet = {"f:status": {}}
_SPEC: FieldSet = {"f:spec": {}}
_METADATA_AND_SPEC: FieldSet = {"f:metadata": {}, "f:spec": {}}

_CSR = ("certificates.k8s.io", "certificatesigningrequests")
_OF_MAIN: dict[tuple[str, str], FieldSet] = {_CSR: {"f:spec": {}, "f:status": {}}}
"""Where writes of the object itself ignore more than the status."""

_OF_STATUS: dict[tuple[str, str], FieldSet] = {
    ("", "pods"): {
        "f:spec": {},
        "f:metadata": {"f:deletionTimestamp": {}, "f:ownerReferences": {}},
    },
    ("apps", "deployments"): {"f:spec": {}, "f:metadata": {"f:labels": {}}},
    _CSR: {"f:spec": {}, "f:status": {"f:conditions": {}}},
    ("flowcontrol.apiserver.k8s.io", "flowschemas"): _METADATA_AND_SPEC,
    ("flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations"): _METADATA_AND_SPEC,
    ("storage.k8s.io", "volumeattachments"): _METADATA_AND_SPEC,
    ("admissionregistration.k8s.io", "validatingadmissionpolicies"): _METADATA_AND_SPEC,
    ("apiregistration.k8s.io", "apiservices"): _METADATA_AND_SPEC,
    ("resource.k8s.io", "devicetaintrules"): _METADATA_AND_SPEC,
    ("resource.k8s.io", "resourceclaims"): _METADATA_AND_SPEC,
}
"""Where writes of the status ignore more than the spec."""


def reset_fields(kind: KindInfo, subresource: str) -> FieldSet:
    """Return the fields that a write of an object, or of a subresource of it, ignores."""
    resource = kind.resource
    key = resource.group, resource.plural
    if subresource == "status":
        return _METADATA_AND_SPEC if kind.custom else _OF_STATUS.get(key, _SPEC)
    if subresource == "approval":
        return {"f:spec": {}, "f:status": {"f:certificate": {}}}
    if subresource == "finalize" and resource == names.NAMESPACES:
        return _STATUS
    if subresource or not kind.has_status:
        return {}
    return _OF_MAIN.get(key, _STATUS)
