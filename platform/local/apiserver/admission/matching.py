"""Which writes a webhook or policy applies to: its rules and selectors."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ....model.meta import LabelSelector
from ....model.names import NAMESPACES, Resource
from ....model.selectors import Selector, from_label_selector
from ..errors.status import not_found
from ..http.requests import Json
from ..kinds.groups import ADMISSION
from ..kinds.info import KindInfo
from .attributes import AdmissionAttributes

NamespaceReader = Callable[[str], Json | None]
"""Returns a namespace by its name, as the write under review finds it."""

_REVIEWS = ("authentication.k8s.io", "authorization.k8s.io")


def is_exempt(resource: Resource) -> bool:
    """Whether no webhook or policy applies to *resource*.

    The configurations themselves: a wrong one could not be repaired. Reviews, which are not stored.
    """
    return resource.group == ADMISSION or resource.group in _REVIEWS


class Rule(msgspec.Struct, frozen=True):
    """Operations on resources."""

    groups: frozenset[str]
    versions: frozenset[str]
    resources: tuple[tuple[str, str], ...]
    """Plural and subresource, each a name or ``*``; an empty subresource is the object itself."""

    operations: frozenset[str]
    scope: str
    names: frozenset[str]
    """Names of the objects; empty: any."""

    def matches(self, attributes: AdmissionAttributes, resource: Resource) -> bool:
        """Return whether the rule covers the write, taken as one of *resource*."""
        return (
            _has(self.operations, attributes.operation)
            and _has(self.groups, resource.group)
            and _has(self.versions, resource.version)
            and self._covers(resource.plural, attributes.object_path.subresource)
            and self._is_in_scope(resource)
            and (not self.names or attributes.name in self.names)
        )

    def _covers(self, plural: str, subresource: str) -> bool:
        return any(
            name in ("*", plural) and sub in ("*", subresource) for name, sub in self.resources
        )

    def _is_in_scope(self, resource: Resource) -> bool:
        return self.scope == "*" or (self.scope == "Namespaced") == resource.namespaced


def _has(items: frozenset[str], value: str) -> bool:
    return value in items or "*" in items


def _rule(rule: Json) -> Rule:
    resources = []
    for each in rule.get("resources") or ():
        plural, _, subresource = each.partition("/")
        resources.append((plural, subresource))
    return Rule(
        groups=frozenset(rule.get("apiGroups") or ()),
        versions=frozenset(rule.get("apiVersions") or ()),
        resources=tuple(resources),
        operations=frozenset(rule.get("operations") or ()),
        scope=rule.get("scope") or "*",
        names=frozenset(rule.get("resourceNames") or ()),
    )


class Match:
    """Rules and selectors of one webhook or policy."""

    def __init__(self, spec: Json, rules: Sequence[Json], *, excluded: Sequence[Json] = ()) -> None:
        """Compile *rules*, and the selectors in *spec*.

        Raises:
            SelectorError: a selector is invalid.
        """
        self._rules = tuple(map(_rule, rules))
        self._excluded = tuple(map(_rule, excluded))
        self._equivalent = spec.get("matchPolicy", "Equivalent") == "Equivalent"
        self._namespaces = _selector(spec.get("namespaceSelector"))
        self._objects = _selector(spec.get("objectSelector"))

    def resource_for(
        self,
        attributes: AdmissionAttributes,
        obj: Json | None,
        *,
        equivalents: Sequence[KindInfo],
        namespace: NamespaceReader,
    ) -> KindInfo | None:
        """Return the kind in which to review the write of *obj*; ``None`` if it does not apply.

        *equivalents* are the other versions of the kind that are served.

        Raises:
            StatusError: 404, there is no such namespace.
        """
        kind = self._matching_kind(attributes, equivalents)
        if kind is None:
            return None
        if self._namespaces.requirements and not self._is_namespace_selected(
            attributes, obj, namespace
        ):
            return None
        if self._objects.requirements and not any(
            self._objects.matches(labels_of(each))
            for each in (obj, attributes.old_object)
            if each is not None
        ):
            return None
        return kind

    def _matching_kind(
        self, attributes: AdmissionAttributes, equivalents: Sequence[KindInfo]
    ) -> KindInfo | None:
        kinds = (attributes.kind, *equivalents) if self._equivalent else (attributes.kind,)
        if any(
            rule.matches(attributes, kind.resource) for rule in self._excluded for kind in kinds
        ):
            return None
        if any(rule.matches(attributes, attributes.kind.resource) for rule in self._rules):
            return attributes.kind
        # Earlier rules take precedence over earlier versions.
        for rule in self._rules:
            for kind in kinds[1:]:
                if rule.matches(attributes, kind.resource):
                    return kind
        return None

    def _is_namespace_selected(
        self, attributes: AdmissionAttributes, obj: Json | None, namespace: NamespaceReader
    ) -> bool:
        name = attributes.review_namespace
        if not name:
            return True
        if attributes.kind.resource == NAMESPACES and obj is not None:
            return self._namespaces.matches(labels_of(obj))
        found = namespace(name)
        if found is None:
            raise not_found(NAMESPACES, name)
        return self._namespaces.matches(labels_of(found))


def labels_of(obj: Json) -> Mapping[str, str]:
    """Return the labels of an object."""
    return (obj.get("metadata") or {}).get("labels") or {}


def _selector(selector: Any) -> Selector:
    return from_label_selector(msgspec.convert(selector or {}, LabelSelector))
