"""The gangs for which the actions of one session may evict pods."""

from collections.abc import Callable
from typing import Protocol

from ..plugins.extension_points import Rejection
from ..state.cache.cache import SchedulerCache
from ..state.gangs.gang import Gang
from ..state.planning.reservations import Purpose
from ..state.queue.scheduling_queue import UnschedulableGroup
from ..state.queue.starving_groups import VictimSearch
from .candidate import Candidate


class _Session(Protocol):
    """What is needed of the session, which contains the starving gangs."""

    cache: SchedulerCache

    def starving_gangs(self) -> list[Gang]: ...

    def is_rejected(self, gang: Gang) -> bool: ...

    def job_valid(self, gang: Gang) -> Rejection | None: ...

    def sort(self, group: UnschedulableGroup) -> None: ...


class SearchInterruptedError(Exception):
    """The time of the cycle is over: the search for victims continues in the next one."""


class StarvingGangs:
    """Gangs that did not fit, and could start if there were resources.

    These are the gangs that were rejected in this session. Of each group that was rejected in an
    earlier one, they include the first gang, unless the action has tried the group since the
    rejection and nothing that it depends on has changed since.
    """

    def __init__(self, session: _Session, interrupted: Callable[[], bool]) -> None:
        """Start a session in which no gang has been tried; *interrupted* is whether its time is
        over."""
        self._session = session
        self._interrupted = interrupted
        self._waiting = session.cache.scheduling_queue
        self._groups = session.cache.scheduling_queue.starving
        self._tried: dict[str, set[str]] = {action: set() for action in self._groups.actions}
        """Keys of the gangs that each action has tried."""

    def candidates(self, action: str) -> list[Candidate]:
        """Return the gangs that *action* has yet to try."""
        found: dict[str, Candidate] = {}
        known: set[int] = set()
        for gang in self._session.starving_gangs():
            if gang.key in self._tried[action]:
                continue
            candidate = Candidate(gang, gang.unschedulable_group)
            if not self._may_start(gang):
                self.mark_tried(action, candidate)
                continue
            found[gang.key] = candidate
            known.add(id(gang.unschedulable_group))
        for demand in self._groups.untried(action):
            group = self._waiting.group(demand)
            if group is None or id(group) in known:
                continue
            first = None if self._waiting.is_woken(demand) else self._first(group)
            if first is None:  # or it is rejected, and tried then
                self._groups.mark_tried(action, demand)
            else:
                found[first.gang.key] = first
        return list(found.values())

    def mark_tried(self, action: str, candidate: Candidate) -> None:
        """Record that *action* need not try *candidate* again in this session, nor in a later one
        before something has happened."""
        self._tried[action].add(candidate.gang.key)
        if candidate.group is not None:
            self._groups.mark_tried(action, candidate.group.demand)
        search = self._groups.interrupted.get(action)
        if search is not None and search.gang is candidate.gang:
            del self._groups.interrupted[action]

    def next_candidate(self, candidate: Candidate) -> Candidate | None:
        """Return the next gang with the demand of *candidate*, for which pods were evicted.

        All actions try that one.
        """
        for tried in self._tried.values():
            tried.add(candidate.gang.key)
        following = self._first(candidate.group) if candidate.group else None
        if following is not None and following.group is not None:
            for action in self._tried:
                self._groups.add(action, following.group.demand)
        return following

    def keep_untried(self) -> None:
        """Leave the gangs that were rejected and not tried to the next session."""
        for gang in self._session.starving_gangs():
            group = gang.unschedulable_group
            for action, tried in self._tried.items():
                if group is not None and gang.key not in tried:
                    self._groups.add(action, group.demand)

    def is_exhausted(self, gang: Gang) -> bool:
        """Return whether *gang* was tried in vain in this session and no other action is left to
        try it."""
        tried = [gang.key in each for each in self._tried.values()]
        if self._session.is_rejected(gang):
            return all(tried)
        group = gang.unschedulable_group
        return any(tried) and group is not None and not self._groups.is_untried(group.demand)

    # -- searches ------------------------------------------------------------------------------

    def search(self, action: str, gang: Gang) -> VictimSearch:
        """Return the search of *action* for victims for *gang*, to be started or continued."""
        known = self._groups.interrupted.get(action)
        if known is None or known.gang is not gang:
            known = self._groups.interrupted[action] = VictimSearch(gang)
        return known

    def check_time(self) -> None:
        """Interrupt a search that has ruled out a victim.

        Raises:
            SearchInterruptedError: the time of the cycle is over.
        """
        if self._interrupted():
            raise SearchInterruptedError

    # -- private -------------------------------------------------------------------------------

    def _first(self, group: UnschedulableGroup) -> Candidate | None:
        self._session.sort(group)
        for gang in group:
            if not self._session.is_rejected(gang) and self._may_start(gang):
                return Candidate(gang, group)
        return None

    def _may_start(self, gang: Gang) -> bool:
        """Return whether *gang* could start if there were resources.

        A gang whose pods do not exist yet is tried after they are created. One for which pods were
        evicted already is tried after these have terminated.
        """
        cache = self._session.cache
        reservation = cache.reservations.get(gang.key)
        return (
            _lacks_resources(gang)
            and not (gang.diagnosis is not None and gang.diagnosis.fits)
            and not gang.is_pending
            and not cache.planned.is_planning(gang.key)
            and not gang.awaits_ungating()
            and (
                reservation is None
                or reservation.purpose is not Purpose.PREEMPTION
                or not reservation.backed
                or self._session.is_rejected(gang)
            )
            and self._session.job_valid(gang) is None
        )


def _lacks_resources(gang: Gang) -> bool:
    """Return whether pending tasks of *gang* need nodes so that it can start.

    Best-effort tasks need no amounts, so they count only if there are no others.
    """
    if gang.has_requesting_tasks():
        return not gang.is_pipelined()
    return gang.has_best_effort_tasks() and not gang.is_ready()
