"""Cost of one job on a real kube-apiserver: ``python -m bench.jobs [NAME ...] [--pods N]``.

Names: ``sync`` (CPU of the controllers for one pod's event, in a small and in a large job),
``waits`` (the same where a policy waits for pods that stay pending), ``calls`` (API calls per job),
``creates`` (creation rate of the pods of one job, compared with a bare loop); none means all. Rows
are in Markdown, for bench/README.md.
"""

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec
import uvloop

from batholith.kube.client.client import Client
from batholith.model.base import ApiStruct
from batholith.model.meta import ObjectMeta
from batholith.model.names import PODGROUPS, PODS
from bench.components import COMPONENTS, RequestCounts
from bench.load import NAMESPACE, in_parallel, job, submit
from bench.realkube import (
    TIMEOUT,
    Milestones,
    Shape,
    install_prerequisites,
    platform,
    stamp,
    submitter,
)

SMALL = 10
"""Pods of the small job."""
EVENTFUL, EVENTS = 5, 600
"""Pods of a job that have events, and events of each; the others stay pending."""
IN_FLIGHT = 64


class _Object(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


async def _wait_until(there: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not await there():  # noqa: ASYNC110 - nothing to wait on
            await asyncio.sleep(0.05)


async def _submit_admitted(client: Client, pods: int, **spec: object) -> None:
    """Submit a job of *pods* pods, and admit it as the scheduler would.

    Its first pod suffices to run.
    """
    body = job("one", pods)
    body["spec"] |= {"minAvailable": 1, **spec}
    await submit(client, [body])
    names: list[str] = []

    async def has_podgroup() -> bool:
        found = await client.list(PODGROUPS, namespace=NAMESPACE, view=_Object)
        names[:] = [each.metadata.name for each in found.items]
        return bool(names)

    await _wait_until(has_podgroup)
    admitted = {"status": {"phase": "Inqueue"}}
    await client.patch(PODGROUPS, names[0], admitted, namespace=NAMESPACE)


async def sync(pods: int) -> None:
    """CPU of the controllers for one pod's event, in a job of few pods and of many."""
    await _compare(pods)


async def waits(pods: int) -> None:
    """The same, with a policy that aborts the job if a pod is pending for a day."""
    await _compare(pods, policies=[{"event": "PodPending", "action": "AbortJob", "timeout": "24h"}])


async def _compare(pods: int, **spec: object) -> None:
    print("| pods of the job | events | CPU ms of the controllers an event |")
    print("| ---: | ---: | ---: |")
    costs = [await _sync_cost(size, **spec) for size in (SMALL, pods)]
    print(f"\nratio: {costs[1] / costs[0]:.2f}")


async def _sync_cost(pods: int, **spec: object) -> float:
    with platform() as target:
        async with submitter(target) as client:
            await install_prerequisites(client)
            await target.start_components(client, "controllers")
            seen = Milestones(client, pods=pods, jobs=1)
            async with seen.watching():
                await _submit_admitted(client, pods, **spec)
                await _wait_until(lambda: _reached(seen, "created"))
                await in_parallel(range(EVENTFUL), lambda n: _events(client, n, 2))
                await asyncio.sleep(10)  # delayed status writes happen now
                before = target.cpu()["controllers"]
                await in_parallel(range(EVENTFUL), lambda n: _events(client, n, EVENTS))
                await asyncio.sleep(1)
                spent = target.cpu()["controllers"] - before
    cost = 1000 * spent / (EVENTFUL * EVENTS)
    print(f"| {pods} | {EVENTFUL * EVENTS} | {cost:.3f} |", flush=True)
    return cost


async def _reached(seen: Milestones, what: str) -> bool:
    return what in seen.times


async def _events(client: Client, number: int, count: int) -> None:
    """Set a pod running, then alternately ready and not ready."""
    container = {"name": "main", "image": "x", "imageID": "x", "restartCount": 0}
    for ready in ([True, False] * count)[:count]:
        statuses = [{**container, "ready": ready, "state": {"running": {}}}]
        body = {"status": {"phase": "Running", "containerStatuses": statuses}}
        name = f"one-t-{number}"
        await client.patch(PODS, name, body, namespace=NAMESPACE, subresource="status")


async def calls(pods: int) -> None:
    """API calls per job until it runs, of controllers and scheduler, except watches and Events."""
    print("| shape | user | calls a job | which |")
    print("| --- | --- | ---: | --- |")
    for jobs, size in ((1, 1), (20, max(pods // 20, 1)), (1, pods)):
        await _calls_of(Shape(jobs=jobs, pods=size))


async def _calls_of(shape: Shape) -> None:
    with platform() as target:
        async with submitter(target) as client:
            await install_prerequisites(client)
            await target.start_components(client, *COMPONENTS)
            seen = Milestones(client, pods=shape.total, jobs=shape.jobs)
            async with seen.watching():
                since = stamp()
                bodies = (job(f"b{n}", shape.pods, cpu="1") for n in range(shape.jobs))
                await submit(client, bodies)
                async with asyncio.timeout(TIMEOUT):
                    await seen.done.wait()
                await asyncio.sleep(3)  # includes the last counts, whose writes are delayed
        requests = RequestCounts.between(target.audit(), since, stamp())
    for user in ("controllers", "scheduler"):
        found = requests.calls_of(user)
        total = sum(found.values()) / shape.jobs
        which = ", ".join(f"{number} {what}" for what, number in found.most_common())
        print(f"| {shape} | {user} | {total:.1f} | {which} |", flush=True)


async def creates(pods: int) -> None:
    """Pods a second of one job, and of a bare loop that posts the same pods to the same server."""
    with platform() as target:
        async with submitter(target) as client:
            await install_prerequisites(client)
            await target.start_components(client, "controllers")
            seen = Milestones(client, pods=pods, jobs=1)
            async with seen.watching():
                start = time.perf_counter()
                await _submit_admitted(client, pods)
                await _wait_until(lambda: _reached(seen, "created"))
                ours = pods / (seen.times["created"] - start)
            await asyncio.to_thread(target.stop_components)
            theirs = await _bare_rate(client, pods)
    print("| pods | of a job, pods/s | bare loop, pods/s | ratio |")
    print("| ---: | ---: | ---: | ---: |")
    print(f"| {pods} | {ours:.0f} | {theirs:.0f} | {ours / theirs:.2f} |", flush=True)


async def _bare_rate(client: Client, pods: int) -> float:
    """Post *pods* copies of the job's first pod, IN_FLIGHT at a time; returns pods a second."""
    first: dict[str, Any] = await client.get(PODS, "one-t-0", namespace=NAMESPACE, view=dict)
    kept = ("labels", "annotations", "ownerReferences")
    meta = {key: first["metadata"][key] for key in kept if key in first["metadata"]}

    async def create(number: int) -> None:
        body = {"metadata": {**meta, "name": f"bare-{number}"}, "spec": first["spec"]}
        await client.create(PODS, body, namespace=NAMESPACE, view=msgspec.Raw)

    start = time.perf_counter()
    await in_parallel(range(pods), create, workers=IN_FLIGHT)
    return pods / (time.perf_counter() - start)


BENCHES: dict[str, Callable[[int], Coroutine[None, None, None]]] = {
    "sync": sync,
    "waits": waits,
    "calls": calls,
    "creates": creates,
}


def main() -> None:
    """Run the named benchmarks, or all."""
    parser = argparse.ArgumentParser(prog="python -m bench.jobs")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHES))
    parser.add_argument("--pods", type=int, default=10000, help="of the large job")
    given = parser.parse_args()
    if unknown := set(given.names) - BENCHES.keys():
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    for name in given.names or BENCHES:
        print(f"\n{name}: {(BENCHES[name].__doc__ or '').strip()}\n", flush=True)
        uvloop.run(BENCHES[name](given.pods))


if __name__ == "__main__":
    main()
