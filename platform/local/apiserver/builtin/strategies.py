"""REST strategy of the built-in kinds: common rules, and hooks of single kinds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ....model import validation
from ....model.names import Resource
from ..custom import crds
from ..errors.fields import FieldError
from ..kinds.groups import ADMISSION, CERTIFICATES, FLOW_CONTROL, RBAC, REGISTRATION, RESOURCE
from ..kinds.metadata import NameRule, validate_known_finalizers, validate_metadata
from ..kinds.typed_json import add_zero_values, decode_object
from . import (
    api_services,
    autoscaler_conversion,
    autoscaler_validation,
    batch_jobs,
    certificate_requests,
    core_objects,
    cron_jobs,
    device_defaults,
    device_status_validation,
    device_validation,
    disruption_validation,
    endpoint_validation,
    event_conversion,
    flow_control,
    ingress_validation,
    job_status,
    limit_range_validation,
    load_balancers,
    network_policies,
    persistent_volumes,
    pod_defaults,
    pod_groups,
    pod_strategy,
    policy_validation,
    quota_validation,
    rbac_validation,
    runtime_classes,
    secrets,
    service_ranges,
    service_validation,
    slice_validation,
    storage_validation,
    stored_defaults,
    taint_rule_validation,
    template_warnings,
    volume_warnings,
    webhook_validation,
    workload_validation,
    workload_warnings,
    workloads,
)

Json = dict[str, Any]


def _no_change(obj: Json) -> None:
    """Do nothing."""


def _no_update_change(obj: Json, old: Json) -> None:
    """Do nothing."""


def _no_errors(obj: Json, old: Json | None) -> list[FieldError]:
    return []


def _no_warnings(obj: Json, old: Json | None) -> list[str]:
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyHooks:
    """What one kind does in addition to the common rules."""

    default: Callable[[Json], None] = _no_change
    prepare_for_create: Callable[[Json], None] = _no_change
    prepare_for_update: Callable[[Json, Json], None] = _no_update_change
    validate: Callable[[Json, Json | None], list[FieldError]] = _no_errors
    validate_status: Callable[[Json, Json], list[FieldError]] | None = None
    """Validation of a write of ``/status``; by default :attr:`validate`."""

    warnings: Callable[[Json, Json | None], list[str]] = _no_warnings
    name_rule: NameRule = validation.dns1123_subdomain_error


def _prepare_crd_for_create(crd: Json) -> None:
    crd["status"] = crds.initial_status(crd)


_PLAIN = StrategyHooks()
_REPLICA_COUNTS = (
    "replicas", "readyReplicas", "availableReplicas", "observedGeneration", "terminatingReplicas",
)  # fmt: skip
_REPLICA_STATUS = workload_validation.status_validator(
    (*_REPLICA_COUNTS, "fullyLabeledReplicas"),
    at_most_replicas=("fullyLabeledReplicas", "readyReplicas", "availableReplicas"),
)
_REPLICA_SET = StrategyHooks(
    default=workloads.default_replicas,
    validate=workload_validation.validate_replica_set,
    validate_status=_REPLICA_STATUS,
    warnings=workload_warnings.replicas_warnings,
)


def _role(*, namespaced: bool) -> StrategyHooks:
    return StrategyHooks(
        validate=rbac_validation.role_validator(namespaced=namespaced),
        name_rule=validation.path_segment_error,
    )


def _binding(*, namespaced: bool) -> StrategyHooks:
    return StrategyHooks(
        default=core_objects.default_binding,
        validate=rbac_validation.binding_validator(namespaced=namespaced),
        name_rule=validation.path_segment_error,
    )


_WEBHOOKS = StrategyHooks(
    default=core_objects.default_webhooks, validate=webhook_validation.validate_webhooks
)

_HOOKS: dict[tuple[str, str], StrategyHooks] = {
    ("", "ConfigMap"): StrategyHooks(validate=core_objects.validate_config_map),
    ("", "Endpoints"): StrategyHooks(
        default=core_objects.default_endpoints, validate=endpoint_validation.validate_endpoints
    ),
    ("", "Event"): StrategyHooks(validate=core_objects.validate_event),
    ("", "LimitRange"): StrategyHooks(
        default=stored_defaults.default_limit_range,
        validate=limit_range_validation.validate_limit_range,
    ),
    ("", "Namespace"): StrategyHooks(
        default=core_objects.default_namespace,
        prepare_for_create=core_objects.prepare_namespace_for_create,
        prepare_for_update=core_objects.prepare_namespace_for_update,
        name_rule=validation.dns1123_label_error,
    ),
    ("", "Node"): StrategyHooks(
        default=core_objects.default_node,
        validate=core_objects.validate_node,
        warnings=core_objects.node_warnings,
    ),
    ("", "PersistentVolume"): StrategyHooks(
        default=core_objects.default_volume,
        prepare_for_create=core_objects.prepare_volume_for_create,
        validate=persistent_volumes.validate_volume,
        warnings=volume_warnings.persistent_volume_warnings,
    ),
    ("", "PersistentVolumeClaim"): StrategyHooks(
        default=core_objects.default_pvc,
        prepare_for_create=core_objects.prepare_pvc_for_create,
        validate=core_objects.validate_pvc,
        warnings=volume_warnings.claim_warnings,
    ),
    ("", "Pod"): StrategyHooks(
        default=pod_defaults.default_pod,
        prepare_for_create=pod_defaults.prepare_pod_for_create,
        prepare_for_update=pod_strategy.prepare_pod_for_update,
        validate=pod_strategy.validate_pod,
        warnings=workload_warnings.pod_warnings,
    ),
    ("", "PodTemplate"): StrategyHooks(
        default=stored_defaults.default_pod_template,
        validate=workload_validation.validate_pod_template,
        warnings=workload_warnings.pod_template_warnings,
    ),
    ("", "ReplicationController"): StrategyHooks(
        default=workloads.default_replication_controller,
        validate=workload_validation.validate_replication_controller,
        validate_status=_REPLICA_STATUS,
        warnings=workload_warnings.replicas_warnings,
    ),
    ("", "ResourceQuota"): StrategyHooks(
        validate=quota_validation.validate_quota,
        validate_status=quota_validation.validate_quota_status,
        warnings=quota_validation.quota_warnings,
    ),
    ("", "Secret"): StrategyHooks(
        default=secrets.default_secret,
        validate=secrets.validate_secret,
        warnings=secrets.secret_warnings,
    ),
    ("", "Service"): StrategyHooks(
        default=core_objects.default_service,
        prepare_for_create=core_objects.prepare_service_for_create,
        prepare_for_update=core_objects.prepare_service_for_update,
        validate=service_validation.validate_service,
        validate_status=load_balancers.validate_service_status,
        warnings=service_validation.service_warnings,
        name_rule=validation.dns1123_label_error,
    ),
    ("", "ServiceAccount"): StrategyHooks(
        default=stored_defaults.default_service_account, warnings=core_objects.account_warnings
    ),
    (ADMISSION, "MutatingWebhookConfiguration"): _WEBHOOKS,
    (ADMISSION, "ValidatingAdmissionPolicy"): StrategyHooks(
        default=stored_defaults.default_admission_policy,
        validate=policy_validation.validate_policy,
    ),
    (ADMISSION, "MutatingAdmissionPolicy"): StrategyHooks(
        default=stored_defaults.default_admission_policy,
        validate=policy_validation.validate_mutating_policy,
    ),
    (ADMISSION, "MutatingAdmissionPolicyBinding"): StrategyHooks(
        default=stored_defaults.default_admission_binding,
        validate=policy_validation.validate_mutating_binding,
    ),
    (ADMISSION, "ValidatingAdmissionPolicyBinding"): StrategyHooks(
        default=stored_defaults.default_admission_binding,
        validate=policy_validation.validate_binding,
    ),
    (ADMISSION, "ValidatingWebhookConfiguration"): _WEBHOOKS,
    ("apiextensions.k8s.io", "CustomResourceDefinition"): StrategyHooks(
        default=crds.default_crd,
        prepare_for_create=_prepare_crd_for_create,
        validate=crds.validate_crd,
        warnings=crds.format_warnings,
    ),
    (REGISTRATION, "APIService"): StrategyHooks(
        default=api_services.default_api_service,
        prepare_for_create=api_services.prepare_for_create,
        validate=api_services.validate_api_service,
        validate_status=api_services.validate_status,
        name_rule=validation.path_segment_error,
    ),
    ("apps", "ControllerRevision"): StrategyHooks(
        validate=workload_validation.validate_controller_revision
    ),
    ("apps", "DaemonSet"): StrategyHooks(
        default=workloads.default_daemon_set,
        prepare_for_create=workloads.prepare_daemon_set_for_create,
        prepare_for_update=workloads.prepare_daemon_set_for_update,
        validate=workload_validation.validate_daemon_set,
        validate_status=workload_validation.status_validator(
            (
                "currentNumberScheduled",
                "numberMisscheduled",
                "desiredNumberScheduled",
                "numberReady",
                "observedGeneration",
                "updatedNumberScheduled",
                "numberAvailable",
                "numberUnavailable",
                "collisionCount",
            )
        ),
        warnings=workload_warnings.daemon_set_warnings,
    ),
    ("apps", "Deployment"): StrategyHooks(
        default=workloads.default_deployment,
        validate=workload_validation.validate_deployment,
        validate_status=workload_validation.status_validator(
            (*_REPLICA_COUNTS, "updatedReplicas", "unavailableReplicas", "collisionCount"),
            at_most_replicas=("updatedReplicas", "readyReplicas", "availableReplicas"),
        ),
        warnings=workload_warnings.replicas_warnings,
    ),
    ("apps", "ReplicaSet"): _REPLICA_SET,
    ("apps", "StatefulSet"): StrategyHooks(
        default=workloads.default_stateful_set,
        validate=workload_validation.validate_stateful_set,
        validate_status=workload_validation.status_validator(
            (*_REPLICA_COUNTS, "currentReplicas", "updatedReplicas", "collisionCount"),
            at_most_replicas=(
                "readyReplicas",
                "currentReplicas",
                "updatedReplicas",
                "availableReplicas",
            ),
        ),
        name_rule=validation.dns1123_label_error,
        warnings=workload_warnings.stateful_set_warnings,
    ),
    ("autoscaling", "HorizontalPodAutoscaler"): StrategyHooks(
        default=core_objects.default_autoscaler,
        validate=autoscaler_validation.validate_autoscaler,
        validate_status=autoscaler_validation.validate_status,
    ),
    ("batch", "CronJob"): StrategyHooks(
        default=cron_jobs.default_cron_job,
        validate=cron_jobs.validate_cron_job,
        validate_status=cron_jobs.validate_cron_job_status,
        warnings=cron_jobs.cron_job_warnings,
    ),
    ("batch", "Job"): StrategyHooks(
        default=batch_jobs.default_job,
        prepare_for_create=batch_jobs.prepare_job_for_create,
        prepare_for_update=batch_jobs.prepare_job_for_update,
        validate=batch_jobs.validate_job,
        validate_status=job_status.validate_job_status,
        warnings=batch_jobs.job_warnings,
    ),
    (CERTIFICATES, "CertificateSigningRequest"): StrategyHooks(
        prepare_for_update=certificate_requests.prepare_for_update,
        validate=certificate_requests.validate,
        validate_status=certificate_requests.validate_status,
        name_rule=certificate_requests.any_name,
    ),
    ("coordination.k8s.io", "Lease"): StrategyHooks(
        default=stored_defaults.default_lease, validate=core_objects.validate_lease
    ),
    ("discovery.k8s.io", "EndpointSlice"): StrategyHooks(
        default=core_objects.default_endpoints,
        validate=endpoint_validation.validate_endpoint_slice,
        warnings=endpoint_validation.endpoint_slice_warnings,
    ),
    ("events.k8s.io", "Event"): StrategyHooks(validate=event_conversion.validate_event),
    (FLOW_CONTROL, "FlowSchema"): StrategyHooks(
        default=flow_control.default_flow_schema,
        validate=flow_control.validate_flow_schema,
        validate_status=flow_control.validate_conditions,
    ),
    (FLOW_CONTROL, "PriorityLevelConfiguration"): StrategyHooks(
        default=flow_control.default_priority_level,
        validate=flow_control.validate_priority_level,
        validate_status=flow_control.validate_conditions,
    ),
    ("networking.k8s.io", "Ingress"): StrategyHooks(
        validate=ingress_validation.validate_ingress,
        validate_status=load_balancers.validate_ingress_status,
        warnings=ingress_validation.ingress_warnings,
    ),
    ("networking.k8s.io", "IngressClass"): StrategyHooks(
        default=stored_defaults.default_ingress_class,
        validate=ingress_validation.validate_ingress_class,
    ),
    ("networking.k8s.io", "IPAddress"): StrategyHooks(
        validate=service_ranges.validate_ip_address,
        name_rule=service_ranges.ip_address_name_error,
    ),
    ("networking.k8s.io", "NetworkPolicy"): StrategyHooks(
        default=network_policies.default_network_policy,
        validate=network_policies.validate_network_policy,
    ),
    ("networking.k8s.io", "ServiceCIDR"): StrategyHooks(
        validate=service_ranges.validate_service_cidr,
        validate_status=_no_errors,
    ),
    ("node.k8s.io", "RuntimeClass"): StrategyHooks(validate=runtime_classes.validate_runtime_class),
    ("policy", "PodDisruptionBudget"): StrategyHooks(
        validate=disruption_validation.validate_budget,
        validate_status=disruption_validation.validate_status,
        name_rule=validation.path_segment_error,
    ),
    (RBAC, "ClusterRole"): _role(namespaced=False),
    (RBAC, "ClusterRoleBinding"): _binding(namespaced=False),
    (RBAC, "Role"): _role(namespaced=True),
    (RBAC, "RoleBinding"): _binding(namespaced=True),
    (RESOURCE, "DeviceClass"): StrategyHooks(validate=device_validation.validate_device_class),
    (RESOURCE, "DeviceTaintRule"): StrategyHooks(
        default=device_defaults.default_taint_rule,
        prepare_for_update=device_defaults.prepare_taint_rule_for_update,
        validate=taint_rule_validation.validate_taint_rule,
        validate_status=taint_rule_validation.validate_taint_rule_status,
    ),
    (RESOURCE, "ResourceClaim"): StrategyHooks(
        default=device_defaults.default_resource_claim,
        validate=device_validation.validate_claim,
        prepare_for_update=device_status_validation.prepare_claim_for_update,
        validate_status=device_status_validation.validate_claim_status,
    ),
    (RESOURCE, "ResourceClaimTemplate"): StrategyHooks(
        default=device_defaults.default_resource_claim_template,
        validate=device_validation.validate_claim_template,
    ),
    (RESOURCE, "ResourceSlice"): StrategyHooks(
        default=device_defaults.default_slice, validate=slice_validation.validate_slice
    ),
    ("scheduling.k8s.io", "PodGroup"): StrategyHooks(
        default=pod_groups.default_podgroup,
        validate=pod_groups.validate_podgroup,
        validate_status=pod_groups.validate_podgroup_status,
    ),
    ("scheduling.k8s.io", "PriorityClass"): StrategyHooks(
        default=core_objects.default_priority_class, validate=core_objects.validate_priority_class
    ),
    ("scheduling.k8s.io", "Workload"): StrategyHooks(validate=pod_groups.validate_workload),
    ("storage.k8s.io", "CSIDriver"): StrategyHooks(
        default=stored_defaults.default_csi_driver,
        validate=storage_validation.validate_csi_driver,
    ),
    ("storage.k8s.io", "CSINode"): StrategyHooks(validate=storage_validation.validate_csi_node),
    ("storage.k8s.io", "CSIStorageCapacity"): StrategyHooks(
        validate=storage_validation.validate_storage_capacity
    ),
    ("storage.k8s.io", "VolumeAttachment"): StrategyHooks(
        validate=storage_validation.validate_volume_attachment,
        validate_status=storage_validation.validate_attachment_status,
    ),
    ("storage.k8s.io", "VolumeAttributesClass"): StrategyHooks(
        validate=storage_validation.validate_attributes_class
    ),
    ("storage.k8s.io", "StorageClass"): StrategyHooks(
        default=core_objects.default_storage_class,
        validate=storage_validation.validate_storage_class,
        warnings=template_warnings.storage_class_warnings,
    ),
}


APPROVAL = StrategyHooks(
    prepare_for_update=certificate_requests.prepare_for_approval,
    validate_status=certificate_requests.validate_approval,
    name_rule=certificate_requests.any_name,
)
"""Writes of the approval of a certificate request."""

AUTOSCALER_V1 = StrategyHooks(
    default=autoscaler_conversion.default_v1,
    validate=autoscaler_conversion.validate_v1,
    prepare_for_create=autoscaler_conversion.prepare_for_create,
    prepare_for_update=autoscaler_conversion.prepare_for_update,
)
AUTOSCALER_V1_STATUS = StrategyHooks(
    prepare_for_update=autoscaler_conversion.prepare_for_status_update,
    validate_status=autoscaler_validation.validate_status,
)
"""Writes of an autoscaler in ``autoscaling/v1``, and of its status."""


def finalizers_of(obj: Json) -> list[str]:
    """Its default finalizers."""
    return obj["metadata"].get("finalizers") or []


class BuiltInStrategy:
    """Prunes, defaults and validates the objects of one built-in kind."""

    def __init__(self, resource: Resource, hooks: StrategyHooks | None = None) -> None:
        self._resource = resource
        self._hooks = hooks or _HOOKS.get((resource.group, resource.kind), _PLAIN)
        self.default = self._hooks.default
        self.prepare_for_update = self._hooks.prepare_for_update
        self.warnings = self._hooks.warnings

    def prune(self, obj: Json) -> list[str]:
        """Remove unknown fields and return their paths.

        Raises:
            MalformedError: a field has a value of a wrong type.
        """
        return decode_object(obj, self._resource)

    def prepare_for_create(self, obj: Json) -> None:
        """Set initial values beyond the defaults, e.g. the first phase."""
        self._hooks.prepare_for_create(obj)
        add_zero_values(obj, self._resource)

    def validate(self, obj: Json, old: Json | None) -> list[FieldError]:
        """Validate the metadata, and the object by the kind's hook."""
        return self._validate_metadata(obj, old) + self._hooks.validate(obj, old)

    def validate_status(self, obj: Json, old: Json) -> list[FieldError]:
        """Validate the metadata, and the status by the kind's hook."""
        hook = self._hooks.validate_status or self._hooks.validate
        return self._validate_metadata(obj, old) + hook(obj, old)

    def _validate_metadata(self, obj: Json, old: Json | None) -> list[FieldError]:
        errors = validate_metadata(
            obj["metadata"],
            self._hooks.name_rule,
            namespaced=self._resource.namespaced,
            old=old["metadata"] if old else None,
        )
        if old is None or finalizers_of(obj) != finalizers_of(old):
            errors += validate_known_finalizers(finalizers_of(obj))
        return errors
