"""For how long gangs run, as planning needs it."""

from typing import Protocol

from ..gangs.gang import Gang


class RunTime(Protocol):
    """The expected run time of a gang."""

    @property
    def seconds(self) -> float | None:
        """Seconds from its start to its end; ``None`` if unknown."""
        ...


class RunTimes(Protocol):
    """The expected run times of gangs."""

    def of(self, gang: Gang) -> RunTime:
        """Return the run time of *gang*."""
        ...

    def expected_end(self, gang: Gang, now: float) -> float | None:
        """Return when *gang*, which runs, ends, as Unix time; ``None`` if that is unknown."""
        ...
