"""Assembles the controllers of workloads and Services, which share their informers."""

from collections.abc import Iterator, Mapping
from typing import Any

from ...kube.client.client import Client
from ...kube.client.identity import Identity
from ...kube.informer.informer import Informer
from ...machinery.clock import Clock
from ...machinery.event_recorder import Recorder, SharedRecorder
from ...machinery.reconcile.controller import Controller
from ...model.meta import HasMeta
from ...model.names import (
    CONTROLLERREVISIONS,
    DAEMONSETS,
    DEPLOYMENTS,
    DEVICETAINTRULES,
    NODES,
    PERSISTENTVOLUMECLAIMS,
    PODS,
    REPLICASETS,
    REPLICATIONCONTROLLERS,
    RESOURCECLAIMS,
    RESOURCECLAIMTEMPLATES,
    RESOURCESLICES,
    SERVICES,
    STATEFULSETS,
    Resource,
)
from .autoscaler_types import AUTOSCALERS, Autoscaler
from .autoscalers import AutoscalerController
from .claim_rules import ResourceClaim, ResourceClaimTemplate
from .daemon_rules import DaemonSet
from .daemon_sets import DaemonSetController
from .deployment_types import Deployment
from .deployments import DeploymentController
from .device_taint_rules import DeviceTaintRule, ResourceSlice
from .device_taints import (
    POOL_INDEX,
    DeviceTaintEvictionController,
    DeviceTaintRuleController,
    DeviceTaints,
    pool_of,
    pools_of,
)
from .endpoint_mirroring import EndpointMirroringController
from .endpoints import EndpointsController
from .ephemeral_volumes import (
    VOLUME_CLAIMS_INDEX,
    EphemeralVolumeController,
    volume_claims_of,
)
from .node_rules import Node
from .replica_rules import ReplicaSet
from .replica_sets import ReplicaSetController
from .resource_claims import (
    CLAIMS_INDEX,
    TEMPLATES_INDEX,
    PodClaimController,
    ResourceClaimController,
    claims_of,
    templates_of,
)
from .revisions import Revision
from .stateful_sets import StatefulSetController
from .stateful_types import Claim, StatefulSet
from .types import Pod, Service

ACCOUNT_NAMESPACE = "kube-system"
"""Namespace of the service accounts of the controllers, as in Kubernetes."""


_CLAIM_CONTROLLER = "resource-claim-controller"
_DEVICE_TAINT_CONTROLLER = "device-taint-eviction-controller"


def workload_controllers(
    client: Client, recorder: SharedRecorder, *, clock: Clock | None = None
) -> Mapping[str, Controller[Any, Any]]:
    """Return the controllers by name; they read as the user of *client*."""
    return _Builder(client, recorder, clock).build()


