"""Objects that exist from the start: namespaces, priority classes, roles, definitions."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from ...model import bootstrap_tokens, names, past_usage, simulation
from ...model.bootstrap_tokens import BootstrapToken
from ...model.names import Resource
from ...model.node_identity import FRONT_PROXY_CLIENT
from .aggregation.client import EXTRA_PREFIX, GROUP_HEADER, UID_HEADER, USER_HEADER
from .authorization import bootstrap_policy
from .builtin import flow_control_objects
from .discovery.catalog import Catalog
from .errors.status import StatusError
from .http.requests import Json, ObjectPath
from .verbs.deletes import Deleter
from .verbs.options import DeleteOptions
from .verbs.planned_writes import WriteResult
from .verbs.write_requests import WriteRequest
from .verbs.writes import Writer

log = logging.getLogger(__name__)

SYSTEM_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
"""Namespaces of every cluster."""

AUTHENTICATION_NAMESPACE = "kube-system"
AUTHENTICATION_CONFIGMAP = "extension-apiserver-authentication"
"""What other API servers read at their start."""

PLATFORM_NAMESPACE = "volcano-system"
NAMESPACES = (*SYSTEM_NAMESPACES, PLATFORM_NAMESPACE)

SCHEDULER_OBJECTS = (
    (names.SECRETS, simulation.ENDPOINT),
    (names.CONFIGMAPS, past_usage.CONFIGMAP),
)
"""What the scheduler writes, but may not create: the manifests have them, too."""

PRIORITY_CLASSES = {
    "system-node-critical": (
        2_000_001_000,
        "Used for system critical pods that must not be moved from their current node.",
    ),
    "system-cluster-critical": (
        2_000_000_000,
        "Used for system critical pods that must run in the cluster, but can be moved to another "
        "node if necessary.",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinObjects:
    """What other machines need to join."""

    cluster_info: str
    """Kubeconfig with the address and the CA of the server, without a user."""

    token: BootstrapToken | None
    """A token to create."""


async def ensure_defaults(
    writer: Writer,
    catalog: Catalog,
    definitions: Iterable[Json],
    *,
    deleter: Deleter,
    optional_definitions: Iterable[Json] = (),
    joining: JoinObjects | None = None,
    authentication: Mapping[str, str],
) -> None:
    """Create missing default objects, and update *definitions* to the given content.

    Existing *optional_definitions* are not updated. *joining* is what other machines need,
    *authentication* what other API servers need.

    Raises:
        StatusError: a definition is rejected.
    """
    writes = [
        _create(writer, catalog, names.NAMESPACES, {"metadata": {"name": name}})
        for name in NAMESPACES
    ]
    for name, (value, description) in PRIORITY_CLASSES.items():
        body = {"metadata": {"name": name}, "value": value, "description": description}
        writes.append(_create(writer, catalog, names.PRIORITYCLASSES, body))
    writes.append(_create(writer, catalog, names.STORAGECLASSES, _dir_storage_class()))
    writes += [
        _create(writer, catalog, resource, obj)
        for resource in flow_control_objects.RESOURCES
        for obj in flow_control_objects.initial_objects(resource).values()
    ]
    writes += [_apply_crd(writer, catalog, definition) for definition in definitions]
    writes += [
        _create(writer, catalog, names.CRDS, {**each, "metadata": dict(each["metadata"])})
        for each in optional_definitions
    ]
    writes += [
        _ensure_policy(writer, catalog, resource, obj)
        for resource, obj in bootstrap_policy.objects()
    ]
    writes += [
        _delete(deleter, catalog, resource, name) for resource, name in bootstrap_policy.OBSOLETE
    ]
    for resource, name in SCHEDULER_OBJECTS:
        body = {"metadata": {"name": name}}
        writes.append(_create(writer, catalog, resource, body, namespace=PLATFORM_NAMESPACE))
    path = ObjectPath(namespace=AUTHENTICATION_NAMESPACE, name=AUTHENTICATION_CONFIGMAP)
    writes += _set_data(writer, catalog, path, authentication)
    if joining is not None:
        writes += _join_writes(writer, catalog, joining)
    for written in writes:
        if written is not None:
            await written.committed()


def _join_writes(
    writer: Writer, catalog: Catalog, joining: JoinObjects
) -> Iterator[WriteResult | None]:
    for resource, obj in bootstrap_policy.join_objects():
        yield _ensure_policy(writer, catalog, resource, obj)
    path = ObjectPath(
        namespace=bootstrap_tokens.CLUSTER_INFO_NAMESPACE, name=bootstrap_tokens.CLUSTER_INFO
    )
    data = {bootstrap_tokens.KUBECONFIG_KEY: joining.cluster_info}
    yield from _set_data(writer, catalog, path, data)
    if joining.token is not None:
        secret = joining.token.to_secret()
        yield _create(writer, catalog, names.SECRETS, secret, namespace=bootstrap_tokens.NAMESPACE)


def _set_data(
    writer: Writer, catalog: Catalog, path: ObjectPath, data: Mapping[str, str]
) -> Iterator[WriteResult | None]:
    """Create a ConfigMap with this data, or update it."""
    body: Json = {"metadata": {"name": path.name}, "data": dict(data)}
    created = _create(writer, catalog, names.CONFIGMAPS, body, namespace=path.namespace)
    if created is None:
        call = WriteRequest(kind=catalog.require(names.CONFIGMAPS), object_path=path)
        created = writer.patch(call, lambda current: {**current, "data": dict(data)})
    yield created


def authentication_data(front_proxy_ca: str, *, client_ca: bytes) -> dict[str, str]:
    """Return how other API servers authenticate requests that this one passes on.

    *client_ca* is that of the certificates by which clients authenticate. Those of Kubernetes' own
    library log an error again and again without one.
    """
    lists = {
        "requestheader-allowed-names": [FRONT_PROXY_CLIENT],
        "requestheader-extra-headers-prefix": [EXTRA_PREFIX],
        "requestheader-group-headers": [GROUP_HEADER],
        "requestheader-uid-headers": [UID_HEADER],
        "requestheader-username-headers": [USER_HEADER],
    }
    data = {key: msgspec.json.encode(value).decode() for key, value in lists.items()}
    data["requestheader-client-ca-file"] = front_proxy_ca
    data["client-ca-file"] = client_ca.decode()
    return data


def _dir_storage_class() -> Json:
    """The default storage class."""
    annotations = {"storageclass.kubernetes.io/is-default-class": "true"}
    metadata = {"name": names.DIR_STORAGE_CLASS, "annotations": annotations}
    return {
        "metadata": metadata,
        "provisioner": names.DIR_PROVISIONER,
        "allowVolumeExpansion": True,  # a directory has no size
    }


def _create(
    writer: Writer, catalog: Catalog, resource: Resource, obj: Json, *, namespace: str = ""
) -> WriteResult | None:
    path = ObjectPath(namespace=namespace)
    try:
        return writer.create(WriteRequest(kind=catalog.require(resource), object_path=path), obj)
    except StatusError as error:
        if error.reason != "AlreadyExists":
            raise
        return None


def _delete(
    deleter: Deleter, catalog: Catalog, resource: Resource, name: str
) -> WriteResult | None:
    path = ObjectPath(name=name)
    try:
        return deleter.delete(
            WriteRequest(kind=catalog.require(resource), object_path=path), DeleteOptions()
        )
    except StatusError as error:
        if error.reason != "NotFound":
            raise
        return None


def _ensure_policy(
    writer: Writer, catalog: Catalog, resource: Resource, wanted: Json
) -> WriteResult | None:
    """Create a role or binding, or add what it lacks."""
    kind = catalog.require(resource)
    namespace, name = wanted["metadata"].get("namespace", ""), wanted["metadata"]["name"]
    entry = writer.store.resource_store(kind).latest(namespace, name)
    if entry is None:
        path = ObjectPath(namespace=namespace)
        new = {**wanted, "metadata": dict(wanted["metadata"])}
        return writer.create(WriteRequest(kind=kind, object_path=path), new)
    current = entry.parse()
    if bootstrap_policy.completed(current, wanted) is current:
        return None
    log.warning("completed role or binding", extra={"kind": resource.kind, "object": name})
    call = WriteRequest(kind=kind, object_path=ObjectPath(namespace=namespace, name=name))
    return writer.patch(call, lambda obj: bootstrap_policy.completed(obj, wanted))


def _apply_crd(writer: Writer, catalog: Catalog, definition: Json) -> WriteResult | None:
    obj = {**definition, "metadata": dict(definition["metadata"])}
    kind = catalog.require(names.CRDS)
    name = obj["metadata"]["name"]
    entry = writer.store.resource_store(kind).latest("", name)
    if entry is None:
        return _create(writer, catalog, names.CRDS, obj)
    call = WriteRequest(kind=kind, object_path=ObjectPath(name=name))
    written = writer.patch(call, lambda current: {**current, "spec": obj["spec"]})
    if written.data != entry.data:
        # It was changed by a client, or belongs to another version of Batholith.
        log.warning("replaced custom resource definition", extra={"crd": name})
    return written
