"""``gangpreempt`` and ``gangreclaim``: ``preempt`` and ``reclaim`` that compare domains.

A gang with a hard constraint on the network can get its resources in one of several domains. These
actions look for victims in each of them, and evict in the domain where these have the lowest
levels, and of these where there are fewest; ``preempt`` and ``reclaim`` evict in the first domain
in which the gang fits then. The same holds for the domain of each sub-group.
"""

from collections.abc import Mapping

from ..framework.preemption import EvictionOptions
from ..framework.session import Session
from ..plugins.arguments import boolean, integer
from .preempt import preempt
from .reclaim import reclaim
from .starving import eviction_delay

_MAX_DOMAINS = 8


class GangPreempt:
    """The action ``gangpreempt`` with its arguments."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Parse the arguments.

        Raises:
            ArgumentError: one has an impossible value.
        """
        self._options = _options_of(arguments)

    def __call__(self, session: Session) -> None:
        """Evict pods for starving gangs of their queues."""
        preempt(session, self._options)


class GangReclaim:
    """The action ``gangreclaim`` with its arguments."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Parse the arguments.

        Raises:
            ArgumentError: one has an impossible value.
        """
        self._options = _options_of(arguments)

    def __call__(self, session: Session) -> None:
        """Evict pods of other queues for starving gangs."""
        reclaim(session, self._options)


def _options_of(arguments: Mapping[str, object]) -> EvictionOptions:
    domains = integer(arguments, "maxDomains", default=_MAX_DOMAINS)
    return EvictionOptions(
        delay=eviction_delay(arguments),
        compares_domains=True,
        max_domains=domains if domains > 0 else _MAX_DOMAINS,
        may_break=boolean(arguments, "allowWholeBundle", default=True),
    )
