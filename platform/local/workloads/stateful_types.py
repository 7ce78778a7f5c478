"""StatefulSets as their controller sees them, their pods and claims."""

import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass

import msgspec

from ...machinery.pod_control import Owner, from_template
from ...model.base import ApiStruct
from ...model.meta import LabelSelector, ObjectMeta
from ...model.names import PODS, STATEFULSETS
from ...model.selectors import Selector, from_label_selector
from .deployment_types import scaled
from .revisions import REVISION_LABEL
from .types import Json, Pod

POD_NAME_LABEL = "statefulset.kubernetes.io/pod-name"
POD_INDEX_LABEL = "apps.kubernetes.io/pod-index"

_ORDINAL = re.compile(r"(.*)-([0-9]+)", re.ASCII)


class RollingUpdate(ApiStruct, frozen=True):
    """Options of a rolling update."""

    partition: int = 0
    max_unavailable: int | str | None = None


class UpdateStrategy(ApiStruct, frozen=True):
    """``spec.updateStrategy``."""

    type: str = "RollingUpdate"
    rolling_update: RollingUpdate | None = None


class Ordinals(ApiStruct, frozen=True):
    """``spec.ordinals``."""

    start: int = 0


class RetentionPolicy(ApiStruct, frozen=True):
    """What becomes of claims."""

    when_deleted: str = "Retain"
    when_scaled: str = "Retain"


class StatefulSetSpec(ApiStruct, frozen=True):
    """``spec`` of a StatefulSet."""

    replicas: int = 1
    selector: LabelSelector | None = None
    template: msgspec.Raw = msgspec.Raw(b"{}")
    volume_claim_templates: tuple[Json, ...] = ()
    service_name: str = ""
    pod_management_policy: str = "OrderedReady"
    update_strategy: UpdateStrategy = UpdateStrategy()
    revision_history_limit: int | None = None
    min_ready_seconds: int = 0
    persistent_volume_claim_retention_policy: RetentionPolicy = RetentionPolicy()
    ordinals: Ordinals | None = None


class StatefulSet(ApiStruct, frozen=True):
    """A StatefulSet."""

    metadata: ObjectMeta = ObjectMeta()
    spec: StatefulSetSpec = StatefulSetSpec()
    status: Json = {}

    @property
    def selector(self) -> Selector:
        """The selector of its pods."""
        return from_label_selector(self.spec.selector)

    @property
    def start(self) -> int:
        """The first ordinal."""
        return self.spec.ordinals.start if self.spec.ordinals else 0

    @property
    def ordinals(self) -> range:
        """The ordinals of its pods."""
        return range(self.start, self.start + self.spec.replicas)

    @property
    def is_ordered(self) -> bool:
        """Whether each pod waits for the one before it."""
        return self.spec.pod_management_policy == "OrderedReady"

    @property
    def partition(self) -> int:
        """The first ordinal whose pod a rolling update replaces."""
        rolling = self.spec.update_strategy.rolling_update
        return self.start + (rolling.partition if rolling else 0)

    @property
    def max_unavailable(self) -> int:
        """How many pods a rolling update may delete at a time."""
        rolling = self.spec.update_strategy.rolling_update
        if rolling is None or rolling.max_unavailable is None:
            return 1
        return max(scaled(rolling.max_unavailable, self.spec.replicas, up=False), 1)

    def ordinal(self, pod: Pod) -> int:
        """Return the ordinal of a pod by its name; -1 if it is not one of this set's names."""
        found = _ORDINAL.fullmatch(pod.metadata.name)
        if found is None or found[1] != self.metadata.name:
            return -1
        return int(found[2])

    def pod_name(self, ordinal: int) -> str:
        """Return the name of a pod."""
        return f"{self.metadata.name}-{ordinal}"

    def claim_name(self, template: Json, ordinal: int) -> str:
        """Return the name of the claim that a pod has of a template."""
        return f"{template['metadata']['name']}-{self.pod_name(ordinal)}"

    def claim_names(self, ordinal: int) -> Iterator[str]:
        """Yield the names of a pod's claims."""
        for template in self.spec.volume_claim_templates:
            yield self.claim_name(template, ordinal)


