"""Measure backfilling in virtual time: ``python -m bench.backfilling [limits|nasa|cost ...]``.

``limits`` runs the trace of ``bench.scheduling_quality``, with time limits of one to five times the
run time, and with predictions only. ``nasa`` runs the first jobs of a real trace
(``--trace``, in the Standard Workload Format) on 128 CPUs, and the same under EASY and first fit as
textbooks have them. ``cost`` measures what planned starts add to one decision.

Results are printed as Markdown, and added to bench/scheduling_quality.json with ``--store``.
"""

import argparse
import gzip
import heapq
import json
import math
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import fmean, median

from bench.quality_trace import CPUS, Totals, TraceJob, VirtualCluster, generate
from bench.scheduling_quality import (
    HELM,
    SEED,
    STORED,
    FirstFit,
    Metrics,
    Product,
    measure,
    metrics_of,
    percentile,
    table,
)

LIMIT_SEED = 1
NODES = 200
REAL_NODES = 2
"""Nodes of 64 CPUs for the real trace."""

REAL_CPUS = 128
LARGE = 32
"""CPUs above which a job of the real trace is large."""

LEAST_RUN_TIME = 10.0
"""Seconds that a run time counts at least in the bounded slowdown."""

WORK_CONSERVING = HELM.replace("enqueue, ", "").replace(
    "  - name: proportion\n",
    "  - name: proportion\n    enabledAllocatable: false\n    enabledOverused: false\n",
)
"""Queues are ordered by their share, and none is limited to it."""


def configured(text: str, **arguments: object) -> str:
    """Return the configuration *text* with arguments of the action ``allocate``."""
    named = {name.replace("__", ".").replace("_", "-"): each for name, each in arguments.items()}
    lines = [f"    {name}: {value}" for name, value in named.items()]
    return f"{text}\nconfigurations:\n- name: allocate\n  arguments:\n" + "\n".join(lines)


POLICIES: Mapping[str, str] = {
    "none": WORK_CONSERVING,
    "easy": configured(WORK_CONSERVING, backfilling="easy"),
    "conservative": configured(WORK_CONSERVING, backfilling="conservative", backfilling__depth=4),
    "easy after 90 min, shortest first": configured(
        WORK_CONSERVING,
        backfilling="easy",
        backfilling__reserve_after="90m",
        backfilling__order="shortest-first",
    ),
}


def limits_of(trace: Sequence[TraceJob], most: float) -> dict[str, float]:
    """Return time limits in seconds by the name of the job: its run time times a random number
    from 1 to *most*."""
    rng = random.Random(LIMIT_SEED)  # not for cryptography
    return {job.name: job.duration * rng.uniform(1, most) for job in trace}


# -- a real trace ----------------------------------------------------------------------------------


def read_swf(path: Path, count: int, load: float) -> list[TraceJob]:
    """Return the first *count* jobs of a trace in the Standard Workload Format, as gangs of pods of
    one CPU. Submit times are scaled so that they ask for *load* times :data:`REAL_CPUS`."""
    with gzip.open(path, "rt") as lines:
        rows = [line.split() for line in lines if line.strip() and not line.startswith(";")]
    jobs = [(float(row[1]), float(row[3]), int(row[4]), row[11]) for row in islice(rows, count)]
    first = jobs[0][0]
    work = sum(seconds * cpus for _, seconds, cpus, _ in jobs)
    factor = work / (REAL_CPUS * load * (jobs[-1][0] - first))
    return [
        TraceJob(
            name=f"j{number}",
            queue="research",
            priority="normal",
            arrival=(at - first) * factor,
            duration=max(seconds, 1e-3),
            size=cpus,
            minimum=cpus,
            cpu=1,
            memory=1,
            user=f"user-{user}",
        )
        for number, (at, seconds, cpus, user) in enumerate(jobs)
    ]


