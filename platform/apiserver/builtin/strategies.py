"""The rules of the built-in kinds: what all share, and what some have of their own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...model import validation
from ...model.names import Resource
from ..custom import crds
from ..errors.fields import FieldError
from ..kinds.metadata import NameRule, check_known_finalizers, check_metadata
from ..kinds.typed_json import complete, read_object
from . import core_objects, event_conversion, pod_defaults, pod_strategy, stored_defaults, workloads

Json = dict[str, Any]

_ADMISSION = "admissionregistration.k8s.io"
_RBAC = "rbac.authorization.k8s.io"


def _nothing(obj: Json) -> None:
    """Leave the object as it is."""


def _keep_nothing(obj: Json, old: Json) -> None:
    """Leave the object as it is."""


def _no_errors(obj: Json, old: Json | None) -> list[FieldError]:
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What one kind does beyond what all kinds do."""

    default: Callable[[Json], None] = _nothing
    begin: Callable[[Json], None] = _nothing
    keep: Callable[[Json, Json], None] = _keep_nothing
    check: Callable[[Json, Json | None], list[FieldError]] = _no_errors
    name_rule: NameRule = validation.dns_subdomain_problem


def _begin_definition(crd: Json) -> None:
    crd["status"] = crds.first_status(crd)


_PLAIN = Hooks()
_REPLICAS = Hooks(default=workloads.default_replicas, check=workloads.check_workload)
_ROLE = Hooks(name_rule=validation.path_segment_problem)
_BINDING = Hooks(
    default=core_objects.default_binding,
    check=core_objects.check_binding,
    name_rule=validation.path_segment_problem,
)
_WEBHOOKS = Hooks(default=core_objects.default_webhooks)

