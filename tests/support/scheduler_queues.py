"""Builders for the tests of queue plugins."""

from collections.abc import Mapping

from msgspec import structs
from support.scheduler import Amount, SchedulerWorld, pod, podgroup

from batholith.model.meta import ObjectMeta
from batholith.model.podgroup import PodGroup
from batholith.model.queue import Guarantee, Queue, QueueAffinity, QueueSpec, QueueStatus
from batholith.scheduler.state.core_types import Pod

Amounts = Mapping[str, Amount]


def queue(
    name: str,
    *,
    parent: str = "",
    deserved: Amounts | None = None,
    guarantee: Amounts | None = None,
    capability: Amounts | None = None,
    weight: int = 1,
    priority: int = 0,
    reclaimable: bool | None = None,
    state: str = "Open",
    affinity: QueueAffinity | None = None,
    annotations: dict[str, str] | None = None,
) -> Queue:
    """An open queue."""
    return Queue(
        metadata=ObjectMeta(name=name, uid=f"queue-{name}", annotations=annotations or {}),
        spec=QueueSpec(
            weight=weight,
            parent=parent,
            deserved=dict(deserved or {}),
            guarantee=Guarantee(resource=dict(guarantee or {})),
            capability=dict(capability or {}),
            priority=priority,
            reclaimable=reclaimable,
            affinity=affinity,
        ),
        status=QueueStatus(state=state),
    )


def configuration(*tiers: str, actions: str = "enqueue, allocate") -> str:
    """A configuration with the entries of *tiers*, each in braces of YAML."""
    return f'actions: "{actions}"\ntiers:\n' + "\n".join(f"- plugins: [{tier}]" for tier in tiers)


def submit(
    world: SchedulerWorld,
    name: str,
    pods: int,
    *,
    queue: str = "default",
    minimum: int = 1,
    cpu: Amount = 1,
    extra: dict[str, Amount] | None = None,
) -> None:
    """Add a gang that is admitted, with *pods* pods of one CPU unless given."""
    world.upsert(podgroup(name, minimum, queue=queue))
    world.upsert(*(pod(f"{name}-t-{i}", name, cpu=cpu, extra=extra) for i in range(pods)))


def allocated_pods(world: SchedulerWorld) -> dict[str, int]:
    """Run a cycle; how many pods of each gang it allocated."""
    counts: dict[str, int] = {}
    for name in world.schedule():
        gang = name.partition("-t-")[0]
        counts[gang] = counts.get(gang, 0) + 1
    return counts


def annotated(one: Pod, **annotations: str) -> Pod:
    """The pod with more annotations; ``__`` in a name is a slash, ``_`` a dash."""
    more = {
        name.replace("__", ".sh/").replace("_", "-"): value for name, value in annotations.items()
    }
    metadata = one.metadata
    return structs.replace(
        one, metadata=structs.replace(metadata, annotations=metadata.annotations | more)
    )


def annotated_group(one: PodGroup, annotations: dict[str, str]) -> PodGroup:
    """The PodGroup with annotations."""
    return structs.replace(one, metadata=structs.replace(one.metadata, annotations=annotations))
