"""Measure how long a component is without a leader: ``python -m bench.failover [--tries N]``.

Three replicas of the controllers and of the scheduler run on a real kube-apiserver with the default
lease times. Both leaders are killed, or terminated, at the same time; then a job of one pod is
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

from support.chaos_cluster import (
    COMPONENTS,
    MAX_REPLICA_RESTARTS,
    REPLICAS,
    ChaosCluster,
    chaos_cluster,
)
from support.replicas import ElectionTiming, Replica  # shared with the tests

from batholith.kube.client.client import Client
from batholith.model.job import Job
from batholith.model.names import JOBS
from bench.load import NAMESPACE, job

WAYS: Mapping[str, Callable[[Replica], None]] = {
    "kill -9": Replica.kill,
    "SIGTERM": Replica.terminate,
}
PRODUCT = ElectionTiming(lease=15, renew=10, retry=2)
"""The default lease times."""

POLL_INTERVAL = 0.01
"""Seconds between two polls, and so the error of a measurement."""
SETTLE_TIME = 3.0
"""Seconds for a new replica to sync its informers."""

Times = dict[str, list[float]]


async def successor(cluster: ChaosCluster, component: str, former: Replica, since: float) -> float:
    """Seconds from *since* until another replica holds the Lease."""
    while cluster.leader(component) in (None, former):  # noqa: ASYNC110 - a log has no event to wait for
        await asyncio.sleep(POLL_INTERVAL)
    return time.perf_counter() - since


async def time_until_running(client: Client, name: str, since: float) -> float:
    """Seconds from *since* until a new job of one pod is Running."""
    await client.create(JOBS, job(name, 1), namespace=NAMESPACE)
    while True:
        seen = await client.get(JOBS, name, namespace=NAMESPACE, view=Job)
        if seen.status.state.phase == "Running":
            return time.perf_counter() - since
        await asyncio.sleep(POLL_INTERVAL)


async def wait_all_candidates(cluster: ChaosCluster) -> None:
    """Wait until there are as many replicas as there should be, all of them candidates."""
    while True:
        alive = [
            one for name in COMPONENTS for one in cluster.replicas_started[name] if one.is_running
        ]
        if len(alive) == len(COMPONENTS) * REPLICAS and all(
            "attempting to acquire lease" in r.log_text() for r in alive
        ):
            break
        await asyncio.sleep(0.1)
    await asyncio.sleep(SETTLE_TIME)


async def measure_failover(
    cluster: ChaosCluster, client: Client, name: str, way: str, times: Times
) -> None:
    """Stop or kill the leaders of both components, and record the times until recovery."""
    leaders = {name: await cluster.wait_live_leader(name) for name in COMPONENTS}
    since = time.perf_counter()
    for replica in leaders.values():
        WAYS[way](replica)
    async with asyncio.TaskGroup() as group:
        waits = {
            f"{way}: {name} led by another": group.create_task(
                successor(cluster, name, leaders[name], since)
            )
            for name in COMPONENTS
        }
        waits[f"{way}: a new job of one pod runs"] = group.create_task(
            time_until_running(client, name, since)
        )
    for what, wait in waits.items():
        times[what].append(wait.result())
    await wait_all_candidates(cluster)


async def measure(tries: int) -> Times:
    """Return all measurements in seconds, by title."""
    times: Times = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="batholith-bench-") as directory:
        async with (
            chaos_cluster(Path(directory), election=PRODUCT, workload=[]) as s,
            s.running_replicas(),
            s.server.client() as client,
        ):
            await wait_all_candidates(s)
            for way in WAYS:
                for number in range(tries):
                    name = f"{way.lower().replace(' ', '')}-{number}"
                    await measure_failover(s, client, name, way, times)
    return times


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    most = (MAX_REPLICA_RESTARTS - REPLICAS) // len(WAYS)
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
