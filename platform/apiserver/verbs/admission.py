"""What happens to a write between decoding and storing: our own plug-ins, then the webhooks.

Webhooks here are functions in this process, handed in by whoever starts the server; they speak
with the same words as webhooks on a real cluster.
"""

from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import TypeVar

import msgspec

from ...model import names, quantity
from ...model.admission import AdmissionRequest, DeniedError, Json, Webhook
from ...model.names import Resource
from ..builtin.core_objects import storage_request
from ..builtin.unenforced import warnings_on_write
from ..discovery.catalog import Catalog
from ..errors.status import StatusError, forbidden
from ..kinds.info import KindInfo
from ..storage.object_store import ObjectStore
from ..storage.stored_objects import StoredObject

T = TypeVar("T")
_NOT_READY = "node.kubernetes.io/not-ready"
_UNREACHABLE = "node.kubernetes.io/unreachable"
EXEMPT_NAMESPACES = frozenset(("kube-system", "volcano-system"))
"""Namespaces that webhooks leave alone: those of the system and of the platform itself."""

DEFAULT_TOLERATION_SECONDS = 300
"""How long pods stay on a node that is gone, unless they say otherwise."""


UnchangedCheck = Callable[[], bool]
"""Tells whether something that was read is still as it was."""

_reads: ContextVar[list[UnchangedCheck] | None] = ContextVar("reads", default=None)


class LatestReader:
    """What admission rules may read: the state that the write under review will meet.

    Rules that run in a thread may see a change half made; what they read is noted, and whoever
    acts on their word asks first whether it is unchanged.
    """

    def __init__(self, store: ObjectStore, catalog: Catalog) -> None:
        self._store = store
        self._catalog = catalog

    def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """One object, or ``None``."""
        kind = self._catalog.get(resource.group, resource.version, resource.plural)
        if kind is None:
            return None
        shelf = self._store.resource_store(kind)
        entry = shelf.latest(namespace, name)
        if (reads := _reads.get()) is not None:
            reads.append(lambda: shelf.latest(namespace, name) is entry)
        return entry.parse() if entry else None

    def list(self, resource: Resource) -> Iterable[Json]:
        """All objects of a resource."""
        kind = self._catalog.get(resource.group, resource.version, resource.plural)
        if kind is None:
            return
        for entry in self._latest_entries(kind):
            yield entry.parse()

    def containing(self, resource: Resource, text: bytes) -> Iterable[Json]:
        """The objects of a resource whose JSON contains *text*; others are not even parsed."""
        kind = self._catalog.require(resource)
        return [each.parse() for each in self._latest_entries(kind) if text in each.data]

    def _latest_entries(self, kind: KindInfo) -> Sequence[StoredObject]:
        shelf = self._store.resource_store(kind)
        if (reads := _reads.get()) is not None:
            moves = shelf.change_count
            reads.append(lambda: shelf.change_count == moves)
        return list(shelf.latest_entries())


class AdmissionAttributes(msgspec.Struct, frozen=True, kw_only=True):
    """A write under review."""

    operation: str
    kind: KindInfo
    namespace: str
    name: str
    old_object: Json | None
    user: str
    warnings: list[str] | None = None
    """Where to say what has no effect."""


