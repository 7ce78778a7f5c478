"""Pod fields that constrain scheduling and that the scheduler does not implement.

A pod with such a field would be scheduled as if it did not have it, so it is unschedulable instead,
and its condition names the field. Preferences are not rejected: ignoring one breaks no promise.
A filter that implements a field removes its row.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..core_types import PodSpec

FieldPaths = Callable[[PodSpec], Iterator[str]]
"""Yields the paths at which a pod uses a field."""


@dataclass(frozen=True, slots=True)
class UnsupportedField:
    """A field of one pod for which it is unschedulable."""

    path: str
    """The path of its first use: ``spec.topologySpreadConstraints[0]``."""

    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def unsupported_fields(spec: PodSpec) -> tuple[UnsupportedField, ...]:
    """Return the fields of *spec* that are not implemented, each once, in the order of the table.

    Called once for each equivalence class.
    """
    found: list[UnsupportedField] = []
    for reason, paths in UNSUPPORTED_FIELDS.values():
        path = next(paths(spec), None)
        if path is not None:
            found.append(UnsupportedField(f"spec.{path}", reason))
    return tuple(found)


def exclusive_disks(spec: PodSpec) -> Iterator[str]:
    """Yield the paths of volumes that may be attached to a node once only."""
    for index, volume in enumerate(spec.volumes):
        if volume.aws_elastic_block_store is not None:
            yield f"volumes[{index}].awsElasticBlockStore"
        if volume.gce_persistent_disk is not None:
            yield f"volumes[{index}].gcePersistentDisk"
        if volume.iscsi is not None:
            yield f"volumes[{index}].iscsi"
        if volume.rbd is not None:
            yield f"volumes[{index}].rbd"


UNSUPPORTED_FIELDS: dict[str, tuple[str, FieldPaths]] = {
    "volumes[*]": (
        "the disk must not be used twice on a node, which is not checked; use a claim",
        exclusive_disks,
    ),
}
"""By field: why it is not supported, and where a pod uses it."""
