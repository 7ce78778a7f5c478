"""Measure controllers whose replicas share shards.

``python -m bench.shards [--pods N] [--replicas N ...]``

On a real kube-apiserver: one, two and four replicas with twelve shards and the same jobs. CPU
and memory of each replica, and what all of them write. One replica without shards is the reference.
"""

import argparse
import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import uvloop

from batholith.kube.client.client import Client
from batholith.model.base import ApiStruct
from batholith.model.meta import ObjectMeta
from batholith.model.names import LEASES
from bench.components import Platform, RequestCounts, memory
from bench.load import job, submit
from bench.realkube import Milestones, install_prerequisites, platform, stamp, submitter

SHARDS = 12
REPLICAS = (0, 1, 2, 4)
"""0: one replica without shards."""
TIMEOUT = 1200.0


class _LeaseSpec(ApiStruct, frozen=True):
    holder_identity: str | None = None


class _Lease(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: _LeaseSpec = _LeaseSpec()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Result of one run."""

    seconds: float
    cpu: list[float]
    """CPU seconds of each replica."""
    memory: list[float]
    """MiB of each replica at its maximum."""
    writes: int


async def _wait_balanced(client: Client, replicas: int) -> None:
    """Wait until all shards are held, each replica holding its share."""
    while True:
        leases = (await client.list(LEASES, namespace="volcano-system", view=_Lease)).items
        holders = [
            lease.spec.holder_identity for lease in leases if "-shard-" in lease.metadata.name
        ]
        counts = [holders.count(each) for each in set(holders) - {None, ""}]
        if len(counts) == replicas and sum(counts) == SHARDS and max(counts) - min(counts) <= 1:
            return
        await asyncio.sleep(0.1)


async def _start(target: Platform, client: Client, users: list[str]) -> None:
    await target.start_components(client, "scheduler", "agent")
    alone = users == ["controllers"]
    flag = "--leader-elect=false" if alone else f"--shards={SHARDS}"
    started = [target.start("controllers", flag, user=user) for user in users]
    for component in started:
        await component.wait_ready()
    if not alone:
        await _wait_balanced(client, len(users))


async def measure(replicas: int, jobs: int, pods: int) -> Run:
    """Run *jobs* of *pods* pods each with *replicas*."""
    users = [f"controllers-{number}" for number in range(replicas)] or ["controllers"]
    with platform(users=users) as target:
        async with submitter(target) as client:
            await install_prerequisites(client)
            await _start(target, client, users)
            seen = Milestones(client, pods=jobs * pods, jobs=jobs)
            async with seen.watching():
                since, start = stamp(), time.perf_counter()
                before = [target.cpu_of(user) for user in users]
                await submit(client, (job(f"b{n}", pods, cpu="1") for n in range(jobs)))
                async with asyncio.timeout(TIMEOUT):
                    await seen.done.wait()
                spent = [
                    target.cpu_of(user) - spent for user, spent in zip(users, before, strict=True)
                ]
                used = [memory(target.components[user].process.pid)[1] for user in users]
                until = stamp()
        requests = RequestCounts.between(target.audit(), since, until)
        return Run(
            seconds=seen.times["running"] - start,
            cpu=spent,
            memory=used,
            writes=sum(requests.writes_of(*users).values()),
        )


def _cells(values: list[float], form: str) -> str:
    return ", ".join(format(value, form) for value in values)


async def run(pods: int, replica_counts: Sequence[int]) -> None:
    """Print a table in Markdown."""
    print("| jobs x pods | replicas | all running | CPU s of each | MiB of each | writes |")
    print("| --- | --- | ---: | --- | --- | ---: |")
    for jobs, size in ((max(1, pods // 500), min(pods, 500)), (pods, 1)):
        for replicas in replica_counts:
            result = await measure(replicas, jobs, size)
            shown = str(replicas) if replicas else "1, no shards"
            cells = [
                f"{jobs}x{size}",
                shown,
                f"{result.seconds:.1f} s",
                _cells(result.cpu, ".1f"),
                _cells(result.memory, ".0f"),
                str(result.writes),
            ]
            print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.shards")
    parser.add_argument("--pods", type=int, default=3000)
    parser.add_argument("--replicas", type=int, nargs="+", default=REPLICAS, metavar="N")
    arguments = parser.parse_args()
    uvloop.run(run(arguments.pods, arguments.replicas))


if __name__ == "__main__":
    main()
