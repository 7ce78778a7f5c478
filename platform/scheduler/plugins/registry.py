"""The table of scheduler plugins.

To add a plugin, write ``plugins/<name>.py`` with a class that takes the plugin's arguments and
has the methods of one or more extension points (see ``extension_points``), and add one line here.
The framework detects the extension points by the methods. Other packages add plugins by entry
points (:mod:`.entry_points`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import default_spread
from .arguments import Arguments
from .binpack import BinpackPlugin
from .capacity import CapacityPlugin
from .cdp import CdpPlugin
from .conformance import ConformancePlugin
from .drf import DrfPlugin
from .extender import ExtenderPlugin
from .fairshare import FairSharePlugin
from .gang import GangPlugin
from .handle import Handle, takes_handle
from .hierarchical_capacity import HierarchicalCapacityPlugin
from .hierarchical_drf import HierarchicalDrfPlugin
from .network_topology_aware import network_topology_aware
from .nodegroup import HierarchicalNodeGroupPlugin, NodeGroupPlugin
from .nodeorder import NodeOrderPlugin
from .numa_aware import NumaAwarePlugin
from .overcommit import OvercommitPlugin
from .pdb import PdbPlugin
from .predicates import BIND_TIMEOUT, FILTER_TIMEOUT, PredicatesPlugin
from .priority import PriorityPlugin
from .profiles import ProfiledPlugin
from .proportion import ProportionPlugin
from .rescheduling import ReschedulingPlugin
from .resource_strategy_fit import ResourceStrategyFitPlugin
from .resourcequota import ResourceQuotaPlugin
from .sla import SlaPlugin
from .task_topology import TaskTopologyPlugin
from .tdm import TdmPlugin
from .usage import UsagePlugin

PluginFactory = Callable[..., Any]
"""Takes the arguments, and a keyword ``handle`` if it has such a parameter."""

PLUGINS: Mapping[str, PluginFactory | None] = {
    "binpack": BinpackPlugin,
    "capacity": CapacityPlugin,
    "cdp": CdpPlugin,
    "conformance": ConformancePlugin,
    "deviceshare": None,
    "drf": DrfPlugin,
    "extender": ExtenderPlugin,
    "fairshare": FairSharePlugin,
    "gang": GangPlugin,
    "network-topology-aware": network_topology_aware,
    "nodegroup": NodeGroupPlugin,
    "nodeorder": NodeOrderPlugin,
    "numa-aware": NumaAwarePlugin,
    "numaaware": NumaAwarePlugin,
    "overcommit": OvercommitPlugin,
    "pdb": PdbPlugin,
    "predicates": PredicatesPlugin,
    "priority": PriorityPlugin,
    "proportion": ProportionPlugin,
    "rescheduling": ReschedulingPlugin,
    "resource-strategy-fit": ResourceStrategyFitPlugin,
    "resourcequota": ResourceQuotaPlugin,
    "sla": SlaPlugin,
    "task-topology": TaskTopologyPlugin,
    "tdm": TdmPlugin,
    "usage": UsagePlugin,
}
"""All plugins of Volcano by name, ``None`` if there is no implementation, and ``fairshare``."""

HIERARCHICAL: Mapping[str, PluginFactory] = {
    "capacity": HierarchicalCapacityPlugin,
    "drf": HierarchicalDrfPlugin,
    "nodegroup": HierarchicalNodeGroupPlugin,
}
"""Their implementations with ``enableHierarchy: true``."""

IN_PROFILES = frozenset({"binpack", "nodeorder", "predicates", "resource-strategy-fit"})
"""The plugins that profiles may configure: they only filter and score nodes for a pod."""

OF_ALL_PROFILES = frozenset(
    {BIND_TIMEOUT, FILTER_TIMEOUT, default_spread.CONSTRAINTS, default_spread.KIND}
)
"""Arguments of these plugins that are the same for all pods."""

WITHOUT_EFFECT: Mapping[str, Mapping[str, str]] = {
    "capacity": {
        "capacity.DRAConsumableCapacityEnable": "limits on the capacity of devices always apply",
        "capacity.DynamicResourceAllocationEnable": "limits on devices always apply",
    },
    "predicates": {
        "predicate.CacheEnable": "results of filters are always kept",
        "predicate.DynamicResourceAllocationEnable": "devices are always allocated to claims",
        "predicate.GPUNumberEnable": "devices are scheduled as extended resources",
        "predicate.GPUSharingEnable": "devices are scheduled as extended resources",
    },
    "sla": {"sla.JobWaitingTime": "the argument is called sla-waiting-time"},
}
"""Arguments in configurations that Volcano has shipped, which have no effect here, with the reason:
a configuration with them is valid, and the log has a warning."""


@dataclass(frozen=True, slots=True)
class PluginOption:
    """One configured plugin."""

    name: str
    factory: PluginFactory
    arguments: Mapping[str, object]
    disabled: frozenset[str] = frozenset()
    """Keys such as ``enableNodeOrder`` that are set to false."""
    hierarchical: bool = False
    """Whether ``enableHierarchy`` is true."""
    profiles: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Other arguments, for pods with this ``schedulerName``."""

    def create(self, handle: Handle) -> object:
        """Create the plugin."""
        created = create(self.factory, Arguments(self.arguments), handle)
        if not self.profiles:
            return created
        by_name = {
            name: create(self.factory, Arguments(arguments), handle)
            for name, arguments in self.profiles.items()
        }
        return ProfiledPlugin(created, by_name)


def create(factory: PluginFactory, arguments: Arguments, handle: Handle) -> object:
    """Return what *factory* creates."""
    if takes_handle(factory):
        return factory(arguments, handle=handle)
    return factory(arguments)


Tiers = tuple[tuple[PluginOption, ...], ...]
