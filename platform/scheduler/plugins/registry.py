"""The table of scheduler plugins.

To add a plugin, write ``plugins/<name>.py`` with a class that takes the plugin's arguments and
has the methods of one or more extension points (see ``extension_points``), and add one line here.
The framework detects the extension points by the methods.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .binpack import BinpackPlugin
from .conformance import ConformancePlugin
from .drf import DrfPlugin
from .gang import GangPlugin
from .nodeorder import NodeOrderPlugin
from .overcommit import OvercommitPlugin
from .predicates import PredicatesPlugin
from .priority import PriorityPlugin
from .proportion import ProportionPlugin

PluginFactory = Callable[[Mapping[str, object]], object]

PLUGINS: Mapping[str, PluginFactory | None] = {
    "binpack": BinpackPlugin,
    "capacity": None,
    "cdp": None,
    "conformance": ConformancePlugin,
    "deviceshare": None,
    "drf": DrfPlugin,
    "extender": None,
    "gang": GangPlugin,
    "network-topology-aware": None,
    "nodegroup": None,
    "nodeorder": NodeOrderPlugin,
    "numa-aware": None,
    "numaaware": None,
    "overcommit": OvercommitPlugin,
    "pdb": None,
    "predicates": PredicatesPlugin,
    "priority": PriorityPlugin,
    "proportion": ProportionPlugin,
    "rescheduling": None,
    "resource-strategy-fit": None,
    "resourcequota": None,
    "sla": None,
    "task-topology": None,
    "tdm": None,
    "usage": None,
}
"""All plugins of Volcano by name; ``None`` if there is no implementation yet."""


@dataclass(frozen=True, slots=True)
class PluginOption:
    """One configured plugin."""

    name: str
    factory: PluginFactory
    arguments: Mapping[str, object]
    disabled: frozenset[str]
    """Keys such as ``enableNodeOrder`` that are set to false."""


Tiers = tuple[tuple[PluginOption, ...], ...]
