"""``gangpreempt`` and ``gangreclaim``: ``preempt`` and ``reclaim`` that compare domains.

A gang with a hard constraint on the network can get its resources in one of several domains. These
actions look for victims in each of them, and evict in the domain where these have the lowest
levels, and of these where there are fewest; ``preempt`` and ``reclaim`` evict in the first domain
in which the gang fits then. The same holds for the domain of each sub-group.
"""

from collections.abc import Mapping

from ..framework.preemption import EvictionOptions
from ..plugins.arguments import boolean, integer
from .starving import eviction_delay

_MAX_DOMAINS = 8


def domain_options(arguments: Mapping[str, object]) -> EvictionOptions:
    """Return the options of an action that compares domains.

    Raises:
        ArgumentError: one has an impossible value.
    """
    domains = integer(arguments, "maxDomains", default=_MAX_DOMAINS)
    return EvictionOptions(
        delay=eviction_delay(arguments),
        compares_domains=True,
        max_domains=domains if domains > 0 else _MAX_DOMAINS,
        may_break=boolean(arguments, "allowWholeBundle", default=True),
    )
