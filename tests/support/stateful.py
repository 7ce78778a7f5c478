"""What random histories of any one controller have in common: its ends, its server's faults, time.

For long runs set ``BATHOLITH_STATEFUL_EXAMPLES`` and ``BATHOLITH_STATEFUL_STEPS``.
"""

import os
from typing import Any, Generic, TypeVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.examples import examples
from support.virtual_controller import CheckedWorld

from batholith.model.names import Resource

PACE = st.sampled_from([None, None, 0, 1, 3, 6, 12, 25])
"""After a step: wait until idle, or run only a limited number of iterations."""


def fault_rule(*paths: str) -> Any:
    """A rule: the next *times* requests with this method to one of *paths* fail in one way."""

    def requests_fail(
        self: "ControllerMachine[Any]", what: Any, times: int, method: str, path: str, pace: int
    ) -> None:
        self.world.api.inject_fault(what, times=times, method=method, path=path)
        self._settle_or_advance(pace)

    return rule(
        what=st.sampled_from([408, 409, 429, 500, "drop", "lost", "done 504"]),
        times=st.integers(1, 4),
        method=st.sampled_from(["", "GET", "POST", "PATCH", "DELETE"]),
        path=st.sampled_from(paths),
        pace=st.sampled_from([0, 3, 12, 60]),
    )(requests_fail)


def late_watch_rule(*resources: Resource) -> Any:
    """A rule: the events of one of *resources* arrive late."""

    def a_watch_is_late(self: "ControllerMachine[Any]", resource: Resource) -> None:
        self.world.api.hold_watches(resource)

    return rule(resource=st.sampled_from(resources))(a_watch_is_late)


def stateful_settings(*, steps: int, histories: int = 40) -> settings:
    """Return settings for *histories* of *steps*, as many as the profile allows."""
    number = os.environ.get("BATHOLITH_STATEFUL_EXAMPLES")
    return settings(
        max_examples=examples(histories) if number is None else int(number),
        stateful_step_count=int(os.environ.get("BATHOLITH_STATEFUL_STEPS", str(steps))),
        derandomize=number is None and settings().derandomize,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )


World = TypeVar("World", bound=CheckedWorld[Any])


class ControllerMachine(RuleBasedStateMachine, Generic[World]):
    """One controller under everything that may happen to any."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.no_violation = True
        """No failure so far that the end of the run would hide."""

    def teardown(self) -> None:
        try:
            if self.no_violation:
                self._settle_or_advance(None)
        finally:
            self.world.close()

    def _settle_or_advance(self, pace: int | None) -> None:
        self.no_violation = False
        if pace is None:
            self.world.api.clear_faults()
            self.world.run(self.world.run_until_quiet())
            self.world.check_invariants()
        else:
            self.world.run(self.world.run_iterations(pace))
        self.no_violation = True

    @rule(graceful=st.booleans())
    def the_controller_ends(self, graceful: bool) -> None:
        self.world.run(self.world.stop() if graceful else self.world.kill())

    @rule(pace=PACE)
    def the_controller_starts(self, pace: int | None) -> None:
        self.world.run(self.world.start())
        self._settle_or_advance(pace)

    @rule(lag=st.sampled_from([1, 4, 15]))
    def responses_are_slow(self, lag: int) -> None:
        self.world.api.response_lag = lag

    @rule(forget=st.booleans(), pace=PACE)
    def watches_end(self, forget: bool, pace: int | None) -> None:
        (self.world.api.break_watches if forget else self.world.api.end_watches)()
        self._settle_or_advance(pace)

    @rule(seconds=st.sampled_from([0.5, 3, 90, 400]), pace=PACE)
    def time_passes(self, seconds: float, pace: int | None) -> None:
        self.world.run(self.world.pass_time(seconds))
        self._settle_or_advance(pace)

    @rule()
    def a_new_controller_finds_nothing_to_do(self) -> None:
        """INV-LC-4, INV-PIPE-1: what is in memory only is not needed."""
        self._settle_or_advance(None)
        before = self.world.controller_writes
        self.world.run(self.world.kill())
        self._settle_or_advance(None)
        assert self.world.controller_writes == before

    @invariant()
    def each_change_kept_the_rules(self) -> None:
        """INV-OW-1, INV-OW-2: nothing is written but what is this controller's to write."""
        assert self.world.violations == []
