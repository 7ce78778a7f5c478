"""Measures how long a part is without a leader: ``python -m bench.failover [--tries N]``.

Three replicas of the controllers and of the scheduler run on a real kube-apiserver with the usual
times of election. Their leaders are killed, or told to end, both at once; then a job of one pod is
created. Rows are in Markdown, for bench/README.md. Nothing is asserted.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from support.chaos_cluster import LIVES, PARTS, REPLICAS, Stage, stage
from support.replicas import Election, Replica  # shared with the tests

from batholith.kube.client.client import Client
from batholith.model.job import Job
from batholith.model.names import JOBS
from bench.load import NAMESPACE, job

WAYS: Mapping[str, Callable[[Replica], None]] = {
    "kill -9": Replica.kill,
    "SIGTERM": Replica.terminate,
}
PRODUCT = Election(lease=15, renew=10, retry=2)
"""The product's own times."""

LOOK = 0.01
"""Seconds between two looks at what is awaited, and so the error of a figure."""
SETTLE = 3.0
"""Seconds that a new replica is left to warm its caches."""

Times = dict[str, list[float]]


async def successor(s: Stage, part: str, former: Replica, since: float) -> float:
    """Seconds from *since* until another replica holds the Lease."""
    while s.leader(part) in (None, former):  # noqa: ASYNC110 - a log has no event to wait for
        await asyncio.sleep(LOOK)
    return time.perf_counter() - since


async def runs(client: Client, name: str, since: float) -> float:
    """Seconds from *since* until a new job of one pod is Running."""
    await client.create(JOBS, job(name, 1), namespace=NAMESPACE)
    while True:
        seen = await client.get(JOBS, name, namespace=NAMESPACE, view=Job)
        if seen.status.state.phase == "Running":
            return time.perf_counter() - since
        await asyncio.sleep(LOOK)


async def complete(s: Stage) -> None:
    """Wait until there are as many replicas as there should be, all of them candidates."""
    while True:
        alive = [one for part in PARTS for one in s.started[part] if one.alive]
        if len(alive) == len(PARTS) * REPLICAS and all("campaigning" in r.said() for r in alive):
            break
        await asyncio.sleep(0.1)
    await asyncio.sleep(SETTLE)


async def once(s: Stage, client: Client, name: str, way: str, times: Times) -> None:
    """Fell the leaders of both parts, and note how long everything takes."""
    leaders = {part: await s.living_leader(part) for part in PARTS}
    since = time.perf_counter()
    for replica in leaders.values():
        WAYS[way](replica)
    async with asyncio.TaskGroup() as group:
        waits = {
            f"{way}: {part} led by another": group.create_task(
                successor(s, part, leaders[part], since)
            )
            for part in PARTS
        }
        waits[f"{way}: a new job of one pod runs"] = group.create_task(runs(client, name, since))
    for what, wait in waits.items():
        times[what].append(wait.result())
    await complete(s)


async def measure(tries: int) -> Times:
    """All figures by what they are, in seconds."""
    times: Times = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="batholith-bench-") as folder:
        async with (
            stage(Path(folder), election=PRODUCT, wanted=[]) as s,
            s.replicas(),
            s.server.client() as client,
        ):
            await complete(s)
            for way in WAYS:
                for number in range(tries):
                    name = f"{way.lower().replace(' ', '')}-{number}"
                    await once(s, client, name, way, times)
    return times


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    most = (LIVES - REPLICAS) // len(WAYS)
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tries", type=int, default=10, help=f"each way, at most {most}")
    tries = min(parser.parse_args(arguments).tries, most)
    times = asyncio.run(measure(tries))
    print(f"| seconds from the signal until ... ({tries} tries) | median | max |")
    print("| --- | ---: | ---: |")
    for what, seconds in times.items():
        print(f"| {what} | {statistics.median(seconds):.2f} | {max(seconds):.2f} |")


if __name__ == "__main__":
    main()
