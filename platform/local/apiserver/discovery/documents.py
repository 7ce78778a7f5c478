"""Discovery documents, aggregated and legacy."""

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ....model.names import NATIVE_PODGROUPS
from ..kinds.info import KindInfo, Subresource

Json = dict[str, Any]

_GROUP_ORDER = (
    "", "apiregistration.k8s.io", "apps", "events.k8s.io", "authentication.k8s.io",
    "authorization.k8s.io", "autoscaling", "batch", "certificates.k8s.io", "networking.k8s.io",
    "policy", "rbac.authorization.k8s.io", "storage.k8s.io", "admissionregistration.k8s.io",
    "apiextensions.k8s.io", "coordination.k8s.io", "node.k8s.io", "discovery.k8s.io",
    "resource.k8s.io", "flowcontrol.apiserver.k8s.io",
)  # fmt: skip

GROUP_HEAD: Json = {"kind": "APIGroup", "apiVersion": "v1"}


def aggregated_type(version: str) -> str:
    """Return the content type of :func:`aggregated` in a *version* of its API."""
    return f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"


def aggregated(kinds: Sequence[KindInfo], *, core: bool, version: str = "v2") -> Json:
    """Return the aggregated discovery of ``/api`` (*core*) or ``/apis``."""
    items = [
        {
            "metadata": {"name": group} if group else {},
            "versions": [
                {
                    "version": served,
                    "freshness": "Current",
                    "resources": [_aggregated_resource(kind) for kind in members],
                }
                for served, members in versions.items()
            ],
        }
        for group, versions in _by_group_version(kinds).items()
        if (group == "") is core
    ]
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"apidiscovery.k8s.io/{version}",
        "metadata": {},
        "items": items,
    }


def api_versions(address: str) -> Json:
    """Return ``/api``; *address* is the ``host:port`` of this server."""
    return {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    }


def group_list(kinds: Sequence[KindInfo]) -> Json:
    """Return ``/apis``."""
    groups = [
        _group(group, versions) for group, versions in _by_group_version(kinds).items() if group
    ]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def group(kinds: Sequence[KindInfo], name: str) -> Json | None:
    """Return ``/apis/<name>``; ``None`` if the group is not served."""
    versions = _by_group_version(kinds).get(name)
    if not versions or not name:
        return None
    return GROUP_HEAD | _group(name, versions)


def resource_list(kinds: Sequence[KindInfo], api_version: str) -> Json | None:
    """Return ``/api/v1`` or ``/apis/<group>/<version>``; ``None`` if it is not served."""
    members = [kind for kind in kinds if kind.resource.api_version == api_version]
    if not members:
        return None
    resources = [entry for kind in members for entry in _api_resources(kind)]
    head = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version}
    return {**head, "resources": resources}


def _by_group_version(kinds: Iterable[KindInfo]) -> dict[str, dict[str, list[KindInfo]]]:
    """Group kinds by group and version, groups in the order of kube-apiserver.

    Other groups follow, and versions are in order of first appearance. For a name that several
    groups have, kubectl takes the first one. So the group of Kubernetes' own PodGroups is the
    last: ``podgroups`` are those of Volcano.
    """
    groups: dict[str, dict[str, list[KindInfo]]] = {each: {} for each in _GROUP_ORDER}
    for kind in kinds:
        versions = groups.setdefault(kind.resource.group, {})
        versions.setdefault(kind.resource.version, []).append(kind)
    last = NATIVE_PODGROUPS.group
    if last in groups:
        groups[last] = groups.pop(last)
    return {group: versions for group, versions in groups.items() if versions}


def _group(name: str, versions: Mapping[str, object]) -> Json:
    entries = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": entries, "preferredVersion": entries[0]}


def _aggregated_resource(kind: KindInfo) -> Json:
    resource = kind.resource
    entry: Json = {
        "resource": resource.plural,
        "responseKind": _kind_of(resource.group, resource.version, resource.kind),
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": kind.singular,
        "verbs": list(kind.verbs),
    }
    if kind.short_names:
        entry["shortNames"] = list(kind.short_names)
    if kind.categories:
        entry["categories"] = list(kind.categories)
    if kind.subresources:
        entry["subresources"] = [
            {
                "subresource": subresource.name,
                "responseKind": _kind_of(subresource.group, subresource.version, subresource.kind),
                "verbs": list(subresource.verbs),
            }
            for subresource in kind.subresources.values()
        ]
    return entry


def _kind_of(group_name: str, version: str, kind: str) -> Json:
    return {"group": group_name, "version": version, "kind": kind}


def _api_resources(kind: KindInfo) -> list[Json]:
    resource = kind.resource
    entry: Json = {
        "name": resource.plural,
        "singularName": kind.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(kind.verbs),
    }
    if kind.short_names:
        entry["shortNames"] = list(kind.short_names)
    if kind.categories:
        entry["categories"] = list(kind.categories)
    if "get" in kind.verbs:
        entry["storageVersionHash"] = _storage_hash(kind)
    return [entry, *(_subresource(kind, subresource) for subresource in kind.subresources.values())]


def _subresource(kind: KindInfo, subresource: Subresource) -> Json:
    resource = kind.resource
    entry: Json = {
        "name": f"{resource.plural}/{subresource.name}",
        "singularName": "",
        "namespaced": resource.namespaced,
        "kind": subresource.kind,
        "verbs": list(subresource.verbs),
    }
    if (subresource.group, subresource.version) != (resource.group, resource.version):
        entry |= {"group": subresource.group, "version": subresource.version}
    return entry


def _storage_hash(kind: KindInfo) -> str:
    """Return the hash of the kind's storage version, computed as by kube-apiserver."""
    resource = kind.stored_as or kind.resource
    text = f"{resource.group}/{kind.storage_version or resource.version}/{resource.kind}"
    return base64.b64encode(hashlib.sha256(text.encode()).digest()[:8]).decode()
