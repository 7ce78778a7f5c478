"""Validation of the queue hierarchy: depth, parents, and resources of ancestors and siblings.

The root queue has no limits: its capability is the cluster's capacity.
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
    """Stored queues by name and by parent, read on first use."""

    def __init__(self, reader: ObjectReader) -> None:
        self._reader = reader

    @cached_property
    def _by_name(self) -> dict[str, Queue]:
        queues = (decode(queue, Queue) for queue in self._reader.list(QUEUES))
        return {queue.metadata.name: queue for queue in queues}

    @cached_property
    def _by_parent(self) -> dict[str, list[Queue]]:
        children: dict[str, list[Queue]] = {}
        for queue in self._by_name.values():
            children.setdefault(queue.spec.parent, []).append(queue)
        return children

    def get(self, name: str) -> Queue | None:
        """Return one queue, or ``None``."""
        return self._by_name.get(name)

    def children(self, name: str) -> list[Queue]:
        """Return the children of *name*."""
        return self._by_parent.get(name, [])

    def ancestors(self, queue: Queue) -> Iterator[Queue]:
        """Yield the ancestors of *queue* below root, nearest first.

        Stops at a missing parent or a cycle.
        """
        seen = {queue.metadata.name}
        parent = queue.spec.parent
        while parent not in ("", ROOT_QUEUE) and parent not in seen:
            ancestor = self.get(parent)
            if ancestor is None:
                return
            yield ancestor
            seen.add(parent)
            parent = ancestor.spec.parent

    def subtree(self, name: str) -> Iterator[tuple[Queue, int]]:
        """Yield every descendant of *name* with its relative depth; once each, even in a cycle."""
        seen, level, depth = {name}, [name], 0
        while level:
            depth += 1
            children = [child for parent in level for child in self.children(parent)]
            unseen = [child for child in children if child.metadata.name not in seen]
            yield from ((child, depth) for child in unseen)
            level = [child.metadata.name for child in unseen]
            seen.update(level)


def validate_parent(queue: Queue, tree: QueueTree, settings: AdmissionSettings) -> None:
    """Validate the parent of a queue.

    Raises:
        DeniedError: the parent is missing, has allocated pods, or is the queue or its
            descendant; or the tree is too deep.
    """
    name, parent = queue.metadata.name, queue.spec.parent
    if name == ROOT_QUEUE and parent:
        raise DeniedError(f"queue {name} has no parent, cannot set it to {parent}")
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
    """Check that every ancestor exists and none is the queue itself."""
    name, last = queue.metadata.name, queue
    for ancestor in ancestors:
        if ancestor.spec.parent == name:
            raise DeniedError(
                f"queue {name} cannot have parent {queue.spec.parent}, its descendant"
            )
        last = ancestor
    missing = last.spec.parent
    if missing in ("", ROOT_QUEUE):
        return
    if any(missing == ancestor.metadata.name for ancestor in ancestors):
        raise DeniedError(f"the parents of queue {name} form a cycle at {missing}")
    raise _parent_not_found(missing, last.metadata.name)


def _parent_not_found(parent: str, name: str) -> DeniedError:
    return DeniedError(
        f"parent queue {parent} not found: failed to get parent queue {parent} of queue {name}:"
        f' queue.scheduling.volcano.sh "{parent}" not found'
    )


def validate_resources(queue: Queue, tree: QueueTree) -> None:
    """Validate a queue's resources against its ancestors, siblings and children.

    Raises:
        DeniedError: an amount exceeds a limit of an ancestor or is below those of descendants.
    """
    name, parent = queue.metadata.name, queue.spec.parent
    capability = _counted_resources(queue.spec.capability)
    if parent not in ("", ROOT_QUEUE):
        parent_queue = tree.get(parent)
        if parent_queue is None:
            raise _parent_not_found(parent, name)
        _validate_capability(name, capability, list(tree.ancestors(queue)))
        siblings = [child for child in tree.children(parent) if child.metadata.name != name]
        _validate_sums((*siblings, queue), parent_queue)
    children = tree.children(name)
    for resource, amount in capability.items():
        maximum = _max_descendant_capability(name, resource, tree)
        if amount < maximum:
            raise DeniedError(
                f"queue {name} capability[{resource}]={amount} is smaller than"
                f" its descendants' max capability={maximum}"
            )
    if children:
        _validate_sums(children, queue)


def _validate_capability(name: str, capability: Amounts, ancestors: list[Queue]) -> None:
    for resource, amount in capability.items():
        limits = (_counted_resources(each.spec.capability).get(resource) for each in ancestors)
        nearest = next(filter(None, limits), None)
        if nearest is not None and amount > nearest:
            raise DeniedError(
                f"queue {name} capability[{resource}]={amount} exceeds"
                f" its ancestor's capability={nearest}"
            )


def _max_descendant_capability(name: str, resource: str, tree: QueueTree) -> Quantity:
    """Return the largest capability below *name*. The descendants of a queue with a capability do
    not count, since they cannot have more."""
    largest, level, seen = quantity.ZERO, [name], {name}
    while level:
        children = [child for parent in level for child in tree.children(parent)]
        level = []
        for child in children:
            own = _counted_resources(child.spec.capability).get(resource, quantity.ZERO)
            largest = max(largest, own)
            if not own and child.metadata.name not in seen:
                level.append(child.metadata.name)
                seen.add(child.metadata.name)
    return largest


def _validate_sums(children: Iterable[Queue], parent: Queue) -> None:
    """Check that the parent's guarantee and deserved cover the sums of its children's."""
    children = tuple(children)
    for field, limit, amounts in (
        (
            "guarantee",
            parent.spec.guarantee.resource,
            [child.spec.guarantee.resource for child in children],
        ),
        ("deserved", parent.spec.deserved, [child.spec.deserved for child in children]),
    ):
        limits = _counted_resources(limit)
        for resource, total in _sum(amounts).items():
            maximum = limits.get(resource)
            if maximum is None and not total and resource in ("cpu", "memory"):
                continue
            if maximum is None or total > maximum:
                raise DeniedError(
                    f"sum of children's {field} ({resource} {total}) exceeds parent's {field} limit"
                    f" ({resource} {maximum or 'not set'}): the parent is {parent.metadata.name}"
                )


def _sum(lists: Iterable[Quantities]) -> dict[str, Quantity]:
    total: dict[str, Quantity] = {}
    for amounts in lists:
        for resource, amount in _counted_resources(amounts).items():
            total[resource] = total.get(resource, quantity.ZERO) + amount
    return total


def _counted_resources(amounts: Quantities) -> dict[str, Quantity]:
    """Return the amounts of resources that schedulers count."""
    counted = {}
    for resource, value in amounts.items():
        if is_counted(resource):
            try:
                counted[resource] = quantity.parse(value)
            except QuantityError:  # Of a stored queue that the schema allowed.
                continue
    return counted


def validate_delete(name: str, tree: QueueTree, settings: AdmissionSettings) -> None:
    """Validate the deletion of a queue.

    Raises:
        DeniedError: the queue is ``default`` or ``root``, or has children or allocated pods.
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
    """Return the number of pods allocated to the queue, or ``""``."""
    pods = _counted_resources(queue.status.allocated).get("pods")
    return str(pods) if pods else ""
