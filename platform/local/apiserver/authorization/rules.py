"""Policy rules of RBAC as values: what they match, and which rules cover which."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ..errors.fields import quote

ALL = "*"


class Attributes(NamedTuple):
    """What a request does: the object of a decision. A non-resource request has only a *path*."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    name: str = ""
    namespace: str = ""
    path: str = ""
    node: str = ""
    """The only value of ``spec.nodeName`` that the field selector of a list or watch allows."""


class Decision(NamedTuple):
    """Whether a request is allowed, and why, as SubjectAccessReviews show it."""

    allowed: bool
    reason: str = ""


class PolicyRule(NamedTuple):
    """One rule of a Role or ClusterRole."""

    verbs: tuple[str, ...] = ()
    api_groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    resource_names: tuple[str, ...] = ()
    non_resource_urls: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, rule: dict[str, Any]) -> "PolicyRule":
        """Return the rule of its JSON."""
        return cls(*(tuple(rule.get(name) or ()) for name in _FIELDS))

    def to_json(self) -> dict[str, Any]:
        """Return the JSON of the rule, without empty fields."""
        return {name: list(values) for name, values in zip(_FIELDS, self, strict=True) if values}

    def allows(self, attributes: Attributes) -> bool:
        """Return whether the rule matches, apart from its resource names."""
        if not (ALL in self.verbs or attributes.verb in self.verbs):
            return False
        if attributes.path:
            return any(_url_covers(url, attributes.path) for url in self.non_resource_urls)
        return (
            ALL in self.api_groups or attributes.group in self.api_groups
        ) and self._has_resource(attributes.resource, attributes.subresource)

    def _has_resource(self, resource: str, subresource: str) -> bool:
        if ALL in self.resources:
            return True
        if not subresource:
            return resource in self.resources
        return f"{resource}/{subresource}" in self.resources or f"*/{subresource}" in self.resources

    def covers(self, other: "PolicyRule") -> bool:
        """Return whether the rule grants all of *other*, a rule of `break_down`."""
        return (
            _has_all(self.verbs, other.verbs)
            and _has_all(self.api_groups, other.api_groups)
            and all(self._covers_resource(each) for each in other.resources)
            and all(
                any(_url_covers(own, url) for own in self.non_resource_urls)
                for url in other.non_resource_urls
            )
            and (
                not self.resource_names
                or (
                    bool(other.resource_names) and {*other.resource_names} <= {*self.resource_names}
                )
            )
        )

    def _covers_resource(self, path: str) -> bool:
        if ALL in self.resources or path in self.resources:
            return True
        _, slash, subresource = path.partition("/")
        return bool(slash) and f"*/{subresource}" in self.resources

    def break_down(self) -> Iterator["PolicyRule"]:
        """Yield rules of one verb, resource and name each, which together grant the same."""
        for group in self.api_groups:
            for resource in self.resources:
                for verb in self.verbs:
                    for name in self.resource_names or (None,):
                        named = () if name is None else (name,)
                        yield PolicyRule((verb,), (group,), (resource,), named)
        for url in self.non_resource_urls:
            for verb in self.verbs:
                yield PolicyRule((verb,), non_resource_urls=(url,))

    def describe(self) -> str:
        """Return the rule as kube-apiserver names it in errors."""
        shown = (
            ("APIGroups", self.api_groups),
            ("Resources", self.resources),
            ("NonResourceURLs", self.non_resource_urls),
            ("ResourceNames", self.resource_names),
            ("Verbs", self.verbs),
        )
        return f"{{{', '.join(f'{name}:{quoted(each)}' for name, each in shown if each)}}}"


_FIELDS = ("verbs", "apiGroups", "resources", "resourceNames", "nonResourceURLs")

FULL_AUTHORITY = (
    PolicyRule((ALL,), (ALL,), (ALL,)),
    PolicyRule((ALL,), non_resource_urls=(ALL,)),
)
"""The rules of a cluster admin."""


def missing_rules(owned: Iterable[PolicyRule], wanted: Iterable[PolicyRule]) -> list[PolicyRule]:
    """Return what *wanted* grants beyond *owned*; rules that differ by verb alone are joined."""
    owned = tuple(owned)
    verbs: dict[tuple[Any, ...], list[str]] = {}
    urls = []
    for rule in wanted:
        for each in rule.break_down():
            if any(own.covers(each) for own in owned):
                continue
            if each.non_resource_urls:
                urls.append(each)
            else:
                verbs.setdefault(each[1:], []).extend(each.verbs)
    return urls + [PolicyRule(tuple(found), *rest) for rest, found in verbs.items()]


def quoted(values: Iterable[str]) -> str:
    """Return *values* as Go's format %q shows a list of strings."""
    return f"[{' '.join(map(quote, values))}]"


def _has_all(own: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    return ALL in own or all(each in own for each in wanted)


def _url_covers(own: str, path: str) -> bool:
    return own == path or (own.endswith(ALL) and path.startswith(own.rstrip(ALL)))
