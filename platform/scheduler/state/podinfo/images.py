"""Container images of pods, and which nodes have them."""

from collections.abc import Sequence

import numpy as np

from ..core_types import ContainerImage, PodSpec
from ..resources import IntVector


def pod_images(spec: PodSpec) -> tuple[str, ...]:
    """Return the images of a pod, with a tag or digest each, sorted; repeats are kept."""
    containers = (*spec.init_containers, *spec.containers)
    volumes = [volume.image.reference for volume in spec.volumes if volume.image is not None]
    return tuple(sorted(_tagged(name) for name in (*(c.image for c in containers), *volumes)))


def _tagged(name: str) -> str:
    return name if name.rfind(":") > name.rfind("/") else f"{name}:latest"


class NodeImages:
    """The images on each node, as nodes report them."""

    def __init__(self) -> None:
        """Start without nodes."""
        self._by_node: dict[int, tuple[ContainerImage, ...]] = {}
        self._sizes: dict[str, dict[int, int]] = {}
        """Size on each node, by name."""

    def update(self, node_index: int, images: tuple[ContainerImage, ...]) -> None:
        """Set the images of *node_index*."""
        known = self._by_node.pop(node_index, ())
        if images:
            self._by_node[node_index] = images
        if known == images:
            return
        for name in (name for image in known for name in image.names):
            sizes = self._sizes.get(name, {})
            sizes.pop(node_index, None)
            if not sizes:
                self._sizes.pop(name, None)
        for image in images:
            for name in image.names:
                self._sizes.setdefault(name, {})[node_index] = image.size_bytes

    def local_bytes(
        self, images: Sequence[str], *, columns: int, node_count: int
    ) -> IntVector | None:
        """Return for each column the size of those of *images* that the node has; ``None`` if none
        has any.

        A size is scaled by the share of the nodes that have the image, so that pods do not gather
        on the few that do.
        """
        result: IntVector | None = None
        for name in images:
            sizes = self._sizes.get(name)
            if sizes:
                share = len(sizes) / node_count
                result = np.zeros(columns, np.int64) if result is None else result
                # Sizes of all nodes are below 2**53, so the product is exact enough to truncate.
                scaled = np.array(list(sizes.values()), np.float64) * share
                result[list(sizes)] += scaled.astype(np.int64)
        return result
