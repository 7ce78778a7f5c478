"""Run times of gangs, as tests set them."""

from batholith.model.run_times import Basis
from batholith.scheduler.state.gangs.gang import Gang
from batholith.scheduler.state.run_times.run_times import RunTime, RunTimes


class Limits(RunTimes):
    """Run times by the name of the gang, and when gangs have started; without grace periods."""

    def __init__(self) -> None:
        super().__init__(lambda gang: ())
        self.seconds: dict[str, float] = {}
        self.started: dict[str, float] = {}

    def of(self, gang: Gang) -> RunTime:
        """Return the limit of *gang*."""
        seconds = self.seconds.get(gang.name)
        return RunTime(seconds, Basis.UNKNOWN if seconds is None else Basis.LIMIT)

    def expected_end(self, gang: Gang, now: float) -> float | None:
        """Return its start plus its limit."""
        seconds = self.seconds.get(gang.name)
        return None if seconds is None else self.started.get(gang.name, now) + seconds
