"""Cost of a JobFlow on a real kube-apiserver: ``python -m bench.flow [--layers N] [--width N]``.

A flow of layers, each Job of which depends on three Jobs of the layer before, against the same Jobs
submitted at once without a flow. The pods end as soon as they run. Rows are in Markdown, for
bench/README.md.
"""

import argparse
import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import uvloop

from batholith.kube.client.client import Client
from batholith.kube.informer.informer import Informer
from batholith.model.flow import JobFlow
from batholith.model.job import Job
from batholith.model.names import JOBFLOWS, JOBS, JOBTEMPLATES
from bench.components import COMPONENTS, RequestCounts
from bench.load import NAMESPACE, in_parallel, job, submit
from bench.realkube import TIMEOUT, install_prerequisites, platform, stamp, submitter

Json = dict[str, Any]

TARGETS = 3
"""Jobs of the layer before that a Job depends on."""
SETTLE = 3.0
"""Seconds after the end until the writes are counted."""
FLOW = "bench"


def names(layers: int, width: int) -> list[list[str]]:
    """Return the names of the flows by layer."""
    return [[f"l{layer}-{number}" for number in range(width)] for layer in range(layers)]


def body_of(name: str) -> Json:
    """Return a Job whose pod ends at once."""
    return job(name, 1, cpu="10m", command=("exit", "0"))


def flows(layers: list[list[str]]) -> list[Json]:
    """Return the flows of the spec."""
    found: list[Json] = [{"name": name} for name in layers[0]]
    for before, layer in pairwise(layers):
        for number, name in enumerate(layer):
            targets = {before[(number + offset) % len(before)] for offset in range(TARGETS)}
            found.append({"name": name, "dependsOn": {"targets": sorted(targets)}})
    return found


@asynccontextmanager
async def watching(informer: Informer[Any]) -> AsyncIterator[None]:
    """Run an informer inside the block."""
    running = asyncio.create_task(informer.run())
    try:
        await informer.wait_synced()
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def without_flow(client: Client, layers: list[list[str]]) -> None:
    """Submit all Jobs, and wait until they have completed."""
    missing, done = {name for layer in layers for name in layer}, asyncio.Event()

    def on_job(_: Job | None, new: Job | None) -> None:
        if new is not None and new.status.state.phase == "Completed":
            missing.discard(new.metadata.name)
            if not missing:
                done.set()

    informer = Informer(client, JOBS, Job)
    informer.add_event_handler(on_job)
    async with watching(informer):
        await submit(client, map(body_of, sorted(missing)))
        await done.wait()


async def with_flow(client: Client, layers: list[list[str]]) -> None:
    """Create the flow, and wait until it has succeeded."""
    done: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def on_flow(_: JobFlow | None, new: JobFlow | None) -> None:
        if new is not None and new.status.state.phase in ("Succeed", "Failed") and not done.done():
            done.set_result(new.status.state.phase)

    informer = Informer(client, JOBFLOWS, JobFlow)
    informer.add_event_handler(on_flow)
    async with watching(informer):
        body = {"metadata": {"name": FLOW}, "spec": {"flows": flows(layers)}}
        await client.create(JOBFLOWS, body, namespace=NAMESPACE)
        if await done != "Succeed":
            raise RuntimeError("the flow failed")


async def create_templates(client: Client, layers: list[list[str]]) -> None:
    """Create the templates of the flow."""

    async def create(name: str) -> None:
        body = {"metadata": {"name": name}, "spec": body_of(name)["spec"]}
        await client.create(JOBTEMPLATES, body, namespace=NAMESPACE)

    await in_parallel([name for layer in layers for name in layer], create)


async def measure(
    what: str, layers: list[list[str]], run: Callable[[Client, list[list[str]]], Awaitable[None]]
) -> float:
    """Run one way on a new cluster and print its row; return the seconds."""
    jobs = sum(map(len, layers))
    with platform() as target:
        async with submitter(target) as client:
            await install_prerequisites(client)
            await target.start_components(client, *COMPONENTS)
            if run is with_flow:
                await create_templates(client, layers)
                await asyncio.sleep(SETTLE)
            before, since, start = target.cpu(), stamp(), time.perf_counter()
            async with asyncio.timeout(TIMEOUT):
                await run(client, layers)
            seconds = time.perf_counter() - start
            after = target.cpu()
            await asyncio.sleep(SETTLE)
        requests = RequestCounts.between(target.audit(), since, stamp())
    writes = requests.writes_of("controllers")
    which = ", ".join(f"{number} {kind}" for kind, number in writes.most_common())
    cpu = after["controllers"] - before["controllers"]
    print(
        f"| {what} | {jobs} | {seconds:.1f} s | {cpu:.1f} s"
        f" | {sum(writes.values()) / jobs:.2f} | {which} |",
        flush=True,
    )
    return seconds


async def main(layers: int, width: int) -> None:
    """Measure both ways."""
    wanted = names(layers, width)
    print("| way | jobs | until all completed | CPU of the controllers | writes a job | which |")
    print("| --- | ---: | ---: | ---: | ---: | --- |")
    alone = await measure("without a flow", wanted, without_flow)
    together = await measure(f"{layers} layers of {width}", wanted, with_flow)
    print(f"\nratio of the times: {together / alone:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--width", type=int, default=100)
    given = parser.parse_args()
    uvloop.run(main(given.layers, given.width))
