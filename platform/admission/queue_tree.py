"""How queues fit together: depth of the tree, limits of ancestors, shares of siblings.

The root queue is above all limits: its capability is that of the cluster.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from ..model import quantity
from ..model.admission import DeniedError, ObjectReader
from ..model.names import DEFAULT_QUEUE, QUEUES, ROOT_QUEUE
from ..model.quantity import Quantity, QuantityError
from ..model.queue import Quantities, Queue
from ..model.resource_names import is_counted
from .decoding import decode
from .settings import AdmissionSettings

Amounts = Mapping[str, Quantity]


class QueueTree:
    """The queues that are stored, by name and by parent; read when first asked."""

    def __init__(self, reader: ObjectReader) -> None:
        self._lookup = reader

    @cached_property
    def _by_name(self) -> dict[str, Queue]:
        queues = (decode(queue, Queue) for queue in self._lookup.list(QUEUES))
        return {queue.metadata.name: queue for queue in queues}

    @cached_property
    def _by_parent(self) -> dict[str, list[Queue]]:
        families: dict[str, list[Queue]] = {}
        for queue in self._by_name.values():
            families.setdefault(queue.spec.parent, []).append(queue)
        return families

    def get(self, name: str) -> Queue | None:
        """One queue, or ``None``."""
        return self._by_name.get(name)

    def children(self, name: str) -> list[Queue]:
        """The queues directly below *name*."""
        return self._by_parent.get(name, [])

    def ancestors(self, queue: Queue) -> Iterator[Queue]:
        """The queues above *queue* and below root, the nearest first.

        Ends where a parent is missing or a circle closes.
        """
        seen = {queue.metadata.name}
        parent = queue.spec.parent
        while parent not in ("", ROOT_QUEUE) and parent not in seen:
            above = self.get(parent)
            if above is None:
                return
            yield above
            seen.add(parent)
            parent = above.spec.parent

    def subtree(self, name: str) -> Iterator[tuple[Queue, int]]:
        """Every queue below *name*, with its depth below it; each once, even in a circle."""
        seen, level, depth = {name}, [name], 0
        while level:
            depth += 1
            below = [child for above in level for child in self.children(above)]
            fresh = [child for child in below if child.metadata.name not in seen]
            yield from ((child, depth) for child in fresh)
            level = [child.metadata.name for child in fresh]
            seen.update(level)


def validate_parent(queue: Queue, tree: QueueTree, settings: AdmissionSettings) -> None:
    """Check the parent that a queue has been given.

    Raises:
        DeniedError: the parent is missing, busy, the queue itself or below it, or too deep.
    """
    name, parent = queue.metadata.name, queue.spec.parent
    if name == ROOT_QUEUE and parent:
        raise DeniedError(f"queue {name} has no parent, {parent} cannot be it")
    if parent in ("", ROOT_QUEUE):
        return
    if parent == name:
        raise DeniedError(f"queue {name} cannot use itself as parent")
    ancestors = list(tree.ancestors(queue))
    _validate_ancestor_chain(queue, ancestors)
    height = max((depth for _, depth in tree.subtree(name)), default=0)
    depth = len(ancestors) + 1 + height
    if depth > settings.max_queue_depth:
        raise DeniedError(
            f"queue {name} exceeds the maximum allowed depth of {settings.max_queue_depth}: it or a"
            f" queue below it would be {depth} levels deep under parent {parent}"
        )
    if not tree.children(parent) and (pods := _allocated_pods(ancestors[0])):
        raise DeniedError(
            f"queue {parent} cannot be the parent queue of queue {name} because it has"
            f" allocated Pods: {pods}"
        )


def _validate_ancestor_chain(queue: Queue, ancestors: list[Queue]) -> None:
    """Every ancestor must exist, and none be the queue itself."""
    name, last = queue.metadata.name, queue
    for above in ancestors:
        if above.spec.parent == name:
            raise DeniedError(
                f"queue {name} cannot have parent {queue.spec.parent}, which lies below it"
            )
        last = above
    missing = last.spec.parent
    if missing in ("", ROOT_QUEUE):
        return
    if any(missing == above.metadata.name for above in ancestors):
        raise DeniedError(f"the parents of queue {name} form a circle at {missing}")
    raise _parent_not_found(missing, last.metadata.name)


def _parent_not_found(parent: str, name: str) -> DeniedError:
    return DeniedError(
        f"parent queue {parent} not found: failed to get parent queue {parent} of queue {name}:"
        f' queue.scheduling.volcano.sh "{parent}" not found'
    )


def validate_resources(queue: Queue, tree: QueueTree) -> None:
    """Check what a queue claims against its ancestors, siblings and children.

    Raises:
        DeniedError: some amount is more than there is above, or less than was given below.
    """
    name, parent = queue.metadata.name, queue.spec.parent
    capability = _counted_resources(queue.spec.capability)
    if parent not in ("", ROOT_QUEUE):
        above = tree.get(parent)
        if above is None:
            raise _parent_not_found(parent, name)
        _validate_capability(name, capability, list(tree.ancestors(queue)))
        siblings = [child for child in tree.children(parent) if child.metadata.name != name]
        _validate_sums((*siblings, queue), above)
    children = tree.children(name)
    for resource, amount in capability.items():
        most = _max_descendant_capability(name, resource, tree)
        if amount < most:
            raise DeniedError(
                f"queue {name} capability[{resource}]={amount} is smaller than"
                f" its descendants' max capability={most}"
            )
    if children:
        _validate_sums(children, queue)


def _validate_capability(name: str, capability: Amounts, ancestors: list[Queue]) -> None:
    for resource, amount in capability.items():
        limits = (_counted_resources(above.spec.capability).get(resource) for above in ancestors)
        nearest = next(filter(None, limits), None)
        if nearest is not None and amount > nearest:
            raise DeniedError(
                f"queue {name} capability[{resource}]={amount} exceeds"
                f" its ancestor's capability={nearest}"
            )


def _max_descendant_capability(name: str, resource: str, tree: QueueTree) -> Quantity:
    """The largest capability below *name*; what limits itself hides what is below it."""
    largest, level, seen = quantity.ZERO, [name], {name}
    while level:
        children = [child for above in level for child in tree.children(above)]
        level = []
        for child in children:
            own = _counted_resources(child.spec.capability).get(resource, quantity.ZERO)
            largest = max(largest, own)
            if not own and child.metadata.name not in seen:
                level.append(child.metadata.name)
                seen.add(child.metadata.name)
    return largest


def _validate_sums(children: Iterable[Queue], parent: Queue) -> None:
    """What all children are promised, the parent must have been promised."""
    children = tuple(children)
    for what, limit, parts in (
        (
            "guarantee",
            parent.spec.guarantee.resource,
            [child.spec.guarantee.resource for child in children],
        ),
        ("deserved", parent.spec.deserved, [child.spec.deserved for child in children]),
    ):
        promised = _counted_resources(limit)
        for resource, total in _sum(parts).items():
            most = promised.get(resource)
            if most is None and not total and resource in ("cpu", "memory"):
                continue
            if most is None or total > most:
                raise DeniedError(
                    f"sum of children's {what} ({resource} {total}) exceeds parent's {what} limit"
                    f" ({resource} {most or 'not set'}): the parent is {parent.metadata.name}"
                )


def _sum(parts: Iterable[Quantities]) -> dict[str, Quantity]:
    total: dict[str, Quantity] = {}
    for amounts in parts:
        for resource, amount in _counted_resources(amounts).items():
            total[resource] = total.get(resource, quantity.ZERO) + amount
    return total


def _counted_resources(amounts: Quantities) -> dict[str, Quantity]:
    """The amounts of those resources that a scheduler counts."""
    read = {}
    for resource, given in amounts.items():
        if is_counted(resource):
            try:
                read[resource] = quantity.parse(given)
            except QuantityError:  # of another queue, which the schema has let in
                continue
    return read


def validate_delete(name: str, tree: QueueTree, settings: AdmissionSettings) -> None:
    """Check that a queue may go.

    Raises:
        DeniedError: it is one of the two that must stay, or something depends on it.
    """
    if name in (DEFAULT_QUEUE, ROOT_QUEUE):
        raise DeniedError(f"`{name}` queue can not be deleted")
    queue = tree.get(name)
    if queue is None:
        raise DeniedError(f'queue.scheduling.volcano.sh "{name}" not found')
    if settings.queue_allocated_pods_check and (pods := _allocated_pods(queue)):
        raise DeniedError(f"queue {name} cannot be deleted because it has allocated Pods: {pods}")
    if children := sorted(child.metadata.name for child in tree.children(name)):
        raise DeniedError(
            f"queue {name} can not be deleted because it has {len(children)} child queues:"
            f" {', '.join(children)}"
        )


def _allocated_pods(queue: Queue) -> str:
    """The number of pods that hold resources of the queue, or ``""``."""
    pods = _counted_resources(queue.status.allocated).get("pods")
    return str(pods) if pods else ""
