"""Measure the budget of the embedded API server: ``python -m bench.budget [PODS]``.

Creates of pods and of ConfigMaps alternate between the embedded server and a real kube-apiserver
(built by `tests/realkube/build`), from one client of a service account with a role; then memory by
pod, 1,000 watches, and a whole cluster with compiled modules, as an installed package has them.
Processor time is that of the servers (with etcd); compare the ratios, as machines differ.
"""

import argparse
import asyncio
import contextlib
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from statistics import median

import msgspec

from batholith.httpserver.limits import raise_open_files
from batholith.kube.client.client import Client
from batholith.kube.client.config import Credentials, load_credentials
from batholith.local.supervisor.supervisor import UpState
from batholith.model.base import ApiStruct
from batholith.model.names import CONFIGMAPS, PODS, SERVICEACCOUNTS, Resource
from bench.apiserver import NAMESPACE, Server, all_of, pod, running_server

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from support.realkube import RealKube, server_view  # shared with the tests

ROUNDS, WATCHES, WATCHED_CREATES, IDLE_SECONDS = 3, 1000, 20, 10
RBAC = "rbac.authorization.k8s.io"
_CLI = (sys.executable, "-m", "batholith.cli")


def _cpu(pids: Iterable[int]) -> float:
    """Return the processor seconds of the threads of processes so far."""
    tasks = (task for pid in pids for task in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return sum(int(each.read_text().split()[0]) for each in tasks) / 1e9


def _memory(pids: Iterable[int]) -> float:
    """Return the MiB of processes, with their part of shared pages."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total / 1024


def _descendants(root: int) -> Iterator[int]:
    yield root
    for task in Path(f"/proc/{root}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from _descendants(int(child))


class _TokenStatus(ApiStruct, frozen=True):
    token: str = ""


class _TokenRequest(ApiStruct, frozen=True):
    status: _TokenStatus = _TokenStatus()


async def _account(admin: Client) -> Client:
    """Return a client of a new service account that may create what is measured, and no more."""
    rules = [{"apiGroups": [""], "resources": ["pods", "configmaps"], "verbs": ["create"]}]
    subject = {"kind": "ServiceAccount", "name": "bench", "namespace": NAMESPACE}
    reference = {"apiGroup": RBAC, "kind": "Role", "name": "bench"}
    for plural, kind, fields in (
        ("roles", "Role", {"rules": rules}),
        ("rolebindings", "RoleBinding", {"subjects": [subject], "roleRef": reference}),
    ):
        body = {"metadata": {"name": "bench"}, **fields}
        await admin.create(Resource(RBAC, "v1", plural, kind), body, namespace=NAMESPACE)
    await admin.create(SERVICEACCOUNTS, {"metadata": {"name": "bench"}}, namespace=NAMESPACE)
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    path = SERVICEACCOUNTS.path(NAMESPACE, "bench", "token")
    token = (await admin.post(path, request, view=_TokenRequest)).status.token
    own = admin.credentials
    credentials = Credentials(
        server=own.server, ca_file=own.ca_file, ca_data=own.ca_data, token=token
    )
    return Client(credentials, user_agent="bench")


def _configmap(number: int) -> dict[str, object]:
    data = {f"key{index}": "x" * 40 for index in range(5)}
    return {"metadata": {"name": f"c{number}", "labels": {"app": "bench"}}, "data": data}


KINDS: dict[Resource, Callable[[int], Mapping[str, object]]] = {PODS: pod, CONFIGMAPS: _configmap}


async def _creates(
    client: Client, pids: list[int], first: int, count: int, kind: Resource = PODS
) -> tuple[float, float]:
    """Create objects; return creates a second and processor microseconds a create."""

    async def create(client: Client, number: int) -> object:
        return await client.create(kind, KINDS[kind](first + number), namespace=NAMESPACE)

    before, begun = _cpu(pids), time.perf_counter()
    await all_of(client, create, count)
    elapsed = time.perf_counter() - begun
    return count / elapsed, (_cpu(pids) - before) * 1e6 / count


@contextlib.asynccontextmanager
async def _real(directory: Path) -> AsyncIterator[tuple[list[int], Client]]:
    with RealKube(directory) as kube:
        async with (
            server_view(kube) as server,
            Client(load_credentials(str(server.kubeconfig)), user_agent="bench") as client,
        ):
            yield [kube.pid(name) for name in ("kube-apiserver", "etcd")], client


async def compare(count: int, directory: Path) -> None:
    """Print creates of both servers, alternating."""
    command = (*_CLI, "apiserver")
    async with _real(directory) as (theirs, their_admin), running_server(*command) as started:
        server, admin = started
        ours = [server.process.pid]
        async with await _account(admin) as client, await _account(their_admin) as their_client:
            for kind in KINDS:
                ratios = []
                for number in range(ROUNDS + 1):
                    first = number * count
                    other, their_cost = await _creates(their_client, theirs, first, count, kind)
                    rate, cost = await _creates(client, ours, first, count, kind)
                    if number == 0:
                        continue  # what both do for the first time
                    ratios.append(rate / other)
                    print(
                        f"{kind.plural}: creates/s {rate:.0f} and {other:.0f} "
                        f"(ratio {ratios[-1]:.2f}), processor us {cost:.0f} and {their_cost:.0f} "
                        f"(ratio {their_cost / cost:.2f})"
                    )
                print(f"{kind.plural}: median ratio of creates/s: {median(ratios):.2f}")
        await _pods_and_watches(server, admin, (ROUNDS + 1) * count, count)


async def _pods_and_watches(server: Server, client: Client, first: int, count: int) -> None:
    """Print the memory of a pod, and the cost of many watches."""
    pids = [server.process.pid]
    before = _memory(pids)
    await _creates(client, pids, first, 2 * count)
    print(f"KiB a pod: {(_memory(pids) - before) * 1024 / (2 * count):.1f}")
    before, seen, done = _memory(pids), 0, asyncio.Event()

    async def watch(begun: asyncio.Barrier) -> None:
        nonlocal seen
        path = f"{PODS.path('', '')}?watch=true&resourceVersion={version}"
        async with client.watch_lines(path) as batches:
            await begun.wait()
            async for lines in batches:
                seen += len(lines)
                if seen >= WATCHES * WATCHED_CREATES:
                    done.set()

    version = (await client.list(PODS, view=ApiStruct)).resource_version
    async with asyncio.TaskGroup() as tasks:
        begun = asyncio.Barrier(WATCHES + 1)
        watching = [tasks.create_task(watch(begun)) for _ in range(WATCHES)]
        await begun.wait()
        held, spent = _memory(pids) - before, _cpu(pids)
        await _creates(client, pids, first + 2 * count, WATCHED_CREATES)
        await done.wait()
        events = WATCHES * WATCHED_CREATES
        print(
            f"{WATCHES} watches: {held * 1024 / WATCHES:.1f} KiB each, "
            f"{(_cpu(pids) - spent) * 1e6 / events:.1f} us an event delivered"
        )
        for task in watching:
            task.cancel()


def cluster(directory: Path) -> None:
    """Print when a whole cluster is ready, and what it needs when idle."""
    os.environ["PYTHONPYCACHEPREFIX"] = str(directory / "compiled")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    _measure_cluster(directory / "first", report=lambda _: None)  # compiles the modules
    _measure_cluster(directory / "second", report=print)


def _measure_cluster(data: Path, *, report: Callable[[str], None]) -> None:
    begun, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    start = (*_CLI, "up", "--detach", "--port=0", "--api-port=0", "--data-dir", str(data))
    subprocess.run(start, check=True, stdout=subprocess.DEVNULL)
    after, elapsed = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - begun
    try:
        state = msgspec.json.decode((data / "up.json").read_bytes(), type=UpState)
        pids = list(_descendants(state.supervisor.pid))
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime + _cpu(pids)
        report(f"up: {elapsed:.1f} s, {spent:.1f} s of processor time")
        time.sleep(IDLE_SECONDS)  # until what the start has caused is done
        idle = _cpu(pids)
        time.sleep(IDLE_SECONDS)  # the time that is measured
        share = (_cpu(pids) - idle) / IDLE_SECONDS
        report(f"idle: {100 * share:.2f} % of a core, {_memory(pids):.0f} MiB in all")
        for name, component in state.components.items():
            if component.process is not None:
                report(f"  {name}: {_memory([component.process.pid]):.0f} MiB")
    finally:
        subprocess.run((*_CLI, "down", "--data-dir", str(data)), check=True)


async def main(count: int) -> None:
    """Print all measurements."""
    raise_open_files(WATCHES + 500)
    with tempfile.TemporaryDirectory(prefix="batholith-bench-") as name:
        await compare(count, Path(name, "real"))
        await asyncio.to_thread(cluster, Path(name))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pods", nargs="?", type=int, default=500, help="in each round")
    asyncio.run(main(parser.parse_args().pods))
