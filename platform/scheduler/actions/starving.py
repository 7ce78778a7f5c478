"""What the actions that evict pods have in common."""

from collections.abc import Mapping

from ..framework.candidate import Candidate
from ..framework.plugin_calls import PluginError
from ..framework.preemption import EvictionOptions, evict_for
from ..framework.session import Session
from ..framework.starving_gangs import SearchInterruptedError
from ..framework.victims import Reach
from ..plugins.arguments import duration
from ..state.gangs.gang import Gang
from ..state.podinfo.victim_traits import unix_time

EVICTION_DELAY = "eviction-delay"
"""For how long a gang has waited before pods are evicted for it."""


def eviction_delay(arguments: Mapping[str, object]) -> float:
    """Return the seconds of the argument; 0 without it.

    Raises:
        ArgumentError: it is no positive duration.
    """
    delay = duration(arguments, EVICTION_DELAY)
    return delay.total_seconds() if delay else 0.0


def eviction_options(arguments: Mapping[str, object]) -> EvictionOptions:
    """Return the options of an action that evicts in the first domain in which a gang fits.

    Raises:
        ArgumentError: one has an impossible value.
    """
    return EvictionOptions(delay=eviction_delay(arguments))


def try_candidate(
    session: Session, candidate: Candidate, reach: Reach, options: EvictionOptions
) -> Candidate | None:
    """Evict pods for a starving gang, if it can start then, and has waited for long enough.

    Returns the next gang with equal demand after a success.
    """
    gang, is_successful = candidate.gang, False
    if options.delay and (due := _waits_since(gang) + options.delay) > session.cache.cycle_time:
        session.cache.scheduling_queue.starving.retry_at(due)
        session.starving.mark_tried(reach.value, candidate)
        return None
    session.count_decision()
    try:
        if session.votes.job_starving(gang):
            is_successful = evict_for(session, gang, reach, options)
    except SearchInterruptedError:
        return None
    except PluginError as error:
        session.reject_failed(gang, error)
    session.starving.mark_tried(reach.value, candidate)
    return session.starving.next_candidate(candidate) if is_successful else None


def _waits_since(gang: Gang) -> float:
    """Return when the first pending pod of *gang* was created, as Unix time."""
    first = min((task.created for task in gang.pending_tasks.values()), default="")
    return float(unix_time(first))
