"""Who may get which devices: administrators' access, allocations, and the state of devices.

An allocation decides which devices a kubelet gives to a pod, so ``/status`` of a claim alone does
not suffice to write it; and a claim with administrators' access gets devices that others use.
"""

from typing import Any

from ....model.names import RESOURCECLAIMS, RESOURCECLAIMTEMPLATES, Resource
from ..errors.fields import FieldError
from ..errors.fields import forbidden as forbidden_field
from ..http.auth import User
from ..kinds.groups import RESOURCE
from .authorizer import Authorizer
from .rules import Attributes

Json = dict[str, Any]

_ADMIN_LABEL = "resource.kubernetes.io/admin-access"
_VERBS = ("update", "patch")
_OF_SCHEDULER = ("allocation", "reservedFor")


def admin_access_errors(resource: Resource, obj: Json, namespace: Json | None) -> list[FieldError]:
    """Reject a new claim or template with administrators' access outside of their namespaces."""
    spec, path = obj.get("spec") or {}, "spec.devices.requests"
    if resource == RESOURCECLAIMTEMPLATES:
        spec, path = spec.get("spec") or {}, "spec.spec.devices.requests"
    requests = (spec.get("devices") or {}).get("requests") or []
    wanted = [(each.get("exactly") or {}).get("adminAccess") for each in requests]
    return _admin_errors(wanted, path, namespace)


def status_errors(
    authorizer: Authorizer, user: User, obj: Json, old: Json, namespace: Json | None
) -> list[FieldError]:
    """Reject a write of the status of a claim that *user* has no right to."""
    status, before = obj.get("status") or {}, old.get("status") or {}
    errors: list[FieldError] = []
    if not any(_results(before, "adminAccess")):
        path = "status.allocation.devices.results"
        errors += _admin_errors(_results(status, "adminAccess"), path, namespace)
    if any(status.get(key) != before.get(key) for key in _OF_SCHEDULER) and not _may(
        authorizer, user, Attributes("", RESOURCE, RESOURCECLAIMS.plural, "binding"), _VERBS
    ):
        text = (
            "changing status.allocation or status.reservedFor requires "
            'resource="resourceclaims/binding" permission'
        )
        errors.append(forbidden_field("status.allocation", text))
    if status.get("allocation") is None:
        return errors
    for driver in _changed_drivers(status, before):
        meta = obj["metadata"]
        wanted = Attributes(
            "", RESOURCE, RESOURCECLAIMS.plural, "driver", driver, meta.get("namespace", "")
        )
        verbs = [f"arbitrary-node:{verb}" for verb in _VERBS]
        if _is_on_node_of(user, status):
            verbs += [f"associated-node:{verb}" for verb in _VERBS]
        if not _may(authorizer, user, wanted, verbs):
            text = (
                'changing status.devices requires resource="resourceclaims/driver", '
                f"verb={verbs} permission"
            )
            errors.append(forbidden_field("status.devices", text))
    return errors


def _admin_errors(wanted: list[Any], path: str, namespace: Json | None) -> list[FieldError]:
    if not any(wanted):
        return []
    labels = ((namespace or {}).get("metadata") or {}).get("labels") or {}
    if labels.get(_ADMIN_LABEL) == "true":
        return []
    text = (
        f"admin access to devices requires the `{_ADMIN_LABEL}: true` label on the containing "
        "namespace"
    )
    where = f"{path}[{[bool(each) for each in wanted].index(True)}].adminAccess"
    return [forbidden_field(where, text)]


def _results(status: Json, key: str) -> list[Any]:
    found = (status.get("allocation") or {}).get("devices") or {}
    return [each.get(key) for each in found.get("results") or ()]


def _may(
    authorizer: Authorizer, user: User, wanted: Attributes, verbs: tuple[str, ...] | list[str]
) -> bool:
    return any(authorizer.authorize(user, wanted._replace(verb=verb)).allowed for verb in verbs)


def _changed_drivers(status: Json, before: Json) -> list[str]:
    new, old = status.get("devices") or [], before.get("devices") or []
    return sorted(
        {each.get("driver", "") for each in new if each not in old}
        | {each.get("driver", "") for each in old if each not in new}
    )


def _is_on_node_of(user: User, status: Json) -> bool:
    """Return whether *user* is a service account of a pod on the node that the devices are for."""
    nodes = user.extra.get("authentication.kubernetes.io/node-name", ())
    terms = ((status["allocation"].get("nodeSelector") or {}).get("nodeSelectorTerms")) or []
    return len(nodes) == 1 and [nodes[0]] == [
        value
        for term in terms
        for field in term.get("matchFields") or ()
        if field.get("key") == "metadata.name" and not term.get("matchExpressions")
        for value in field.get("values") or ()
    ]
