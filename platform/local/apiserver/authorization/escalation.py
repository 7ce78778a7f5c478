"""Checks of writes of roles and bindings: no user grants more than their own rights.

Exempt are members of ``system:masters``, and users with the right to ``escalate`` the role, or to
``bind`` the role of a binding.
"""

from typing import Any, NamedTuple

from ....model.names import Resource
from ..errors.status import forbidden, not_found
from ..http.auth import MASTERS_GROUP, User
from ..kinds.groups import RBAC
from .authorizer import Authorizer
from .rules import FULL_AUTHORITY, Attributes, PolicyRule, missing_rules, quoted

Json = dict[str, Any]

_AGGREGATION_DENIED = "must have cluster-admin privileges to use the aggregationRule"
_FIELDS_OF_COLLECTION = ("ownerReferences", "finalizers", "managedFields")
"""Metadata that the garbage collector may change in every object."""


class RoleWrite(NamedTuple):
    """A create or an update of an object of RBAC."""

    resource: Resource
    namespace: str
    requested_name: str
    """Name in the path of the request; empty for creates."""

    old: Json | None
    new: Json


def check_escalation(authorizer: Authorizer, user: User, write: RoleWrite) -> None:
    """Check that *user* may write a role or binding with this content.

    Raises:
        StatusError: 403, it grants what *user* has not; 404, the role of a binding does not exist.
    """
    if MASTERS_GROUP in user.groups:
        return
    if write.old is not None and _without_collection(write.old) == _without_collection(write.new):
        return
    if write.resource.plural in ("roles", "clusterroles"):
        _check_role(authorizer, user, write)
    else:
        _check_binding(authorizer, user, write)


def _check_role(authorizer: Authorizer, user: User, write: RoleWrite) -> None:
    plural = write.resource.plural
    escalate = Attributes("escalate", RBAC, plural, "", write.requested_name, write.namespace)
    if authorizer.authorize(user, escalate).allowed:
        return
    rules = [PolicyRule.from_json(rule) for rule in write.new.get("rules") or ()]
    _check_held(authorizer, user, write, rules)
    if any(_aggregates(each) for each in (write.old, write.new)):
        owned = authorizer.rules_of(user, "")
        if missing_rules(owned, FULL_AUTHORITY):
            raise forbidden(write.resource, _name(write), _AGGREGATION_DENIED)


def _check_binding(authorizer: Authorizer, user: User, write: RoleWrite) -> None:
    role = write.new.get("roleRef") or {}
    kind, name = role.get("kind", ""), role.get("name", "")
    if kind not in ("Role", "ClusterRole"):
        return  # validation rejects it
    plural = f"{kind.lower()}s"
    bind = Attributes("bind", role.get("apiGroup", ""), plural, "", name, write.namespace)
    if authorizer.authorize(user, bind).allowed:
        return
    rules = authorizer.role_rules(kind, write.namespace if kind == "Role" else "", name)
    if rules is None:
        raise not_found(write.resource, name)  # so kube-apiserver names it
    _check_held(authorizer, user, write, rules)


def _check_held(
    authorizer: Authorizer,
    user: User,
    write: RoleWrite,
    rules: list[PolicyRule] | tuple[PolicyRule, ...],
) -> None:
    missing = missing_rules(authorizer.rules_of(user, write.namespace), rules)
    if missing:
        raise forbidden(write.resource, _name(write), _not_held(user, missing))


def _not_held(user: User, missing: list[PolicyRule]) -> str:
    lines = sorted({rule.describe() for rule in missing})
    held_by = f"user {quoted((user.name,))[1:-1]} (groups={quoted(user.groups)})"
    problem = "is attempting to grant RBAC permissions not currently held"
    return f"{held_by} {problem}:\n" + "\n".join(lines)


def _name(write: RoleWrite) -> str:
    name: str = write.new["metadata"].get("name", "")
    return name


def _aggregates(role: Json | None) -> bool:
    return bool(((role or {}).get("aggregationRule") or {}).get("clusterRoleSelectors"))


def _without_collection(obj: Json) -> Json:
    metadata = {
        name: value for name, value in obj["metadata"].items() if name not in _FIELDS_OF_COLLECTION
    }
    return {**obj, "metadata": metadata}