@dataclass(slots=True)
class Textbook:
    """First fit, and EASY by Lifka (1995), on one pool of CPUs."""

    trace: Sequence[TraceJob]
    estimate: Callable[[TraceJob], float] | None
    """Returns the expected run time of a job in seconds; ``None`` for first fit."""

    def run(self) -> Totals:
        """Run all jobs; returns their waits."""
        totals, waiting, running = Totals(), [], dict[str, tuple[float, TraceJob]]()
        ends: list[tuple[float, str]] = []
        arrivals = iter(self.trace)
        upcoming = next(arrivals, None)
        free, now = REAL_CPUS, 0.0

        while upcoming is not None or ends:
            now = min(upcoming.arrival if upcoming else math.inf, ends[0][0] if ends else math.inf)
            while ends and ends[0][0] <= now:
                free += running.pop(heapq.heappop(ends)[1])[1].size
            while upcoming is not None and upcoming.arrival <= now:
                waiting.append(upcoming)
                upcoming = next(arrivals, None)
            for job in list(self._started(waiting, running, free, now)):
                free -= job.size
                waiting.remove(job)
                running[job.name] = (now, job)
                heapq.heappush(ends, (now + job.duration, job.name))
                totals.waits.append((job, now - job.arrival))
        return totals

    def _started(
        self,
        waiting: Sequence[TraceJob],
        running: Mapping[str, tuple[float, TraceJob]],
        free: int,
        now: float,
    ) -> Iterator[TraceJob]:
        """Yield the jobs that start now."""
        shadow, extra = math.inf, 0
        held = [(now + self._left(at, job, now), job.size) for at, job in running.values()]
        is_blocked = False
        for job in waiting:
            if self.estimate is None or not is_blocked:
                if job.size <= free:
                    free -= job.size
                    if self.estimate is not None:
                        held.append((now + self.estimate(job), job.size))
                    yield job
                elif self.estimate is not None:
                    is_blocked = True
                    shadow, extra = self._shadow(held, free, job.size)
            elif job.size <= free:
                ends_before = now + self.estimate(job) <= shadow
                if ends_before or job.size <= extra:
                    free -= job.size
                    extra -= 0 if ends_before else job.size
                    yield job

    @staticmethod
    def _shadow(held: list[tuple[float, int]], free: int, size: int) -> tuple[float, int]:
        """Return when *size* CPUs are free, and how many more then."""
        for end, cpus in sorted(held):
            free += cpus
            if free >= size:
                return end, free - size
        return math.inf, 0

    def _left(self, started: float, job: TraceJob, now: float) -> float:
        """Return the seconds that *job* is expected to run on; doubled when exceeded."""
        if self.estimate is None:
            return math.inf
        expected = self.estimate(job)
        while started + expected <= now:
            expected = max(2 * expected, 1.0)
        return started + expected - now


def real_metrics(totals: Totals) -> Metrics:
    """Return the metrics of the real trace."""
    large = sorted(wait for job, wait in totals.waits if job.size > LARGE)
    slowdowns = (
        max((wait + job.duration) / max(job.duration, LEAST_RUN_TIME), 1.0)
        for job, wait in totals.waits
    )
    return {
        "wait, mean": fmean(wait for _, wait in totals.waits),
        f"wait p95, more than {LARGE} CPUs": percentile(large, 0.95),
        "bounded slowdown": fmean(slowdowns),
    }


def _by_name(limits: Mapping[str, float]) -> Callable[[TraceJob], float]:
    return lambda job: limits[job.name]


def run_real(trace: list[TraceJob], limits: Mapping[str, float], text: str) -> Metrics:
    """Run *trace* under the scheduler."""
    product = Product(REAL_NODES, text, limits)
    return real_metrics(VirtualCluster(trace, REAL_NODES, product).run())


def measure_real(path: Path, count: int) -> dict[str, dict[str, Metrics]]:
    """Run the real trace with perfect limits, and with limits up to five times the run time."""
    trace = read_swf(path, count, 0.9)
    results = {}
    for name, most in (("true limits", 1.0), ("limits up to 5 times", 5.0)):
        limits = limits_of(trace, most)
        found = {
            "first fit": real_metrics(Textbook(trace, None).run()),
            "EASY": real_metrics(Textbook(trace, _by_name(limits)).run()),
        }
        for policy in ("easy", "conservative"):
            found[f"ours, {policy}"] = run_real(trace, limits, POLICIES[policy])
            print(name, policy, found[f"ours, {policy}"], file=sys.stderr, flush=True)
        results[f"NASA, {count} jobs, {name}"] = found
    return results


