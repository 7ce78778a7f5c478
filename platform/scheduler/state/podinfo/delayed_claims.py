"""Claims that are bound once their pod has a node (``WaitForFirstConsumer``), and their demands.

Claims with equal demands are interchangeable, so that the pods of a gang that have a claim each are
one equivalence class. A claim that several pods mount, for which a volume is reserved, or whose
node is chosen already, is identified by its key.
"""

from dataclasses import dataclass, replace

from ....model.quantity import QuantityError, parse
from ....model.selectors import Selector, from_label_selector
from ..core_types import PersistentVolume, PersistentVolumeClaim, StorageClass

WAIT_FOR_FIRST_CONSUMER = "WaitForFirstConsumer"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
"""Annotation of a claim: the node for which its volume is to be provisioned."""

_CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"
_NO_PROVISIONER = "kubernetes.io/no-provisioner"
_SEVERAL_NODES = frozenset(("ReadWriteMany", "ReadOnlyMany"))


@dataclass(frozen=True, slots=True)
class DelayedClaim:
    """The demands of a claim."""

    size: int
    """In billionths of a byte."""

    storage_class: str
    access_modes: frozenset[str]
    volume_mode: str
    attributes_class: str
    selector: Selector | None
    provisioner: str
    """Empty if volumes of the class are not provisioned."""

    key: str = ""
    """``namespace/name``, if it is not interchangeable."""

    selected_node: str = ""
    """The node for which its volume is being provisioned."""

    volume: str = ""
    """The volume that is reserved for it."""

    @property
    def is_for_one_node(self) -> bool:
        """Whether all pods that mount it have to be on one node."""
        return not self.access_modes & _SEVERAL_NODES

    @property
    def demand(self) -> "DelayedClaim":
        """What is equal for claims that match the same volumes."""
        return replace(self, key="", selected_node="", volume="")

    def on_node(self, node: str) -> "DelayedClaim":
        """Return the same claim, whose volume is being provisioned for *node*."""
        return replace(self, selected_node=node)

    def with_volume(self, name: str, key: str) -> "DelayedClaim":
        """Return the claim *key* with these demands, for which the volume *name* is reserved."""
        return replace(self, key=key, volume=name)

    @property
    def order(self) -> tuple[object, ...]:
        """Smaller claims are matched first, as in kube-scheduler, so that these take small
        volumes."""
        return self.size, self.storage_class, self.key, repr(self)

    def admits(self, volume: PersistentVolume) -> bool:
        """Return whether *volume*, which is reserved for it, has what it demands."""
        spec = volume.spec
        return (
            not volume.metadata.deletion_timestamp
            and storage_size(spec.capacity.get("storage")) >= self.size
            and spec.volume_mode == self.volume_mode
            and spec.volume_attributes_class_name == self.attributes_class
        )

    def matches(self, volume: PersistentVolume) -> bool:
        """Return whether it can be bound to *volume*, which is not reserved, apart from the
        node."""
        return (
            self.admits(volume)
            and volume.status.phase == "Available"
            and volume_class(volume) == self.storage_class
            and self.access_modes.issubset(volume.spec.access_modes)
            and (self.selector is None or self.selector.matches(volume.metadata.labels))
        )


def delayed_claim(
    claim: PersistentVolumeClaim,
    storage_class: StorageClass,
    *,
    is_shared: bool,
    selected_node: str,
) -> DelayedClaim:
    """Return the demands of *claim*, which has *storage_class*.

    Raises:
        SelectorError: its selector is invalid.
    """
    spec, provisioner = claim.spec, storage_class.provisioner
    return DelayedClaim(
        storage_size(spec.resources.requests.get("storage")),
        storage_class.metadata.name,
        frozenset(spec.access_modes),
        spec.volume_mode,
        spec.volume_attributes_class_name,
        None if spec.selector is None else from_label_selector(spec.selector),
        "" if provisioner == _NO_PROVISIONER else provisioner,
        claim.metadata.key if is_shared or selected_node else "",
        selected_node,
    )


def claim_class(claim: PersistentVolumeClaim) -> str:
    """Return the name of the storage class of *claim*."""
    return claim.metadata.annotations.get(_CLASS_ANNOTATION) or claim.spec.storage_class_name


def volume_class(volume: PersistentVolume) -> str:
    """Return the name of the storage class of *volume*."""
    return volume.metadata.annotations.get(_CLASS_ANNOTATION) or volume.spec.storage_class_name


def is_reserved_for(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """Return whether *volume* names *claim*."""
    about, meta = volume.spec.claim_ref, claim.metadata
    return (
        about is not None
        and (about.namespace, about.name) == (meta.namespace, meta.name)
        and about.uid in ("", meta.uid)
    )


def storage_size(amount: str | int | float | None) -> int:
    """Return *amount* in billionths of a byte; 0 if there is none, or it is malformed."""
    if amount is None:
        return 0
    try:
        return parse(amount).nanos
    except QuantityError:
        return 0
