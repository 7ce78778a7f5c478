"""Admission: built-in plugins, then the webhooks, between decoding and storing.

Volcano's webhooks are functions in this process, passed in by the caller that starts the server;
their requests and responses are those of webhooks on a real cluster. Those that users configure
are in :mod:`..admission`.
"""

from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import TypeVar

from ....model import names, quantity
from ....model.admission import AdmissionRequest, DeniedError, Json, Webhook
from ....model.names import Resource
from ....model.node_identity import CSRS
from ....model.service_network import PodNetwork
from ..admission import pod_security, resizes
from ..admission.attributes import AdmissionAttributes
from ..admission.dynamic import DynamicAdmission
from ..admission.limit_ranges import LIMIT_RANGES, LIMITED, set_defaults, violation
from ..admission.node_restriction import NodeRestriction
from ..admission.quotas import Quotas
from ..admission.runtime_classes import RUNTIME_CLASSES, apply_runtime_class
from ..authorization import device_claims
from ..authorization.authorizer import Authorizer
from ..authorization.escalation import RoleWrite, check_escalation
from ..authorization.signers import check_signer, check_subject
from ..builtin.certificate_requests import set_requester
from ..builtin.core_objects import (
    SYSTEM_PRIORITY_CLASSES,
    default_class,
    needs_default_class,
    storage_request,
)
from ..builtin.pod_groups import missing_template
from ..builtin.protection_finalizers import PROTECTION_FINALIZERS, add_finalizer
from ..builtin.unenforced import warnings_on_write
from ..discovery.catalog import Catalog
from ..errors.status import StatusError, forbidden, invalid
from ..http.auth import User
from ..kinds.groups import RBAC
from ..kinds.info import KindInfo
from ..service_accounts.admission import admit_pod
from ..storage.object_store import ObjectStore
from ..storage.stored_objects import StoredObject
from .service_addresses import allocate, range_errors

T = TypeVar("T")
_NOT_READY = "node.kubernetes.io/not-ready"
_UNREACHABLE = "node.kubernetes.io/unreachable"
EXEMPT_NAMESPACES = frozenset(("kube-system", "volcano-system"))
"""Namespaces exempt from webhooks: those of the system and of the platform."""

DEFAULT_TOLERATION_SECONDS = 300
"""Default seconds that pods tolerate a node that is not ready or unreachable."""


UnchangedCheck = Callable[[], bool]
"""Returns whether something that was read is still unchanged; may raise the error of the write."""

_reads: ContextVar[list[UnchangedCheck] | None] = ContextVar("reads", default=None)