def measure_limits(jobs: int) -> dict[str, dict[str, Metrics]]:
    """Run the generated trace with limits, and with predictions only."""
    trace = generate(jobs, NODES, seed=SEED)
    limits = limits_of(trace, 5.0)
    policies = {name: Product(NODES, text, limits) for name, text in POLICIES.items()}
    policies["easy, predictions"] = Product(NODES, POLICIES["easy"])
    found = measure(trace, NODES, policies)  # type: ignore[arg-type]
    found["first fit"] = metrics_of(
        trace, NODES, VirtualCluster(trace, NODES, FirstFit(NODES)).run()
    )
    return {f"{jobs} jobs, {NODES} nodes, limits": found}


# -- cost ------------------------------------------------------------------------------------------


_CPU_SIZES = 50
"""How many CPUs a pod of a waiting gang requests at most."""


def measure_cost(nodes: int, gangs: int, shapes: int) -> dict[str, dict[str, Metrics]]:
    """Measure a decision after a job has ended, with *gangs* of *shapes* waiting."""
    found = {}
    for mode in ("none", "easy", "conservative"):
        text = configured(HELM.replace("enqueue, ", ""), backfilling=mode, backfilling__depth=10)
        times = list(_decisions(nodes, gangs, shapes, text))
        found[mode] = {"median, ms": 1e3 * median(times), "maximum, ms": 1e3 * max(times)}
        print(mode, found[mode], file=sys.stderr, flush=True)
    return {f"a decision, {nodes} nodes, {gangs} gangs waiting": found}


def _decisions(nodes: int, gangs: int, shapes: int, text: str) -> Iterator[float]:
    """Yield the CPU seconds of decisions, each after one running gang has ended."""
    rng = random.Random(SEED)  # not for cryptography
    sizes = max(shapes // _CPU_SIZES, 1)
    fillers = [_gang(f"r{n}", n, 1, CPUS, rng) for n in range(nodes)]
    waiting = [
        _gang(f"w{n}", nodes + n, 2 + n % sizes, 1 + n // sizes % _CPU_SIZES, rng)
        for n in range(gangs)
    ]
    product = Product(nodes, text, limits_of([*fillers, *waiting], 5.0))
    for job in [*fillers, *waiting]:
        product.submit(job)
    product.cycle(0.0)
    for job in fillers:
        product.create_pods(job, range(job.size))
    product.cycle(1.0)
    for job in waiting:
        product.create_pods(job, range(job.size))
    product.cycle(2.0)
    for number in range(20):
        product.end_pods(fillers[number], range(1), finished=True)
        product.complete(fillers[number])
        before = product.cpu_seconds
        product.cycle(3.0 + number)
        yield product.cpu_seconds - before


def _gang(name: str, number: int, size: int, cpu: int, rng: random.Random) -> TraceJob:
    return TraceJob(
        name, "research", "normal", float(number), rng.uniform(100, 9e4), size, size, cpu, cpu
    )


def main() -> None:
    """Run what is named, or all; print and store the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=["limits", "nasa", "cost"])
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--trace", type=Path, help="file of the real trace, compressed by gzip")
    parser.add_argument("--real-jobs", type=int, default=4_000)
    parser.add_argument("--store", action="store_true", help="add to the stored results")
    options = parser.parse_args()
    results: dict[str, dict[str, Metrics]] = {}
    if "limits" in options.names:
        results |= measure_limits(options.jobs)
    if "nasa" in options.names:
        if options.trace is None:
            parser.error("nasa requires --trace")
        results |= measure_real(options.trace, options.real_jobs)
    if "cost" in options.names:
        results |= measure_cost(5_000, 10_000, 1_000)
    for title, found in results.items():
        print(f"\n{title}:\n\n{table(found)}\n", flush=True)
    if options.store:
        stored = json.loads(STORED.read_text())
        STORED.write_text(json.dumps(stored | results, indent=1) + "\n")


if __name__ == "__main__":
    main()