class Claim(ApiStruct, frozen=True):
    """A PersistentVolumeClaim, of which the controller writes the owners."""

    metadata: ObjectMeta = ObjectMeta()


def identity_labels(found: StatefulSet, ordinal: int) -> dict[str, str]:
    """Return the labels that name a pod and its ordinal."""
    return {POD_NAME_LABEL: found.pod_name(ordinal), POD_INDEX_LABEL: str(ordinal)}


def new_pod(found: StatefulSet, template: Json, revision: str, ordinal: int) -> Json:
    """Return the body of a pod."""
    owner = Owner(resource=STATEFULSETS, metadata=found.metadata)
    name = found.pod_name(ordinal)
    body = from_template(template, owner, name=name)
    body["metadata"]["labels"] |= {**identity_labels(found, ordinal), REVISION_LABEL: revision}
    spec = body["spec"]
    spec["hostname"], spec["subdomain"] = name, found.spec.service_name
    claims = {each["metadata"]["name"] for each in found.spec.volume_claim_templates}
    own = [
        {
            "name": each["metadata"]["name"],
            "persistentVolumeClaim": {"claimName": found.claim_name(each, ordinal)},
        }
        for each in found.spec.volume_claim_templates
    ]
    others = [each for each in spec.get("volumes") or () if each["name"] not in claims]
    if own or others:
        spec["volumes"] = [*own, *others]
    return body


def new_claims(found: StatefulSet, ordinal: int, missing: Sequence[str]) -> list[Json]:
    """Return the bodies of the *missing* claims of a pod."""
    labels = dict(found.spec.selector.match_labels) if found.spec.selector else {}
    bodies = []
    for template in found.spec.volume_claim_templates:
        name = found.claim_name(template, ordinal)
        if name not in missing:
            continue
        body = deepcopy(template)
        body.pop("status", None)
        metadata = body["metadata"]
        metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
        metadata |= {"name": name, "namespace": found.metadata.namespace}
        bodies.append(body)
    return bodies


def wanted_owners(
    found: StatefulSet, claim: Claim, pod: Pod | None, *, surplus: bool
) -> list[Json] | None:
    """Return the owner references that a claim must have; None if it has them.

    Its owner is the set if it is to be deleted with it, and the pod if it is to be deleted because
    the set was scaled down. References of others stay.
    """
    policy = found.spec.persistent_volume_claim_retention_policy
    owners = claim.metadata.owner_references
    of_set = [each for each in owners if each.uid == found.metadata.uid]
    of_pods = [each for each in owners if (each.api_version, each.kind) == ("v1", PODS.kind)]
    rest = [each for each in owners if each not in of_set and each not in of_pods]
    if any(each.controller for each in rest):
        return None  # another controller decides
    wanted = [msgspec.to_builtins(each) for each in rest]
    by_pod = surplus and policy.when_scaled == "Delete" and pod is not None
    if by_pod and pod is not None:
        wanted.append(_reference("v1", PODS.kind, pod.metadata))
    elif policy.when_deleted == "Delete":
        wanted.append(_reference(STATEFULSETS.api_version, STATEFULSETS.kind, found.metadata))
    current = [msgspec.to_builtins(each) for each in owners]

    def identities(references: Sequence[Json]) -> list[tuple[str, bool]]:
        return sorted((each["uid"], bool(each.get("controller"))) for each in references)

    return None if identities(current) == identities(wanted) else wanted


def _reference(api_version: str, kind: str, meta: ObjectMeta) -> Json:
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": meta.name,
        "uid": meta.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


@dataclass(frozen=True, slots=True)
class PodRevisions:
    """The revision that the pods had, and the one that they get."""

    current: str
    update: str
    current_template: Json
    update_template: Json