class Admission:
    """The plug-ins and webhooks, in their order."""

    def __init__(self, lookup: LatestReader, webhooks: Sequence[Webhook]) -> None:
        self._lookup = lookup
        self._webhooks: dict[tuple[str, str, str], list[Webhook]] = {}
        for webhook in webhooks:
            for operation in webhook.operations:
                key = operation, webhook.resource.group, webhook.resource.plural
                self._webhooks.setdefault(key, []).append(webhook)

    def recording_reads(self, work: Callable[[], T]) -> tuple[T, list[UnchangedCheck]]:
        """Do *work*; also returns what tells whether all that it looked up is unchanged."""
        reads: list[UnchangedCheck] = []
        token = _reads.set(reads)
        try:
            return work(), reads
        finally:
            _reads.reset(token)

    def mutate(self, attributes: AdmissionAttributes, obj: Json) -> Json:
        """The object with everything that admission adds to it.

        Raises:
            StatusError: 403 or what a webhook says.
        """
        if attributes.operation == "UPDATE" and attributes.kind.resource == names.PODS:
            _add_default_tolerations(obj["spec"])
        if attributes.operation == "CREATE":
            if attributes.kind.resource == names.PODS:
                self._default_pod(attributes, obj)
            elif attributes.kind.resource == names.NODES:
                _taint_not_ready(obj)
        for webhook in self._matching_webhooks(attributes):
            if webhook.mutate is not None:
                try:
                    obj = webhook.mutate(_admission_request(attributes, obj), self._lookup)
                except DeniedError as error:
                    raise _denied(webhook, error) from error
        return obj

    def validate(self, attributes: AdmissionAttributes, obj: Json | None) -> None:
        """Let the write pass, or not; say what of it has no effect.

        Raises:
            StatusError: 403, a webhook refuses, or the write has no effect.
        """
        if (
            attributes.kind.resource == names.PERSISTENTVOLUMECLAIMS
            and obj
            and attributes.old_object
        ):
            self._check_resize(attributes, obj, attributes.old_object)
        for webhook in self._matching_webhooks(attributes):
            if webhook.validate is not None:
                try:
                    webhook.validate(_admission_request(attributes, obj), self._lookup)
                except DeniedError as error:
                    raise _denied(webhook, error) from error
        if obj is not None and attributes.warnings is not None:
            attributes.warnings.extend(
                warnings_on_write(attributes.kind.resource, obj, attributes.old_object)
            )

    def _check_resize(self, attributes: AdmissionAttributes, pvc: Json, old: Json) -> None:
        """Refuse a larger claim, as kube-apiserver does where the class allows no expansion."""
        size, before = (storage_request(each.get("spec", {})) for each in (pvc, old))
        if size == before or quantity.parse(size) <= quantity.parse(before):
            return
        chosen = pvc["spec"].get("storageClassName", "")
        found = self._lookup.get(names.STORAGECLASSES, "", chosen) if chosen else None
        why = (
            "only dynamically provisioned pvc can be resized and the storageclass that provisions "
            "the pvc must support resize"
        )
        if found and found.get("allowVolumeExpansion"):
            why = "the embedded cluster does not expand volumes"
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
        spec.setdefault("serviceAccountName", "default")
        spec.setdefault("serviceAccount", spec["serviceAccountName"])
        self._set_priority(attributes, spec)
        _add_default_tolerations(spec)

    def _set_priority(self, attributes: AdmissionAttributes, spec: Json) -> None:
        name = spec.get("priorityClassName", "")
        found = self._lookup.get(names.PRIORITYCLASSES, "", name) if name else None
        if name and found is None:
            why = f"no PriorityClass with name {name} was found"
            raise forbidden(attributes.kind.resource, attributes.name, why)
        if not name:
            found = self._default_priority_class()
            if found is not None:
                spec["priorityClassName"] = found["metadata"]["name"]
        value = found.get("value", 0) if found else 0
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

    def _default_priority_class(self) -> Json | None:
        classes = self._lookup.containing(names.PRIORITYCLASSES, b'"globalDefault":true')
        chosen = [each for each in classes if each.get("globalDefault")]
        return min(chosen, key=lambda each: int(each.get("value", 0)), default=None)


def _taint_not_ready(node: Json) -> None:
    """A new node gets no pods until somebody has found it ready."""
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
        user=attributes.user,
    )


def _denied(webhook: Webhook, error: DeniedError) -> StatusError:
    text = f'admission webhook "{webhook.name}" denied the request: {error}'
    # No reason: that is how a denial without a status of its own looks to clients.
    return StatusError(400, "", text)
