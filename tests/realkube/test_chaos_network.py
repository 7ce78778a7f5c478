"""Three replicas of the controllers and the scheduler on a network and a server that fail.

As in `test_chaos_processes`: jobs reach their expected results, no pod is created a second time,
and only leaders write.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from support.audit_log import AuditedRequest
from support.chaos_cluster import COMPONENTS, ChaosCluster, chaos_cluster
from support.fault_proxy import HttpProxy, TcpProxy, random_faults
from support.job_load import expected_jobs
from support.replicas import Replica

pytestmark = pytest.mark.timeout(900)  # for a loaded machine

Cut = tuple[Callable[[TcpProxy], None], Callable[[TcpProxy], None]]
CUTS: tuple[Cut, ...] = (
    (TcpProxy.drop, TcpProxy.resume),
    (TcpProxy.hang, TcpProxy.drop),  # requests in flight are lost; the next one delivers them
    (lambda proxy: proxy.hang(requests=False), TcpProxy.resume),
)
"""How a leader is cut off, and how its connection continues once another leads. In the last one
requests are executed, and the responses arrive after the Lease expired."""


P = TypeVar("P", TcpProxy, HttpProxy)


@asynccontextmanager
async def proxy_per_replica(
    s: ChaosCluster, new_proxy: Callable[[], P]
) -> AsyncIterator[dict[str, P]]:
    """Connect each replica to the server through its own proxy."""
    async with AsyncExitStack() as stack:
        proxies = {user: await stack.enter_async_context(new_proxy()) for user in s.users}
        s.urls.update({user: proxy.url for user, proxy in proxies.items()})
        yield proxies


def observing_proxy(s: ChaosCluster) -> HttpProxy:
    """A proxy that sees each request."""
    return HttpProxy(s.server.url, ca=s.server.ca, own=s.server.kube.pki.server)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("jobs", "cuts"),
    [
        (40, {10: CUTS[2]}),
        pytest.param(200, dict(zip((10, 60, 110), CUTS, strict=True)), marks=pytest.mark.soak),
    ],
)
async def test_leaders_that_are_cut_off_end(
    tmp_path: Path, jobs: int, cuts: Mapping[int, Cut]
) -> None:
    """Each time when a number of jobs have ended."""
    async with (
        chaos_cluster(tmp_path, workload=expected_jobs(jobs)) as s,
        proxy_per_replica(s, lambda: TcpProxy(s.server.kube.port)) as proxies,
        s.running_replicas(),
    ):
        for ended, (cut, then) in cuts.items():
            await s.job_load.wait_finished(ended)

            def cut_off(replica: Replica, cut: Callable[[TcpProxy], None] = cut) -> None:
                cut(proxies[replica.user])

            for replica in (await s.failed_over(cut_off)).values():
                assert await replica.wait_exit() == 1
                last_line = 'exiting immediately reason="lost lease volcano-system/'
                assert last_line in replica.log_text()
                then(proxies[replica.user])
        await s.check_jobs()
        s.check_leaders(min_transitions=len(cuts))


def is_safe_to_repeat(request: AuditedRequest) -> bool:
    """Whether a write can do no harm when another has been at work in between."""
    if request.verb == "create" and request.resource != "pods/binding":
        return True  # its name is fixed: a second one is refused
    result = request.body
    names = result.get("preconditions" if request.verb == "delete" else "metadata", {})
    return "uid" in names or "resourceVersion" in names


@pytest.mark.soak
async def test_writes_that_arrive_when_another_leads_do_no_harm(tmp_path: Path) -> None:
    """They had left their sender when it led, so nothing but their own care can stop them."""
    async with (
        chaos_cluster(tmp_path) as s,
        proxy_per_replica(s, lambda: observing_proxy(s)) as proxies,
        s.running_replicas(),
    ):
        await s.job_load.wait_finished(20)
        senders = await s.failed_over(lambda replica: proxies[replica.user].hold(requests=True))
        for replica in senders.values():
            assert await replica.wait_exit() == 1
        assert sum(proxies[replica.user].held for replica in senders.values()) > 0
        for replica in senders.values():
            proxies[replica.user].release()
        await s.check_jobs()
        delayed = [write for component in COMPONENTS for write in s.stale_writes(component)]
        assert {write.request.user for write in delayed} <= {one.user for one in senders.values()}
        assert [write for write in delayed if not is_safe_to_repeat(write.request)] == []


@pytest.mark.soak
async def test_some_of_all_requests_fail(tmp_path: Path) -> None:
    """500, 429 with and without advice, 409, 410, and connections that break before and after."""
    async with chaos_cluster(tmp_path) as s, observing_proxy(s) as proxy:
        s.urls.update(dict.fromkeys(s.users, proxy.url))
        proxy.fault_policy = random_faults(0.1, seed=4)
        async with s.running_replicas():
            await s.job_load.wait_finished(80)
            await s.failed_over(Replica.kill)
            await s.check_jobs()
        s.check_leaders(min_transitions=1)
        assert proxy.faults_injected > 200


@pytest.mark.soak
async def test_the_api_server_is_killed_and_comes_back(tmp_path: Path) -> None:
    async with chaos_cluster(tmp_path) as s, s.running_replicas():
        for ended in (10, 90):
            await s.job_load.wait_finished(ended)
            s.server.kube.kill_api()
            await asyncio.to_thread(s.server.kube.start_api)
        await s.check_jobs()
        s.check_leaders(min_transitions=0)
