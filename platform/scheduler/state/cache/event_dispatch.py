"""Which method of the scheduler cache applies which event."""

from typing import TYPE_CHECKING

from .events import (
    CacheEvent,
    CSINodeEvent,
    EvictionForgotten,
    NamespaceEvent,
    NodeEvent,
    NodesMeasured,
    PlacementForgotten,
    PodDisruptionBudgetEvent,
    PodEvent,
    PodGroupEvent,
    PriorityClassEvent,
    PVCEvent,
    PVEvent,
    QueueEvent,
    Recheck,
    ResourceQuotaEvent,
    StorageClassEvent,
)

if TYPE_CHECKING:
    from .cache import SchedulerCache


def apply_event(cache: "SchedulerCache", event: CacheEvent) -> None:
    """Apply *event* to *cache*."""
    match event:
        case PodEvent(old, new):
            cache.described.update_pod(old, new)
        case NodeEvent(old, new):
            cache.update_node(old, new)
        case PodGroupEvent(old, new):
            cache.described.update_podgroup(old, new)
        case QueueEvent(old, new):
            cache.update_queue(old, new)
        case PlacementForgotten(uid):
            cache.forget(uid)
        case EvictionForgotten(uid, until):
            cache.refused_evictions[uid] = until
            cache.forget_eviction(uid)
        case Recheck(key):
            cache.recheck(key)
        case _:
            _apply_context(cache, event)


def _apply_context(cache: "SchedulerCache", event: CacheEvent) -> None:
    """Apply an event of an object that pods or gangs only refer to."""
    match event:
        case PriorityClassEvent(old, new):
            cache.update_priority_class(old, new)
        case PVCEvent(old, new):
            cache.update_pvc(old, new)
        case NamespaceEvent(old, new):
            cache.capacity_generation += cache.pod_classes.update_namespace(old, new)
        case PVEvent(old, new):
            cache.update_volume(old, new)
        case StorageClassEvent(old, new):
            cache.pod_classes.pvcs.update_class(old, new)
        case CSINodeEvent(old, new):
            cache.capacity_generation += cache.pod_classes.update_csi_node(old, new)
        case _:
            _apply_for_plugins(cache, event)


def _apply_for_plugins(cache: "SchedulerCache", event: CacheEvent) -> None:
    """Apply an event that only plugins are concerned with."""
    match event:
        case ResourceQuotaEvent(old, new):
            cache.capacity_generation += cache.resource_quotas.update(old, new)
        case PodDisruptionBudgetEvent(old, new):
            cache.capacity_generation += cache.disruption_budgets.update(old, new)
        case NodesMeasured(by_node, amounts):
            cache.node_usage.update(by_node, amounts, cache.node_matrix)
            cache.capacity_generation += 1
