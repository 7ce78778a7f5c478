"""What the actions that evict pods have in common."""

from ..framework.candidate import Candidate
from ..framework.plugin_calls import PluginError
from ..framework.preemption import EvictionOptions, evict_for
from ..framework.session import Session
from ..framework.starving_gangs import SearchInterruptedError
from ..framework.victims import Reach


def try_candidate(
    session: Session, candidate: Candidate, reach: Reach, options: EvictionOptions
) -> Candidate | None:
    """Evict pods for a starving gang, if it can start then.

    Returns the next gang with equal demand after a success.
    """
    gang, is_successful = candidate.gang, False
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