class LatestReader:
    """Objects that admission rules may read: the latest state, as the write under review finds it.

    Rules in a thread may see a concurrent change partly; their reads are recorded, and the caller
    checks that they are still unchanged before it acts on the result.
    """

    def __init__(self, store: ObjectStore, catalog: Catalog) -> None:
        self._store = store
        self._catalog = catalog
        self._limit_ranges = store.resource_store(catalog.require(LIMIT_RANGES))
        self._containing: dict[tuple[Resource, bytes], tuple[int, Sequence[Json]]] = {}
        """Results of :meth:`containing`, each with the number of changes that it is based on."""

    def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """Return one object, or ``None``."""
        kind = self._catalog.get(resource.group, resource.version, resource.plural)
        if kind is None:
            return None
        resource_store = self._store.resource_store(kind)
        entry = resource_store.latest(namespace, name)
        if (reads := _reads.get()) is not None:
            reads.append(lambda: resource_store.latest(namespace, name) is entry)
        return entry.shared() if entry else None

    def list(self, resource: Resource) -> Iterable[Json]:
        """Yield all objects of a resource."""
        kind = self._catalog.get(resource.group, resource.version, resource.plural)
        if kind is None:
            return
        for entry in self._latest_entries(kind):
            yield entry.shared()

    def limit_ranges(self, namespace: str) -> Sequence[Json]:
        """Return the LimitRanges of a namespace in the order of their names."""
        resource_store = self._limit_ranges
        if (reads := _reads.get()) is not None:
            moves = resource_store.change_count
            reads.append(lambda: resource_store.change_count == moves)
        if not resource_store.by_namespace and not resource_store.pending:
            return ()
        found = resource_store.latest_entries_in(namespace)
        return [entry.shared() for entry in sorted(found, key=lambda entry: entry.name)]

    def pods(self, namespace: str, *, limit: int) -> tuple[Sequence[Json], int]:
        """Return the first pods of a namespace in the order of their names, and how many it has."""
        resource_store = self._store.resource_store(self._catalog.require(names.PODS))
        if (reads := _reads.get()) is not None:
            moves = resource_store.change_count
            reads.append(lambda: resource_store.change_count == moves)
        found = sorted(resource_store.latest_entries_in(namespace), key=lambda entry: entry.name)
        return [entry.parse() for entry in found[:limit]], len(found)

    def containing(self, resource: Resource, text: bytes) -> Iterable[Json]:
        """Yield the objects of a resource whose JSON contains *text*; others are not parsed."""
        kind = self._catalog.require(resource)
        changes = self._store.resource_store(kind).change_count
        known = self._containing.get((resource, text))
        if known is not None and known[0] == changes and _reads.get() is None:
            return known[1]
        found = [each.shared() for each in self._latest_entries(kind) if text in each.data]
        self._containing[resource, text] = changes, found
        return found

    def _latest_entries(self, kind: KindInfo) -> Sequence[StoredObject]:
        resource_store = self._store.resource_store(kind)
        if (reads := _reads.get()) is not None:
            moves = resource_store.change_count
            reads.append(lambda: resource_store.change_count == moves)
        return list(resource_store.latest_entries())