class _Builder:
    """Creates the controllers; each writes as the service account that it has in Kubernetes."""

    def __init__(self, client: Client, recorder: SharedRecorder, clock: Clock | None) -> None:
        self._client = client
        self._recorder = recorder
        self._clock = clock
        self._pods = Informer(
            client,
            PODS,
            Pod,
            indexes={
                "namespace": _namespace,
                "owner": _owner,
                "orphans": _orphan_namespace,
                CLAIMS_INDEX: claims_of,
                TEMPLATES_INDEX: templates_of,
                VOLUME_CLAIMS_INDEX: volume_claims_of,
            },
        )
        self._volume_claims = Informer(client, PERSISTENTVOLUMECLAIMS, Claim)
        self._claims = Informer(
            client, RESOURCECLAIMS, ResourceClaim, indexes={POOL_INDEX: pools_of}
        )
        self._revisions = Informer(client, CONTROLLERREVISIONS, Revision, indexes={"owner": _owner})
        self._replica_sets = self._sets(REPLICASETS)
        self._services = Informer(client, SERVICES, Service, indexes={"namespace": _namespace})

    def build(self) -> Mapping[str, Controller[Any, Any]]:
        return {
            "endpointslice-controller": self._endpoints(),
            "endpointslicemirroring-controller": self._mirroring(),
            "deployment-controller": self._deployments(),
            "replicaset-controller": self._replicas(
                "replicaset-controller", REPLICASETS, self._replica_sets
            ),
            "replication-controller": self._replicas(
                "replication-controller",
                REPLICATIONCONTROLLERS,
                self._sets(REPLICATIONCONTROLLERS),
            ),
            "statefulset-controller": self._stateful_sets(),
            "daemon-set-controller": self._daemon_sets(),
            "horizontal-pod-autoscaler": self._autoscalers(),
            "ephemeral-volume-controller": self._ephemeral_volumes(),
            "resource-claims-of-pods": self._pod_claims(),
            _CLAIM_CONTROLLER: ResourceClaimController(
                self._account(_CLAIM_CONTROLLER),
                pods=self._pods,
                claims=self._claims,
                clock=self._clock,
            ),
            **self._device_taints(),
        }

    def _account(self, name: str) -> Client:
        user = f"system:serviceaccount:{ACCOUNT_NAMESPACE}:{name}"
        return self._client.acting_as(Identity.impersonation(user))

    def _events(self, component: str) -> Recorder:
        return self._recorder.with_component(component)

    def _sets(self, resource: Resource) -> Informer[ReplicaSet]:
        indexes = {"namespace": _namespace, "owner": _owner}
        return Informer(self._client, resource, ReplicaSet, indexes=indexes)

    def _endpoints(self) -> EndpointsController:
        return EndpointsController(
            self._client,
            self._account("endpoint-controller"),
            self._account("endpointslice-controller"),
            services=self._services,
            pods=self._pods,
            clock=self._clock,
        )

    def _mirroring(self) -> EndpointMirroringController:
        return EndpointMirroringController(
            self._client,
            self._account("endpointslicemirroring-controller"),
            services=self._services,
            recorder=self._events("endpoint-slice-mirroring-controller"),
            clock=self._clock,
        )

    def _deployments(self) -> DeploymentController:
        return DeploymentController(
            self._account("deployment-controller"),
            deployments=Informer(
                self._client, DEPLOYMENTS, Deployment, indexes={"namespace": _namespace}
            ),
            replica_sets=self._replica_sets,
            pods=self._pods,
            recorder=self._events("deployment-controller"),
            clock=self._clock,
        )

    def _replicas(
        self, name: str, resource: Resource, replica_sets: Informer[ReplicaSet]
    ) -> ReplicaSetController:
        return ReplicaSetController(
            self._account(name),
            resource,
            replica_sets=replica_sets,
            pods=self._pods,
            recorder=self._events(name),
            clock=self._clock,
        )

    def _stateful_sets(self) -> StatefulSetController:
        return StatefulSetController(
            self._account("statefulset-controller"),
            stateful_sets=Informer(
                self._client, STATEFULSETS, StatefulSet, indexes={"namespace": _namespace}
            ),
            revisions=self._revisions,
            claims=self._volume_claims,
            pods=self._pods,
            recorder=self._events("statefulset-controller"),
            clock=self._clock,
        )

    def _daemon_sets(self) -> DaemonSetController:
        return DaemonSetController(
            self._account("daemon-set-controller"),
            daemon_sets=Informer(
                self._client, DAEMONSETS, DaemonSet, indexes={"namespace": _namespace}
            ),
            nodes=Informer(self._client, NODES, Node),
            revisions=self._revisions,
            pods=self._pods,
            recorder=self._events("daemonset-controller"),
            clock=self._clock,
        )

    def _ephemeral_volumes(self) -> EphemeralVolumeController:
        return EphemeralVolumeController(
            self._account("ephemeral-volume-controller"),
            pods=self._pods,
            claims=self._volume_claims,
            recorder=self._events("ephemeral_volume"),
            clock=self._clock,
        )

    def _pod_claims(self) -> PodClaimController:
        return PodClaimController(
            self._account(_CLAIM_CONTROLLER),
            pods=self._pods,
            claims=self._claims,
            templates=Informer(self._client, RESOURCECLAIMTEMPLATES, ResourceClaimTemplate),
            recorder=self._events("resource_claim"),
            clock=self._clock,
        )

    def _device_taints(self) -> Mapping[str, Controller[Any, Any]]:
        client = self._account(_DEVICE_TAINT_CONTROLLER)
        taints = DeviceTaints(
            pods=self._pods,
            claims=self._claims,
            slices=Informer(
                self._client, RESOURCESLICES, ResourceSlice, indexes={POOL_INDEX: pool_of}
            ),
            rules=Informer(self._client, DEVICETAINTRULES, DeviceTaintRule),
        )
        rules = DeviceTaintRuleController(client, taints, clock=self._clock)
        return {
            "device-taint-rules": rules,
            _DEVICE_TAINT_CONTROLLER: DeviceTaintEvictionController(
                client,
                taints,
                rules,
                recorder=self._events(_DEVICE_TAINT_CONTROLLER),
                clock=self._clock,
            ),
        }

    def _autoscalers(self) -> AutoscalerController:
        return AutoscalerController(
            self._account("horizontal-pod-autoscaler"),
            autoscalers=Informer(self._client, AUTOSCALERS, Autoscaler),
            recorder=self._events("horizontal-pod-autoscaler"),
            clock=self._clock,
        )


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