_HOOKS: dict[tuple[str, str], Hooks] = {
    ("", "ConfigMap"): Hooks(check=core_objects.check_config_map),
    ("", "Endpoints"): Hooks(default=core_objects.default_endpoints),
    ("", "Event"): Hooks(check=core_objects.check_event),
    ("", "LimitRange"): Hooks(default=stored_defaults.default_limit_range),
    ("", "Namespace"): Hooks(
        default=core_objects.default_namespace,
        begin=core_objects.begin_namespace,
        keep=core_objects.keep_namespace,
        name_rule=validation.dns_label_problem,
    ),
    ("", "Node"): Hooks(default=core_objects.default_node, check=core_objects.check_node),
    ("", "PersistentVolume"): Hooks(
        default=core_objects.default_volume,
        begin=core_objects.begin_volume,
        check=core_objects.check_volume,
    ),
    ("", "PersistentVolumeClaim"): Hooks(
        default=core_objects.default_claim,
        begin=core_objects.begin_claim,
        check=core_objects.check_claim,
    ),
    ("", "Pod"): Hooks(
        default=pod_defaults.default_pod,
        begin=pod_defaults.begin_pod,
        keep=pod_strategy.keep_pod,
        check=pod_strategy.check_pod,
    ),
    ("", "PodTemplate"): Hooks(default=stored_defaults.default_pod_template),
    ("", "ReplicationController"): Hooks(
        default=workloads.default_replication_controller, check=workloads.check_workload
    ),
    ("", "Secret"): Hooks(default=core_objects.default_secret, check=core_objects.check_secret),
    ("", "Service"): Hooks(
        default=core_objects.default_service,
        begin=core_objects.begin_service,
        keep=core_objects.keep_service,
        check=core_objects.check_service,
        name_rule=validation.dns_label_1035_problem,
    ),
    ("", "ServiceAccount"): Hooks(default=stored_defaults.default_service_account),
    (_ADMISSION, "MutatingWebhookConfiguration"): _WEBHOOKS,
    (_ADMISSION, "ValidatingAdmissionPolicy"): Hooks(
        default=stored_defaults.default_admission_policy
    ),
    (_ADMISSION, "ValidatingAdmissionPolicyBinding"): Hooks(
        default=stored_defaults.default_admission_binding
    ),
    (_ADMISSION, "ValidatingWebhookConfiguration"): _WEBHOOKS,
    ("apiextensions.k8s.io", "CustomResourceDefinition"): Hooks(
        default=crds.default_crd,
        begin=_begin_definition,
        check=crds.check_crd,
    ),
    ("apps", "DaemonSet"): Hooks(
        default=workloads.default_daemon_set, check=workloads.check_workload
    ),
    ("apps", "Deployment"): Hooks(
        default=workloads.default_deployment, check=workloads.check_workload
    ),
    ("apps", "ReplicaSet"): _REPLICAS,
    ("apps", "StatefulSet"): Hooks(
        default=workloads.default_stateful_set, check=workloads.check_workload
    ),
    ("autoscaling", "HorizontalPodAutoscaler"): Hooks(default=core_objects.default_autoscaler),
    ("batch", "CronJob"): Hooks(default=workloads.default_cron_job, check=workloads.check_cron_job),
    ("batch", "Job"): Hooks(
        default=workloads.default_job, begin=workloads.begin_job, check=workloads.check_job
    ),
    ("coordination.k8s.io", "Lease"): Hooks(
        default=stored_defaults.default_lease, check=core_objects.check_lease
    ),
    ("discovery.k8s.io", "EndpointSlice"): Hooks(default=core_objects.default_endpoints),
    ("events.k8s.io", "Event"): Hooks(check=event_conversion.check_event),
    ("networking.k8s.io", "IngressClass"): Hooks(default=stored_defaults.default_ingress_class),
    ("networking.k8s.io", "NetworkPolicy"): Hooks(
        default=core_objects.default_network_policy, check=core_objects.check_network_policy
    ),
    (_RBAC, "ClusterRole"): _ROLE,
    (_RBAC, "ClusterRoleBinding"): _BINDING,
    (_RBAC, "Role"): _ROLE,
    (_RBAC, "RoleBinding"): _BINDING,
    ("resource.k8s.io", "ResourceClaim"): Hooks(default=stored_defaults.default_resource_claim),
    ("resource.k8s.io", "ResourceClaimTemplate"): Hooks(
        default=stored_defaults.default_resource_claim_template
    ),
    ("scheduling.k8s.io", "PriorityClass"): Hooks(
        default=core_objects.default_priority_class, check=core_objects.check_priority_class
    ),
    ("storage.k8s.io", "CSIDriver"): Hooks(default=stored_defaults.default_csi_driver),
    ("storage.k8s.io", "StorageClass"): Hooks(default=core_objects.default_storage_class),
}


def finalizers_of(obj: Json) -> list[str]:
    """Its finalizers, perhaps none."""
    return obj["metadata"].get("finalizers") or []


class BuiltInRules:
    """How objects of one built-in kind are cleaned, completed and checked."""

    def __init__(self, resource: Resource) -> None:
        self._resource = resource
        self._hooks = _HOOKS.get((resource.group, resource.kind), _PLAIN)
        self.default = self._hooks.default
        self.keep = self._hooks.keep

    def prune(self, obj: Json) -> list[str]:
        """Remove unknown fields and return their paths.

        Raises:
            MalformedError: a field has a type that it cannot hold.
        """
        return read_object(obj, self._resource)

    def begin(self, obj: Json) -> None:
        """Set what a new object starts with beyond its defaults, e.g. its first phase."""
        self._hooks.begin(obj)
        complete(obj, self._resource)

    def validate(self, obj: Json, old: Json | None) -> list[FieldError]:
        """Check the metadata and whatever the kind checks itself."""
        errors = check_metadata(
            obj["metadata"],
            self._hooks.name_rule,
            namespaced=self._resource.namespaced,
            old=old["metadata"] if old else None,
        )
        if old is None or finalizers_of(obj) != finalizers_of(old):
            errors += check_known_finalizers(finalizers_of(obj))
        return errors + self._hooks.check(obj, old)
