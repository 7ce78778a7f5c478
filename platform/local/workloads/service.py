"""Assembles the controllers of workloads and Services, which share their informers."""

from collections.abc import Iterator, Mapping
from typing import Any

from ...kube.client.client import Client
from ...kube.client.identity import Identity
from ...kube.informer.informer import Informer
from ...machinery.clock import Clock
from ...machinery.event_recorder import SharedRecorder
from ...machinery.reconcile.controller import Controller, ControllerSettings
from ...model.meta import HasMeta
from ...model.names import (
    CONTROLLERREVISIONS,
    DAEMONSETS,
    DEPLOYMENTS,
    NODES,
    PERSISTENTVOLUMECLAIMS,
    PODS,
    REPLICASETS,
    REPLICATIONCONTROLLERS,
    SERVICES,
    STATEFULSETS,
)
from .daemon_rules import DaemonSet
from .daemon_sets import DaemonSetController
from .deployment_types import Deployment
from .deployments import DeploymentController
from .endpoints import EndpointsController
from .node_rules import Node
from .replica_rules import ReplicaSet
from .replica_sets import ReplicaSetController
from .revisions import Revision
from .stateful_sets import StatefulSetController
from .stateful_types import Claim, StatefulSet
from .types import Pod, Service

ACCOUNT_NAMESPACE = "kube-system"
"""Namespace of the service accounts of the controllers, as in Kubernetes."""


class Accounts:
    """Clients of the controllers: each acts as the service account that it has in Kubernetes."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def client(self, account: str) -> Client:
        """Return the client of a controller's account."""
        user = f"system:serviceaccount:{ACCOUNT_NAMESPACE}:{account}"
        return self._client.acting_as(Identity.impersonation(user))


def workload_controllers(
    client: Client,
    recorder: SharedRecorder,
    *,
    clock: Clock | None = None,
    settings: ControllerSettings | None = None,
) -> Mapping[str, Controller[Any, Any]]:
    """Return the controllers by name; they read as the user of *client*."""
    accounts = Accounts(client)
    pods = Informer(
        client,
        PODS,
        Pod,
        indexes={"namespace": _namespace, "owner": _owner, "orphans": _orphan_namespace},
    )
    replica_sets, replication_controllers = (
        Informer(client, each, ReplicaSet, indexes={"namespace": _namespace, "owner": _owner})
        for each in (REPLICASETS, REPLICATIONCONTROLLERS)
    )
    revisions = Informer(client, CONTROLLERREVISIONS, Revision, indexes={"owner": _owner})
    services = Informer(client, SERVICES, Service, indexes={"namespace": _namespace})
    return {
        "endpointslice-controller": EndpointsController(
            client,
            accounts.client("endpoint-controller"),
            accounts.client("endpointslice-controller"),
            services=services,
            pods=pods,
            settings=settings,
            clock=clock,
        ),
        "deployment-controller": DeploymentController(
            accounts.client("deployment-controller"),
            deployments=Informer(
                client, DEPLOYMENTS, Deployment, indexes={"namespace": _namespace}
            ),
            replica_sets=replica_sets,
            pods=pods,
            settings=settings,
            clock=clock,
            recorder=recorder.with_component("deployment-controller"),
        ),
        "replicaset-controller": ReplicaSetController(
            accounts.client("replicaset-controller"),
            REPLICASETS,
            replica_sets=replica_sets,
            pods=pods,
            settings=settings,
            clock=clock,
            recorder=recorder.with_component("replicaset-controller"),
        ),
        "statefulset-controller": StatefulSetController(
            accounts.client("statefulset-controller"),
            stateful_sets=Informer(
                client, STATEFULSETS, StatefulSet, indexes={"namespace": _namespace}
            ),
            revisions=revisions,
            claims=Informer(client, PERSISTENTVOLUMECLAIMS, Claim),
            pods=pods,
            settings=settings,
            clock=clock,
            recorder=recorder.with_component("statefulset-controller"),
        ),
        "daemon-set-controller": DaemonSetController(
            accounts.client("daemon-set-controller"),
            daemon_sets=Informer(client, DAEMONSETS, DaemonSet, indexes={"namespace": _namespace}),
            nodes=Informer(client, NODES, Node),
            revisions=revisions,
            pods=pods,
            settings=settings,
            clock=clock,
            recorder=recorder.with_component("daemonset-controller"),
        ),
        "replication-controller": ReplicaSetController(
            accounts.client("replication-controller"),
            REPLICATIONCONTROLLERS,
            replica_sets=replication_controllers,
            pods=pods,
            settings=settings,
            clock=clock,
            recorder=recorder.with_component("replication-controller"),
        ),
    }


def _namespace(obj: HasMeta) -> Iterator[str]:
    yield obj.metadata.namespace


def _owner(obj: HasMeta) -> Iterator[str]:
    """Yield the identity of the controller of an object."""
    meta = obj.metadata
    if (owner := meta.controller) is not None:
        yield meta.owner_identity(owner)


def _orphan_namespace(obj: HasMeta) -> Iterator[str]:
    if obj.metadata.controller is None:
        yield obj.metadata.namespace
