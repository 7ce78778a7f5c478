"""A cluster in virtual time whose gangs have run times."""

import msgspec

from batholith.scheduler import conf
from batholith.scheduler.framework.backfilling.start_plan import StartReservation

from .run_limits import Limits
from .scheduler import SchedulerWorld, node, pod, podgroup


def backfilling(mode: str = "easy", **more: object) -> str:
    """The default plugins, with backfilling."""
    arguments: dict[str, object] = {"backfilling": mode}
    arguments |= {f"backfilling.{name.replace('_', '-')}": value for name, value in more.items()}
    lines = "".join(f"    {name}: {value}\n" for name, value in arguments.items())
    configured = f"configurations:\n- name: allocate\n  arguments:\n{lines}tiers:"
    return conf.DEFAULT.replace("enqueue, ", "").replace("tiers:", configured)


class World(SchedulerWorld):
    """A cluster in virtual time, whose gangs have limits."""

    def __init__(self, text: str = "", *, nodes: int = 4, cpu: int = 4) -> None:
        super().__init__(text or backfilling())
        self.limits = Limits()
        self.cluster.run_times = self.limits
        self.time = 0.0
        self.names: dict[str, list[str]] = {}
        self.submitted = 0
        self.upsert(*(node(f"n{number}", cpu=cpu) for number in range(nodes)))

    def submit(
        self,
        name: str,
        size: int,
        *,
        cpu: int = 4,
        limit: float | None = 100,
        minimum: int | None = None,
        **more: str,
    ) -> None:
        """Add a gang of *size* pods with *cpu* CPUs each."""
        self.submitted += 1
        created = f"2026-01-01T{self.submitted // 60:02}:{self.submitted % 60:02}:00Z"
        if limit is not None:
            self.limits.seconds[name] = limit
        group = podgroup(name, size if minimum is None else minimum, created=created, **more)  # type: ignore[arg-type]
        self.names[name] = [f"{name}-{number}" for number in range(size)]
        self.upsert(group, *(pod(each, name, cpu=cpu) for each in self.names[name]))

    def run(self, until: float | None = None) -> list[str]:
        """Run a cycle, at a later time if given; returns the gangs of which pods were started."""
        self.time = self.time if until is None else until
        nodes = self.schedule()
        for name, node_name in nodes.items():
            old = self.pod_objects[f"uid-{name}"]
            spec = msgspec.structs.replace(old.spec, node_name=node_name)
            status = msgspec.structs.replace(old.status, phase="Running")
            self.upsert(msgspec.structs.replace(old, spec=spec, status=status))
        started = sorted({name.rpartition("-")[0] for name in nodes})
        for name in started:
            self.limits.started.setdefault(name, self.time or 0.0)
        return started

    def end(self, name: str) -> None:
        """Let the pods of a gang succeed, and delete it."""
        for each in self.names.pop(name):
            known = self.pod_objects.get(f"uid-{each}")
            if known is not None:
                self.remove(known)
        self.remove(podgroup(name, 1))
        self.limits.started.pop(name, None)

    def planned(self, name: str) -> StartReservation | None:
        """Return the start reservation of a gang."""
        plan = self.core.caches.start_plan
        return plan.reservations.get(f"ns/{name}")

    def start_of(self, name: str) -> float:
        """Return when a gang is planned to start."""
        planned = self.planned(name)
        assert planned is not None
        return planned.start
