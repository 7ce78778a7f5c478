"""Measure backfilling in virtual time: ``python -m bench.backfilling [limits|nasa|cost ...]``.

``limits`` runs the trace of ``bench.scheduling_quality``, with time limits of one to five times the
run time, and with predictions only. ``nasa`` runs the first jobs of a real trace
(``--trace``, in the Standard Workload Format) on 128 CPUs, and the same under EASY and first fit as
textbooks have them. ``--policy`` selects some policies of both, and ``--runs`` repeats a trace with
arrivals that differ by seconds, with the mean and the range of each metric. ``cost`` measures what
planned starts add to one decision: CPU time, and calls of Python functions, which do not depend on
the machine.
``bound`` computes which utilisation no scheduler exceeds, and ``plot`` draws what is stored.

Results are printed as Markdown, and added to bench/scheduling_quality.json with ``--store``;
``--check`` compares them with what is stored there.
"""

import argparse
import gzip
import heapq
import json
import math
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from statistics import fmean, median

from bench.quality_plot import PLOT, draw
from bench.quality_trace import CPUS, PERIOD, Actions, Totals, TraceJob, VirtualCluster, generate
from bench.scheduling_quality import (
    EPOCH,
    HELM,
    SEED,
    STORED,
    FirstFit,
    Metrics,
    Product,
    check,
    measure,
    metrics_of,
    percentile,
    store,
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

PACKED = HELM.replace("enqueue, ", "").replace(
    "  - name: binpack\n", "  - name: binpack\n    arguments: {binpack.weight: 10}\n"
)
"""Queues are limited to their share, all gangs are admitted, and few nodes are used: with equal
weights, nodeorder's score of what is free cancels that of binpack."""

BORROWING: Mapping[str, object] = {
    "backfilling__order": "shortest-first",
    "backfilling__borrow_for": "20m",
}


def configured(text: str, **arguments: object) -> str:
    """Return the configuration *text* with arguments of the action ``allocate``."""
    named = {name.replace("__", ".").replace("_", "-"): each for name, each in arguments.items()}
    lines = [f"    {name}: {value}" for name, value in named.items()]
    return f"{text}\nconfigurations:\n- name: allocate\n  arguments:\n" + "\n".join(lines)


FEW_NODES = WORK_CONSERVING.replace(
    "  - name: binpack\n", "  - name: binpack\n    arguments: {binpack.weight: 10}\n"
)
"""As :data:`WORK_CONSERVING`, and few nodes are used, as first fit does."""

POLICIES: Mapping[str, str] = {
    "none": WORK_CONSERVING,
    "few nodes": FEW_NODES,
    "few nodes, easy": configured(FEW_NODES, backfilling="easy"),
    "easy": configured(WORK_CONSERVING, backfilling="easy"),
    "conservative": configured(WORK_CONSERVING, backfilling="conservative", backfilling__depth=4),
    "easy after 90 min, shortest first": configured(
        WORK_CONSERVING,
        backfilling="easy",
        backfilling__reserve_after="90m",
        backfilling__order="shortest-first",
    ),
    "borrow, shortest first": configured(PACKED, **BORROWING),
    "borrow, shortest first, preempt": configured(
        PACKED.replace("allocate, backfill", "allocate, preempt, backfill"), **BORROWING
    ),
}
SHORTEST_FIRST: Mapping[str, str] = {
    mode: configured(
        WORK_CONSERVING, backfilling=mode, backfilling__depth=4, backfilling__order="shortest-first"
    )
    for mode in ("easy", "conservative")
}


def limits_of(trace: Sequence[TraceJob], most: float) -> dict[str, float]:
    """Return time limits in seconds by the name of the job: its run time times a random number
    from 1 to *most*."""
    rng = random.Random(LIMIT_SEED)  # not for cryptography
    return {job.name: job.duration * rng.uniform(1, most) for job in trace}


class PromisingProduct(Product):
    """Remembers which starts were promised to gangs first, and when they started."""

    def __init__(self, nodes: int, text: str, limits: Mapping[str, float] | None = None) -> None:
        super().__init__(nodes, text, limits)
        self._promised: dict[str, tuple[float, float, float, float]] = {}
        """When the promise was given, the interval and the expected start, by the name of the
        gang."""
        self.starts: list[tuple[bool, float]] = []
        """Whether a start was in the interval, and how far from what was expected, as a fraction of
        the wait from the promise on."""

    def cycle(self, now: float) -> Actions:
        """Run one cycle, and note the promises and starts."""
        actions = super().cycle(now)
        for name in {name for name, _, _ in actions.placements} & self._promised.keys():
            since, earliest, latest, expected = self._promised.pop(name)
            is_inside = earliest - PERIOD <= now <= latest + PERIOD
            error = abs(expected - now) / max(now - since, PERIOD)
            self.starts.append((is_inside, error))
        for gang in self.cache.pending_gangs.values():
            start = gang.estimated_start
            if start is not None and start.latest is not None and start.expected is not None:
                earliest, latest = start.earliest - EPOCH, start.latest - EPOCH
                promise = (now, earliest, latest, start.expected - EPOCH)
                self._promised.setdefault(gang.name, promise)
        return actions

    def promises(self) -> Metrics:
        """Return how many of the starts were in the interval, and the median error."""
        if not self.starts:
            return {}
        return {
            "promised starts": float(len(self.starts)),
            "in the interval": fmean(inside for inside, _ in self.starts),
            "median error": median(error for _, error in self.starts),
        }


def utilisation_bound(trace: Sequence[TraceJob], nodes: int, lag: float = 0.0) -> float:
    """Return a utilisation that no scheduler exceeds which does not evict.

    Until any time, a job cannot have used more than if it had started when it arrived; after it,
    the nodes are full at most. The lowest of these sums counts. *lag* is for how many seconds a job
    counts at most after its end, until the next cycle.
    """
    end, capacity = trace[-1].arrival, nodes * CPUS

    def used_until(time: float) -> float:
        return sum(
            min(job.duration + lag, max(time - job.arrival, 0.0)) * job.size * job.cpu
            for job in trace
        )

    times = (end * step / _BOUND_STEPS for step in range(_BOUND_STEPS + 1))
    return min(used_until(time) + capacity * (end - time) for time in times) / (capacity * end)


_BOUND_STEPS = 500


def print_bound(jobs: int) -> None:
    """Print the bound for a trace of *jobs* jobs, also with ends that count until a later cycle."""
    trace = generate(jobs, NODES, seed=SEED)
    for lag in (0.0, PERIOD / 2, PERIOD):
        bound = utilisation_bound(trace, NODES, lag)
        print(f"utilisation: at most {bound:.4f} if ends are seen after {lag:g} s")


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

    on_end: Callable[[TraceJob], None] = lambda job: None
    _expected: dict[str, float] = field(default_factory=dict)
    """What was expected of running jobs when they started."""

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
                _, ended = running.pop(heapq.heappop(ends)[1])
                free += ended.size
                self.on_end(ended)
            while upcoming is not None and upcoming.arrival <= now:
                waiting.append(upcoming)
                upcoming = next(arrivals, None)
            for job in list(self._started(waiting, running, free, now)):
                free -= job.size
                waiting.remove(job)
                running[job.name] = (now, job)
                if self.estimate is not None:
                    self._expected[job.name] = self.estimate(job)
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
        expected = self._expected[job.name]
        while started + expected <= now:
            expected = max(2 * expected, 1.0)
        return started + expected - now


class LastFive:
    """Predicts the median of the last five run times of the user."""

    def __init__(self) -> None:
        self._last: dict[str, list[float]] = {}

    def observe(self, job: TraceJob) -> None:
        """Note that *job* has ended."""
        self._last[job.user] = [*self._last.get(job.user, [])[-4:], job.duration]

    def __call__(self, job: TraceJob) -> float:
        """Return the expected run time of *job* in seconds; infinite for the first of a user."""
        last = self._last.get(job.user)
        return median(last) if last else math.inf


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


def run_real(trace: list[TraceJob], limits: Mapping[str, float] | None, text: str) -> Metrics:
    """Run *trace* under the scheduler."""
    product = PromisingProduct(REAL_NODES, text, limits)
    totals = VirtualCluster(trace, REAL_NODES, product).run()
    return real_metrics(totals) | product.promises()


def jittered(trace: Sequence[TraceJob], seed: int) -> list[TraceJob]:
    """Return *trace* with each job up to one cycle later. One run proves little: other arrivals by
    seconds change its results by a third."""
    rng = random.Random(seed)  # not for cryptography
    later = [replace(job, arrival=job.arrival + rng.uniform(0, PERIOD)) for job in trace]
    return sorted(later, key=lambda job: job.arrival)


def measure_real(path: Path, count: int, selected: str, runs: int) -> dict[str, dict[str, Metrics]]:
    """Run the real trace with perfect limits, with limits up to five times the run time, and with
    predictions; of the policies of the scheduler those whose names contain *selected*. With *runs*,
    results are of that many runs with jittered arrivals."""
    trace = read_swf(path, count, 0.9)
    traces = [jittered(trace, seed) for seed in range(1, runs + 1)] or [trace]
    results = {}
    for name, most in (("true limits", 1.0), ("limits up to 5 times", 5.0), ("predictions", 0.0)):
        title = f"NASA, {count} jobs, {name}" + (f", {runs} runs" if runs else "")
        results[title] = combined([_run_policies(each, name, most, selected) for each in traces])
    return results


def _run_policies(
    trace: list[TraceJob], name: str, most: float, selected: str
) -> dict[str, Metrics]:
    policies = {mode: POLICIES[mode] for mode in SHORTEST_FIRST}
    policies |= {f"{mode}, shortest first": text for mode, text in SHORTEST_FIRST.items()}
    limits, last_five = limits_of(trace, most) if most else None, LastFive()
    estimate = last_five if limits is None else _by_name(limits)
    found = {
        "first fit": real_metrics(Textbook(trace, None).run()),
        "EASY": real_metrics(Textbook(trace, estimate, last_five.observe).run()),
    }
    for policy, text in policies.items():
        if selected in policy:
            found[f"ours, {policy}"] = run_real(trace, limits, text)
            print(name, policy, found[f"ours, {policy}"], file=sys.stderr, flush=True)
    return found


def combined(runs: Sequence[dict[str, Metrics]]) -> dict[str, Metrics]:
    """Return the mean of each metric of several runs, and its least and largest value; of one run
    its metrics."""
    if len(runs) == 1:
        return runs[0]
    combinations: dict[str, Callable[[list[float]], float]] = {
        "": fmean,
        ", minimum": min,
        ", maximum": max,
    }
    return {
        policy: {
            f"{name}{suffix}": combine([run[policy][name] for run in runs])
            for name in metrics
            for suffix, combine in combinations.items()
        }
        for policy, metrics in runs[0].items()
    }


def measure_limits(jobs: int, selected: str, runs: int) -> dict[str, dict[str, Metrics]]:
    """Run the generated trace with limits, and with predictions only; under the policies whose
    names contain *selected*. With *runs*, jobs arrive up to one cycle later in each."""
    trace = generate(jobs, NODES, seed=SEED)
    limits = limits_of(trace, 5.0)
    traces = [jittered(trace, seed) for seed in range(1, runs + 1)] or [trace]
    found = combined([_run_generated(each, limits, selected) for each in traces])
    return {f"{jobs} jobs, {NODES} nodes, limits{f', {runs} runs' if runs else ''}": found}


def _run_generated(
    trace: list[TraceJob], limits: Mapping[str, float], selected: str
) -> dict[str, Metrics]:
    policies = {name: Product(NODES, text, limits) for name, text in POLICIES.items()}
    for name in ("easy", "few nodes, easy", "borrow, shortest first"):
        policies[f"{name}, predictions"] = Product(NODES, POLICIES[name])
    policies = {name: each for name, each in policies.items() if selected in name}
    found = measure(trace, NODES, policies)  # type: ignore[arg-type]
    found["first fit"] = metrics_of(
        trace, NODES, VirtualCluster(trace, NODES, FirstFit(NODES)).run()
    )
    return found


# -- cost ------------------------------------------------------------------------------------------


_DECISIONS = 20
_CPU_SIZES = 50
"""How many CPUs a pod of a waiting gang requests at most."""


def measure_cost(nodes: int, gangs: int, shapes: int) -> dict[str, dict[str, Metrics]]:
    """Measure a decision after a job has ended, with *gangs* of *shapes* waiting."""
    found = {}
    for mode in ("none", "easy", "conservative"):
        text = configured(HELM.replace("enqueue, ", ""), backfilling=mode, backfilling__depth=10)
        costs = list(_decisions(nodes, gangs, shapes, text))
        times = [seconds for seconds, calls in costs if not calls]
        found[mode] = {
            "median, ms": 1e3 * median(times),
            "maximum, ms": 1e3 * max(times),
            "median, calls": median(calls for _, calls in costs if calls),
        }
        print(mode, found[mode], file=sys.stderr, flush=True)
    return {f"a decision, {nodes} nodes, {gangs} gangs waiting": found}


def _decisions(nodes: int, gangs: int, shapes: int, text: str) -> Iterator[tuple[float, int]]:
    """Yield the CPU seconds of decisions, each after one running gang has ended, and how many
    Python functions every other one has called; that takes time, so the others have 0 calls."""
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
    for number in range(_DECISIONS):
        product.end_pods(fillers[number], range(1), finished=True)
        product.complete(fillers[number])
        calls, before = 0, product.cpu_seconds

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal calls
            calls += event == "call"

        sys.setprofile(count if number % 2 else None)
        product.cycle(3.0 + number)
        sys.setprofile(None)
        yield product.cpu_seconds - before, calls


def _gang(name: str, number: int, size: int, cpu: int, rng: random.Random) -> TraceJob:
    return TraceJob(
        name, "research", "normal", float(number), rng.uniform(100, 9e4), size, size, cpu, cpu
    )


def main() -> None:
    """Run what is named, or all; print and store the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=["limits", "nasa", "cost", "bound"])
    parser.add_argument("--policy", default="", help="part of the names of those to be run")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--trace", type=Path, help="file of the real trace, compressed by gzip")
    parser.add_argument("--real-jobs", type=int, default=4_000)
    parser.add_argument(
        "--runs", type=int, default=0, help="runs of each trace, with other arrivals in each"
    )
    parser.add_argument("--store", action="store_true", help="add to the stored results")
    parser.add_argument("--check", action="store_true", help="fail on a regression of 5 %%")
    options = parser.parse_args()
    results: dict[str, dict[str, Metrics]] = {}
    if "limits" in options.names:
        results |= measure_limits(options.jobs, options.policy, options.runs)
    if "nasa" in options.names:
        if options.trace is None:
            parser.error("nasa requires --trace")
        results |= measure_real(options.trace, options.real_jobs, options.policy, options.runs)
    if "cost" in options.names:
        results |= measure_cost(5_000, 10_000, 1_000)
    if "bound" in options.names:
        print_bound(options.jobs)
    for title, found in results.items():
        print(f"\n{title}:\n\n{table(found)}\n", flush=True)
    stored = json.loads(STORED.read_text())
    if options.store:
        store(results)
    if "plot" in options.names:
        PLOT.write_text(draw(json.loads(STORED.read_text())))
    if options.check:
        sys.exit(check(results, stored))


if __name__ == "__main__":
    main()