class Admission:
    """The plugins and webhooks in order."""

    def __init__(
        self,
        lookup: LatestReader,
        webhooks: Sequence[Webhook],
        authorizer: Authorizer,
        dynamic: DynamicAdmission,
        quotas: Quotas,
        *,
        network: PodNetwork,
    ) -> None:
        self.dynamic = dynamic
        self.network = network
        self._quotas = quotas
        self.node_restriction = NodeRestriction(authorizer, lookup.get)
        self._lookup = lookup
        self._authorizer = authorizer
        self._webhooks: dict[tuple[str, str, str], list[Webhook]] = {}
        for webhook in webhooks:
            for operation in webhook.operations:
                key = operation, webhook.resource.group, webhook.resource.plural
                self._webhooks.setdefault(key, []).append(webhook)

    def recording_reads(self, work: Callable[[], T]) -> tuple[T, list[UnchangedCheck]]:
        """Run *work*; also return the checks that its reads are still unchanged."""
        reads: list[UnchangedCheck] = []
        token = _reads.set(reads)
        try:
            return work(), reads
        finally:
            _reads.reset(token)

    def mutate(self, attributes: AdmissionAttributes, obj: Json) -> Json:
        """Return the object as changed by admission.

        Raises:
            StatusError: 403, or the error of a webhook.
            WebhookNeededError: a webhook must be called first.
        """
        self.node_restriction.check(attributes, obj)
        obj = self._mutate_by_plugins(attributes, obj)
        obj = self.dynamic.mutate(
            attributes, obj, lambda changed: self._mutate_by_plugins(attributes, changed)
        )
        if attributes.kind.resource == names.SERVICES:
            allocate(
                obj,
                attributes.old_object,
                self._lookup.list(names.SERVICES),
                self._lookup.list(names.IP_ADDRESSES),
                cluster_ips=self.network.ranges.cluster_ips,
            )
        if attributes.kind.resource == CSRS and attributes.operation == "CREATE":
            set_requester(obj, attributes.user.to_user_info())
        if attributes.kind.resource.group == RBAC:
            target = attributes.object_path
            check_escalation(
                self._authorizer,
                attributes.user,
                RoleWrite(
                    resource=attributes.kind.resource,
                    namespace=target.namespace,
                    requested_name=target.name,
                    old=attributes.old_object,
                    new=obj,
                ),
            )
        return obj

    def _mutate_by_plugins(self, attributes: AdmissionAttributes, obj: Json) -> Json:
        """Return the object as the built-in plugins and webhooks change it."""
        if attributes.operation == "UPDATE" and attributes.kind.resource == names.PODS:
            _add_default_tolerations(obj["spec"])
        if attributes.operation == "CREATE":
            self._complete_new_object(attributes, obj)
        for webhook in self._matching_webhooks(attributes):
            if webhook.mutate is not None:
                try:
                    obj = webhook.mutate(_admission_request(attributes, obj), self._lookup)
                except DeniedError as error:
                    raise _denied(webhook, error) from error
        return obj

    def _complete_new_object(self, attributes: AdmissionAttributes, obj: Json) -> None:
        if finalizer := PROTECTION_FINALIZERS.get(attributes.kind.resource):
            add_finalizer(obj, finalizer)
        if attributes.kind.resource == names.PODS:
            self._default_pod(attributes, obj)
        elif attributes.kind.resource == names.NATIVE_PODGROUPS:
            self._default_podgroup(attributes, obj)
        elif attributes.kind.resource == names.NODES:
            _taint_not_ready(obj)
        elif attributes.kind.resource == names.PERSISTENTVOLUMECLAIMS:
            self._default_storage_class(obj)

    def validate(self, attributes: AdmissionAttributes, obj: Json | None) -> None:
        """Validate a write, and warn of fields that have no effect.

        Raises:
            StatusError: 403, a webhook denies the write, or it has no effect.
            WebhookNeededError: webhooks must be called first.
        """
        self._validate_by_plugins(attributes, obj)
        for webhook in self._matching_webhooks(attributes):
            if webhook.validate is not None:
                try:
                    webhook.validate(_admission_request(attributes, obj), self._lookup)
                except DeniedError as error:
                    raise _denied(webhook, error) from error
            if webhook.warn is not None and attributes.warnings is not None:
                request = _admission_request(attributes, obj)
                attributes.warnings.extend(webhook.warn(request, self._lookup))
        self.dynamic.validate(attributes, obj)
        if obj is not None and attributes.warnings is not None:
            attributes.warnings.extend(
                warnings_on_write(
                    attributes.kind.resource, obj, attributes.old_object, self.network
                )
            )
        if obj is not None:
            self._check_quotas(attributes, obj)

    def _validate_by_plugins(self, attributes: AdmissionAttributes, obj: Json | None) -> None:
        """Reject what the built-in plugins do not allow; quotas are checked last of all."""
        if attributes.operation == "DELETE":
            self.node_restriction.check(attributes, obj)
        if (
            attributes.kind.resource == names.PERSISTENTVOLUMECLAIMS
            and obj
            and attributes.old_object
        ):
            self._check_resize(attributes, obj, attributes.old_object)
        if obj is not None and attributes.kind.resource in LIMITED:
            self._check_limits(attributes, obj)
        if attributes.kind.resource == names.PRIORITYCLASSES:
            self._check_priority_class(attributes, obj)
        if obj is not None and attributes.kind.resource == CSRS:
            check_subject(obj, attributes.name)
        if obj is not None and attributes.kind.resource == names.SERVICE_CIDRS:
            self._check_range(attributes, obj)
        if obj is not None and attributes.operation == "CREATE":
            self._check_admin_access(attributes, obj)
        if obj is not None:
            self._check_pod_security(attributes, obj)

    def _check_range(self, attributes: AdmissionAttributes, obj: Json) -> None:
        if errors := range_errors(obj, self.network.ranges.cluster_ips):
            raise invalid(attributes.kind.resource, attributes.name, errors)

    def _check_admin_access(self, attributes: AdmissionAttributes, obj: Json) -> None:
        resource = attributes.kind.resource
        if resource in (names.RESOURCECLAIMS, names.RESOURCECLAIMTEMPLATES):
            namespace = self._lookup.get(names.NAMESPACES, "", attributes.namespace)
            if errors := device_claims.admin_access_errors(resource, obj, namespace):
                raise invalid(resource, attributes.name, errors)

    def _check_pod_security(self, attributes: AdmissionAttributes, obj: Json) -> None:
        """Reject a pod that violates the level of its namespace; warn of templates that do."""
        resource, old = attributes.kind.resource, attributes.old_object
        if resource == names.NAMESPACES:
            self._check_security_labels(attributes, obj)
        if not pod_security.is_checked(resource):
            return
        namespace = self._lookup.get(names.NAMESPACES, "", attributes.namespace)
        policy = pod_security.policy_of(namespace) if namespace else pod_security.NO_POLICY
        if policy is pod_security.NO_POLICY:
            return
        pod: Json | None = obj
        if resource != names.PODS:
            pod = pod_security.template_of(resource, obj)
        elif old is not None and not pod_security.is_significant(obj, old):
            return
        elif why := pod_security.denial(policy, obj):
            raise forbidden(resource, attributes.name, why)
        if pod and attributes.warnings is not None:
            attributes.warnings.extend(pod_security.warnings(policy, pod))

    def _check_security_labels(self, attributes: AdmissionAttributes, namespace: Json) -> None:
        """Reject invalid levels of a namespace; warn of pods that violate a new level."""
        old = attributes.old_object
        new_policy = pod_security.policy_of(namespace)
        old_policy = pod_security.policy_of(old) if old else pod_security.NO_POLICY
        if new_policy.errors and new_policy.errors != old_policy.errors:
            raise invalid(attributes.kind.resource, attributes.name, list(new_policy.errors))
        if (
            old is not None
            and attributes.warnings is not None
            and pod_security.is_stricter(new_policy, old_policy)
        ):
            pods, total = self._lookup.pods(attributes.name, limit=pod_security.MAX_PODS)
            attributes.warnings.extend(
                pod_security.existing_violations(new_policy, attributes.name, pods, total=total)
            )

    def _check_quotas(self, attributes: AdmissionAttributes, obj: Json) -> None:
        """Reject a write that exceeds a quota.

        Of a rule in a thread, the event loop does so when it checks what the rule has read.
        """
        reads = _reads.get()
        if reads is None:
            self._quotas.check(attributes, obj)
            return

        def is_within_quotas() -> bool:
            self._quotas.check(attributes, obj)
            return True

        reads.append(is_within_quotas)

    def check_claim_status(self, user: User, kind: KindInfo, *, obj: Json, old: Json) -> None:
        """Check that *user* may write what has changed in the status of a ResourceClaim.

        Raises:
            StatusError: 422, as of kube-apiserver.
        """
        if kind.resource == names.RESOURCECLAIMS:
            namespace = self._lookup.get(names.NAMESPACES, "", obj["metadata"]["namespace"])
            errors = device_claims.status_errors(self._authorizer, user, obj, old, namespace)
            if errors:
                raise invalid(kind.resource, obj["metadata"]["name"], errors)

    def check_signer(
        self, user: User, kind: KindInfo, subresource: str, *, obj: Json, old: Json
    ) -> None:
        """Check that *user* may approve a certificate request, or sign it.

        Raises:
            StatusError: 403.
        """
        if kind.resource == CSRS:
            check_signer(self._authorizer, user, subresource, obj=obj, old=old)

    def check_resources(self, attributes: AdmissionAttributes, obj: Json) -> None:
        """Check the resources of a pod that is resized against its node, LimitRanges and quotas.

        Raises:
            StatusError: 403.
        """
        self._check_limits(attributes, obj)
        old, node = attributes.old_object, obj["spec"].get("nodeName")
        if node and (old is None or old["spec"] != obj["spec"]):
            why = resizes.denial(obj, self._lookup.get(names.NODES, "", node))
            if why:
                raise forbidden(attributes.kind.resource, attributes.name, why)
        self._check_quotas(attributes, obj)

    def _check_limits(self, attributes: AdmissionAttributes, obj: Json) -> None:
        """Reject a new pod, or a claim, that LimitRanges of its namespace do not allow."""
        resource, old = attributes.kind.resource, attributes.old_object
        if old and resource == names.PODS and attributes.object_path.subresource != "resize":
            return
        if old and old["metadata"].get("deletionTimestamp"):
            return
        limit_ranges = self._lookup.limit_ranges(attributes.namespace)
        if limit_ranges and (why := violation(resource, obj, limit_ranges)):
            raise forbidden(resource, attributes.name, why)

    def _check_resize(self, attributes: AdmissionAttributes, pvc: Json, old: Json) -> None:
        """Reject a larger claim, as kube-apiserver does if the class allows no expansion."""
        size, before = (storage_request(each.get("spec", {})) for each in (pvc, old))
        if size == before or quantity.parse(size) <= quantity.parse(before):
            return
        chosen = pvc["spec"].get("storageClassName", "")
        found = self._lookup.get(names.STORAGECLASSES, "", chosen) if chosen else None
        if found and found.get("allowVolumeExpansion"):
            return
        why = (
            "only dynamically provisioned pvc can be resized and the storageclass that provisions "
            "the pvc must support resize"
        )
        raise forbidden(attributes.kind.resource, attributes.name, why)

    def _matching_webhooks(self, attributes: AdmissionAttributes) -> list[Webhook]:
        if attributes.namespace in EXEMPT_NAMESPACES:
            return []
        resource = attributes.kind.resource
        return self._webhooks.get((attributes.operation, resource.group, resource.plural), [])

    def _default_pod(self, attributes: AdmissionAttributes, pod: Json) -> None:
        spec = pod.get("spec")
        if not isinstance(spec, dict):
            return
        set_defaults(pod, self._lookup.limit_ranges(attributes.namespace))
        admit_pod(
            pod, namespace=attributes.namespace, name=attributes.name, lookup=self._lookup.get
        )
        self._set_priority(attributes, spec)
        _add_default_tolerations(spec)
        named = spec.get("runtimeClassName")
        runtime_class = self._lookup.get(RUNTIME_CLASSES, "", named) if named else None
        if why := apply_runtime_class(spec, runtime_class):
            raise forbidden(attributes.kind.resource, attributes.name, why)

    def _default_storage_class(self, claim: Json) -> None:
        if needs_default_class(claim):
            classes = self._lookup.containing(names.STORAGECLASSES, b"is-default-class")
            if chosen := default_class(classes):
                claim["spec"]["storageClassName"] = chosen

    def _check_priority_class(self, attributes: AdmissionAttributes, obj: Json | None) -> None:
        """Reject a second default class, and the deletion of one of the system."""
        why = ""
        if obj is None:
            if attributes.name in SYSTEM_PRIORITY_CLASSES:
                why = "this is a system priority class and cannot be deleted"
        elif obj.get("globalDefault"):
            known = self._default_priority_class()
            name = known["metadata"]["name"] if known else attributes.name
            if known and (attributes.old_object is None or name != attributes.name):
                why = (
                    f"PriorityClass {name} is already marked as default. Only one default can exist"
                )
        if why:
            raise forbidden(attributes.kind.resource, attributes.name, why)

    def _resolve_priority(
        self, attributes: AdmissionAttributes, spec: Json
    ) -> tuple[Json | None, int]:
        """Return the PriorityClass of *spec*, which names it then, if any, and its value."""
        found = self._named_priority_class(attributes, spec.get("priorityClassName", ""))
        if found is None:
            return None, 0
        spec["priorityClassName"] = found["metadata"]["name"]
        return found, found.get("value", 0)

    def _set_priority(self, attributes: AdmissionAttributes, spec: Json) -> None:
        found, value = self._resolve_priority(attributes, spec)
        if spec.get("priority") not in (None, value):
            why = (
                f"the integer value of priority ({spec['priority']}) must not be provided in pod "
                f"spec; priority admission controller computed {value} from the given "
                "PriorityClass name"
            )
            raise forbidden(attributes.kind.resource, attributes.name, why)
        spec["priority"] = value
        policy = (found or {}).get("preemptionPolicy", "PreemptLowerPriority")
        if spec.get("preemptionPolicy") not in (None, policy):
            why = (
                f"the string value of PreemptionPolicy ({spec['preemptionPolicy']}) must not be "
                f"provided in pod spec; priority admission controller computed {policy} from the "
                "given PriorityClass name"
            )
            raise forbidden(attributes.kind.resource, attributes.name, why)
        spec["preemptionPolicy"] = policy

    def _default_podgroup(self, attributes: AdmissionAttributes, podgroup: Json) -> None:
        spec = podgroup.get("spec")
        if not isinstance(spec, dict):
            return
        reference = (spec.get("podGroupTemplateRef") or {}).get("workload")
        if reference is not None:
            name = reference.get("workloadName", "")
            workload = self._lookup.get(names.WORKLOADS, attributes.namespace, name)
            if why := missing_template(reference, workload):
                raise forbidden(attributes.kind.resource, attributes.name, why)
        _, value = self._resolve_priority(attributes, spec)
        if spec.get("priority") not in (None, value):
            why = (
                f"priority set in the pod group ({spec['priority']}) must match the priority "
                f"computed ({value}) based on the priority class set in the spec"
            )
            raise forbidden(attributes.kind.resource, attributes.name, why)
        spec["priority"] = value

    def _named_priority_class(self, attributes: AdmissionAttributes, name: str) -> Json | None:
        """Return the class *name*, or the default one, if there is one."""
        if not name:
            return self._default_priority_class()
        found = self._lookup.get(names.PRIORITYCLASSES, "", name)
        if found is None:
            why = f"no PriorityClass with name {name} was found"
            raise forbidden(attributes.kind.resource, attributes.name, why)
        return found

    def _default_priority_class(self) -> Json | None:
        classes = self._lookup.containing(names.PRIORITYCLASSES, b'"globalDefault":true')
        chosen = [each for each in classes if each.get("globalDefault")]
        return min(chosen, key=lambda each: int(each.get("value", 0)), default=None)


