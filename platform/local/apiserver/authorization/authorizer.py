"""The authorizer: kubelets by what their pods need, and all users by the stored roles and bindings.

It observes the committed changes of the store, and keeps for each user and namespace the rules that
apply and their decisions, until a role or binding changes there.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..errors.status import StatusError, denied
from ..http.auth import MASTERS_GROUP, User
from ..kinds.groups import RBAC
from ..storage.resource_store import ResourceStore
from ..storage.stored_objects import DELETED, StoredObject, WatchEvent
from .node_authorizer import NodeAuthorizer, node_of
from .rules import Attributes, Decision, PolicyRule

Json = dict[str, Any]

_CACHED_GRANTS = 2_000
"""Pairs of user and namespace whose rules are kept: one client may impersonate many users."""

_CACHED_DECISIONS = 1_000
"""Decisions that are kept for each pair."""

_SERVICE_ACCOUNT_PREFIX = "system:serviceaccount:"


class Binding(NamedTuple):
    """A RoleBinding or ClusterRoleBinding."""

    kind: str
    namespace: str
    name: str
    role: tuple[str, str, str]
    """Kind, namespace and name of the role."""

    subjects: dict[tuple[str, str], str]
    """User and group names with their kind, and how reasons describe the subject."""


@dataclass(slots=True)
class _Grants:
    """The rules of one user in one namespace, or at the cluster scope."""

    rules: list[tuple[str, PolicyRule]] = field(default_factory=list)
    """Each with the reason of what it allows."""

    errors: list[str] = field(default_factory=list)
    """Roles of bindings that do not exist."""

    decisions: dict[tuple[str, ...], tuple[str | None, dict[str, str]]] = field(
        default_factory=dict
    )
    """By attributes without a name: the reason for all names, and those for single names."""


class Authorizer:
    """Decides what users may do."""

    def __init__(
        self,
        *,
        roles: ResourceStore,
        role_bindings: ResourceStore,
        cluster_roles: ResourceStore,
        cluster_role_bindings: ResourceStore,
        nodes: NodeAuthorizer,
    ) -> None:
        self._nodes = nodes
        self._role_stores = {id(roles): "Role", id(cluster_roles): "ClusterRole"}
        self._binding_stores = {
            id(role_bindings): "RoleBinding",
            id(cluster_role_bindings): "ClusterRoleBinding",
        }
        self._stores = (roles, role_bindings, cluster_roles, cluster_role_bindings)
        self._roles: dict[tuple[str, str, str], StoredObject] = {}
        """By kind, namespace and name; parsed when they are needed, which most never are."""
        self._bindings: dict[str, dict[tuple[str, str], dict[str, Binding]]] = {}
        """By namespace (empty: of the cluster), subject and name."""
        self._grants: dict[tuple[str, tuple[str, ...], str], _Grants] = {}

    def rebuild(self) -> None:
        """Read all roles and bindings."""
        self._roles.clear()
        self._bindings.clear()
        self._grants.clear()
        for store in self._stores:
            for entry in store.entries():
                self._add(store, entry)

    def observe(self, resource_store: ResourceStore, event: WatchEvent) -> None:
        """Apply a committed change."""
        if resource_store not in self._stores:
            return
        if event.previous is not None:
            self._remove(resource_store, event.previous)
        if event.type != DELETED:
            self._add(resource_store, event.entry)
        namespace = event.entry.namespace
        if namespace:
            for key in [key for key in self._grants if key[2] == namespace]:
                del self._grants[key]
        else:
            self._grants.clear()

    def authorize(self, user: User, attributes: Attributes) -> Decision:
        """Return whether *user* may do what *attributes* describe."""
        if MASTERS_GROUP in user.groups:
            return Decision(True)
        node = node_of(user)
        if node is None:
            return self._authorize_by_roles(user, attributes)
        decision = self._nodes.authorize(node, attributes)
        if decision.allowed:
            return decision
        by_roles = self._authorize_by_roles(user, attributes)
        if by_roles.allowed:
            return by_roles
        reasons = filter(None, (decision.reason, by_roles.reason))
        return Decision(False, "\n".join(reasons))

    def _authorize_by_roles(self, user: User, attributes: Attributes) -> Decision:
        grants = self._grants_of(user, attributes.namespace)
        verb, group, resource, subresource, name, _, path, _ = attributes
        key = verb, group, resource, subresource, path
        found = grants.decisions.get(key)
        if found is None:
            if len(grants.decisions) >= _CACHED_DECISIONS:
                grants.decisions.clear()
            found = grants.decisions[key] = _decide(grants, attributes)
        reason, named = found
        if reason is None:
            reason = named.get(name)
        if reason is not None:
            return Decision(True, reason)
        errors = list(dict.fromkeys(grants.errors))
        if not errors:
            return Decision(False)
        text = errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]"
        return Decision(False, f"RBAC: {text}")

    def check(self, user: User, attributes: Attributes) -> None:
        """Raise StatusError 403 unless *user* may do what *attributes* describe."""
        decision = self.authorize(user, attributes)
        if not decision.allowed:
            raise forbidden(user, attributes, decision.reason)

    def rules_of(self, user: User, namespace: str) -> list[PolicyRule]:
        """Return the rules that apply to *user* in *namespace*, or at the cluster scope."""
        return [rule for _, rule in self._grants_of(user, namespace).rules]

    def role_rules(self, kind: str, namespace: str, name: str) -> tuple[PolicyRule, ...] | None:
        """Return the rules of a role; ``None`` if it does not exist."""
        entry = self._roles.get((kind, namespace, name))
        if entry is None:
            return None
        return tuple(map(PolicyRule.from_json, entry.parse().get("rules") or ()))

    def _grants_of(self, user: User, namespace: str) -> _Grants:
        key = user.name, user.groups, namespace
        grants = self._grants.get(key)
        if grants is None:
            if len(self._grants) >= _CACHED_GRANTS:
                self._grants.clear()
            grants = self._grants[key] = self._collect(user, namespace)
        return grants

    def _collect(self, user: User, namespace: str) -> _Grants:
        grants = _Grants()
        for binding, subject in self._applying(user, namespace):
            kind, role_namespace, role = binding.role
            rules = self.role_rules(*binding.role)
            if rules is None:
                grants.errors.append(role_not_found(kind, role))
                continue
            where = f"{binding.name}/{binding.namespace}" if binding.namespace else binding.name
            named = f"{role}/{role_namespace}" if role_namespace else role
            reason = f'RBAC: allowed by {binding.kind} "{where}" of {kind} "{named}" to {subject}'
            grants.rules += [(reason, rule) for rule in rules]
        return grants

    def _applying(self, user: User, namespace: str) -> Iterator[tuple[Binding, str]]:
        """Yield each binding of *user* once, those of the cluster first."""
        subjects = [("User", user.name), *(("Group", group) for group in user.groups)]
        for scope in ("", namespace) if namespace else ("",):
            by_subject = self._bindings.get(scope, {})
            seen: set[str] = set()
            for subject in subjects:
                for name, binding in by_subject.get(subject, {}).items():
                    if name not in seen:
                        seen.add(name)
                        yield binding, binding.subjects[subject]

    def _add(self, store: ResourceStore, entry: StoredObject) -> None:
        kind = self._role_stores.get(id(store))
        if kind is not None:
            self._roles[kind, entry.namespace, entry.name] = entry
            return
        binding = _read_binding(self._binding_stores[id(store)], entry)
        by_subject = self._bindings.setdefault(entry.namespace, {})
        for subject in binding.subjects:
            by_subject.setdefault(subject, {})[entry.name] = binding

    def _remove(self, store: ResourceStore, entry: StoredObject) -> None:
        kind = self._role_stores.get(id(store))
        if kind is not None:
            self._roles.pop((kind, entry.namespace, entry.name), None)
            return
        by_subject = self._bindings.get(entry.namespace, {})
        for subject in _read_binding(self._binding_stores[id(store)], entry).subjects:
            bindings = by_subject.get(subject, {})
            bindings.pop(entry.name, None)
            if not bindings:
                by_subject.pop(subject, None)
        if not by_subject:
            self._bindings.pop(entry.namespace, None)


def forbidden(user: User, attributes: Attributes, reason: str = "") -> StatusError:
    """Return the error of a denied request."""
    return denied(
        user.name,
        verb=attributes.verb,
        path=attributes.path,
        group=attributes.group,
        plural=attributes.resource,
        subresource=attributes.subresource,
        name=attributes.name,
        namespace=attributes.namespace,
        reason=reason,
    )


def role_not_found(kind: str, name: str) -> str:
    """Return the text of the error that the role of a binding does not exist."""
    return f'{kind.lower()}.{RBAC} "{name}" not found'


def _decide(grants: _Grants, attributes: Attributes) -> tuple[str | None, dict[str, str]]:
    named: dict[str, str] = {}
    for reason, rule in grants.rules:
        if rule.allows(attributes):
            if not rule.resource_names or attributes.path:
                return reason, named
            for name in rule.resource_names:
                named.setdefault(name, reason)
    return None, named


def _read_binding(kind: str, entry: StoredObject) -> Binding:
    obj = entry.parse()
    role = obj.get("roleRef") or {}
    role_kind = role.get("kind", "")
    subjects: dict[tuple[str, str], str] = {}
    for subject in obj.get("subjects") or ():
        key, description = _subject(subject, entry.namespace)
        if key is not None:
            subjects.setdefault(key, description)
    return Binding(
        kind,
        entry.namespace,
        entry.name,
        (role_kind, entry.namespace if role_kind == "Role" else "", role.get("name", "")),
        subjects,
    )


def _subject(subject: Json, namespace: str) -> tuple[tuple[str, str] | None, str]:
    kind, name = subject.get("kind", ""), subject.get("name", "")
    if kind in ("User", "Group"):
        return (kind, name), f'{kind} "{name}"'
    namespace = subject.get("namespace") or namespace
    if kind != "ServiceAccount" or not namespace:
        return None, ""
    described = f'{kind} "{name}/{namespace}"'
    return ("User", f"{_SERVICE_ACCOUNT_PREFIX}{namespace}:{name}"), described
