"""Usage of containers and of the node: rates of CPU time between two readings."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ....machinery.clock import Clock
from ....model import times
from ..runtime.usage import Reading

Json = dict[str, Any]

NODE = ("", "")
"""Key of the node's own readings."""

Key = tuple[str, str]
"""Uid of a pod, and the name of a container with the number of its run."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Usage over the time between two readings."""

    at: datetime
    window: float
    """Seconds."""

    cpu: float
    """Cores."""

    memory: int
    """Bytes, at the end."""

    def summary(self) -> Json:
        """Return it as the kubelet's summary has it, and the length of the window."""
        time = times.format(self.at)
        return {
            "cpu": {"time": time, "usageNanoCores": round(self.cpu * 1e9)},
            "memory": {"time": time, "workingSetBytes": self.memory},
            "windowSeconds": round(self.window, 3),
        }


class UsageMeter:
    """Keeps the last reading of each container, and the usage since the one before."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._readings: dict[Key, tuple[float, Reading]] = {}
        self._usages: dict[Key, Usage] = {}

    def record(self, key: Key, reading: Reading) -> None:
        """Record a reading; the first one has no usage yet."""
        now = self._clock.monotonic()
        before = self._readings.get(key)
        self._readings[key] = (now, reading)
        if before is None or now <= before[0]:
            return
        window = now - before[0]
        # A command of a client that has ended takes its CPU time with it.
        cpu = max(reading.cpu_seconds - before[1].cpu_seconds, 0.0) / window
        self._usages[key] = Usage(self._clock.now(), window, cpu, reading.memory)

    def get(self, key: Key) -> Usage | None:
        """Return the usage between the last two readings; ``None`` if there was only one."""
        return self._usages.get(key)

    def summaries(self, runs: Iterable[tuple[str, str]], *, uid: str) -> list[Json]:
        """Return the usage of the containers of a pod that have one: names, and names of runs."""
        found = ((name, self.get((uid, f"{name}/{run}"))) for name, run in runs)
        return [{"name": name, **each.summary()} for name, each in found if each is not None]

    def keep_only(self, keys: Collection[Key]) -> None:
        """Forget the containers that have ended."""
        for known in (self._readings, self._usages):
            for key in known.keys() - set(keys):
                del known[key]