def _taint_not_ready(node: Json) -> None:
    """Taint a new node until it is found ready."""
    taint = {"key": _NOT_READY, "effect": "NoSchedule"}
    spec = node.setdefault("spec", {})
    taints = spec.get("taints") or []
    if not any((each.get("key"), each.get("effect")) == tuple(taint.values()) for each in taints):
        spec["taints"] = [*taints, taint]


def _add_default_tolerations(spec: Json) -> None:
    tolerations = spec.get("tolerations") or []
    for taint in (_NOT_READY, _UNREACHABLE):
        if not any(_tolerates(toleration, taint) for toleration in tolerations):
            tolerations.append(
                {
                    "key": taint,
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": DEFAULT_TOLERATION_SECONDS,
                }
            )
    spec["tolerations"] = tolerations


def _tolerates(toleration: Json, taint: str) -> bool:
    if toleration.get("key", "") not in ("", taint):
        return False
    return toleration.get("effect", "") in ("", "NoExecute")


def _admission_request(attributes: AdmissionAttributes, obj: Json | None) -> AdmissionRequest:
    return AdmissionRequest(
        operation=attributes.operation,
        namespace=attributes.namespace,
        name=attributes.name,
        object=obj,
        old_object=attributes.old_object,
        user=attributes.user.name,
    )


def _denied(webhook: Webhook, error: DeniedError) -> StatusError:
    text = f'admission webhook "{webhook.name}" denied the request: {error}'
    # No reason: clients see denials without a status like this.
    return StatusError(400, "", text)
