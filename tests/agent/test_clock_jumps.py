"""Jumps of the wall clock by an hour: restarts, kills and deadlines keep their time."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.agent import BACKOFF, START, PodStatusSimulator, after, container, decode_pod, manifest
from support.agent_cluster import NODE, AgentCluster, agent_cluster
from support.api_servers import EmbeddedServerFactory
from support.jumping_clock import HOUR, JumpingClock

from batholith.kube.client.client import Client
from batholith.kube.client.config import Credentials
from batholith.local.agent.pods.records import PodDir
from batholith.local.agent.settings import SimulationSettings
from batholith.local.agent.state.pod_actions import DeadlineExceeded, StartContainer
from batholith.local.agent.state.status import Accepted, BackOff, Exited, Started
from batholith.local.agent.volumes.source_manager import SourceManager
from batholith.machinery.clock import SteadyClock
from batholith.machinery.testing import FakeClock
from batholith.model.names import PODS

Json = dict[str, Any]


@pytest.fixture
def clock() -> JumpingClock:
    return JumpingClock()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[AgentCluster]:
    async with agent_cluster(EmbeddedServerFactory(), tmp_path) as created:
        yield created


def shell(script: str, **more: Any) -> Json:
    return container("sh", "-c", script, **more)


def restarts(pod: Json, name: str = "c") -> int:
    found = pod["status"].get("containerStatuses") or ()
    return sum(each.get("restartCount", 0) for each in found if each["name"] == name)


def is_waiting(pod: Json, name: str = "c") -> str:
    found = pod["status"].get("containerStatuses") or ()
    reasons = (each["state"].get("waiting", {}).get("reason", "") for each in found
               if each["name"] == name)  # fmt: skip
    return next(reasons, "")


@pytest.mark.process
async def test_wall_clock_set_back_delays_nothing(
    cluster: AgentCluster, clock: JumpingClock
) -> None:
    async with cluster.agent(clock=clock, back_off=BackOff(initial_delay=0.5, max_delay=0.5)):
        await cluster.run(manifest("failing", shell("exit 1")))
        await cluster.run(manifest("expiring", shell("exec sleep 600"), activeDeadlineSeconds=3))
        stubborn = shell("trap '' TERM; echo on; while :; do sleep 0.1; done")
        await cluster.run(manifest("stubborn", stubborn, terminationGracePeriodSeconds=1))
        await cluster.phase("stubborn", "Running")
        await cluster.wait_log("stubborn", "on")
        seen = await cluster.wait_pod("failing", lambda pod: restarts(pod) >= 1)
        clock.wrong_by = -HOUR
        await cluster.delete("stubborn")
        await cluster.wait_pod_deleted("stubborn")
        version = seen["metadata"]["resourceVersion"]
        await cluster.wait_pod(
            "failing", lambda pod: restarts(pod) >= restarts(seen) + 2, since=version
        )
        expiring = await cluster.phase("expiring", "Failed")
        assert expiring["status"]["reason"] == "DeadlineExceeded"
        await cluster.delete("failing", grace=0)


@pytest.mark.process
async def test_wall_clock_set_forward_triggers_nothing_early(
    cluster: AgentCluster, clock: JumpingClock
) -> None:
    async with cluster.agent(clock=clock, back_off=BackOff(initial_delay=900)):
        witness = shell("until test -e /tmp/go; do sleep 0.05; done", name="witness")
        ends = {"exec": {"command": ["touch", "/tmp/go"]}, "initialDelaySeconds": 1}
        witness |= {"startupProbe": ends}
        pod = manifest(
            "p", shell("exit 1"), witness, activeDeadlineSeconds=1800, restartPolicy="OnFailure"
        )
        await cluster.run(pod)
        await cluster.wait_pod("p", lambda pod: is_waiting(pod) == "CrashLoopBackOff")
        clock.wrong_by = HOUR
        # Its exit triggers a sync of the pod.
        over = await cluster.wait_pod(
            "p",
            lambda pod: any(
                each["name"] == "witness" and "terminated" in each["state"]
                for each in pod["status"]["containerStatuses"]
            ),
        )
        assert over["status"]["phase"] == "Running"
        assert (restarts(over), is_waiting(over)) == (1, "CrashLoopBackOff")
        await cluster.delete("p", grace=0)


@pytest.mark.process
async def test_active_deadline_survives_an_agent_restart_and_a_clock_jump(
    cluster: AgentCluster, clock: JumpingClock
) -> None:
    async with cluster.agent(clock=clock):
        await cluster.run(manifest("p", shell("exec sleep 600"), activeDeadlineSeconds=1800))
        await cluster.phase("p", "Running")
    ((pod_dir, record),) = PodDir.all(cluster.settings.data_dir)
    clock.wrong_by = HOUR
    async with cluster.agent(clock=clock):
        await cluster.run(manifest("next", shell("exit 0"), restartPolicy="Never"))
        await cluster.phase("next", "Succeeded")
        assert (await cluster.pod("p"))["status"]["phase"] == "Running"
    # As after 1,800 s by the steady clock.
    pod_dir.write_record(msgspec.structs.replace(record, monotonic=record.monotonic - 1800))
    clock.wrong_by = -HOUR
    async with cluster.agent(clock=clock):
        seen = await cluster.phase("p", "Failed")
        assert seen["status"]["reason"] == "DeadlineExceeded"


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_restart_backoff_uses_steady_time(jump: float) -> None:
    wrong = timedelta(seconds=jump)
    story = PodStatusSimulator(decode_pod(manifest()))
    for begin in (0, 10):
        story.apply(Started("c", after(begin), steady_at=after(begin)))
        # The clock jumps during the run, which does not change its duration.
        story.apply(Exited("c", after(begin + 5) + wrong, 1, steady_at=after(begin + 5)))
    assert story.state.of("c").consecutive_exits == 2
    assert not story.next_actions(24).actions
    assert story.next_actions(24).wake_at == after(15 + BACKOFF.delay(2))
    assert story.next_actions(25).actions == (StartContainer("c"),)


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_active_deadline_uses_steady_time(jump: float) -> None:
    story = PodStatusSimulator(decode_pod(manifest(activeDeadlineSeconds=60)))
    story.state = replace(story.state, started_at=None)
    story.apply(Accepted(START + timedelta(seconds=jump), START))
    assert story.next_actions(59).wake_at == after(60)
    (command,) = story.next_actions(60).actions
    assert isinstance(command, DeadlineExceeded)


def test_steady_time_does_not_jump_and_caps_future_wall_times() -> None:
    clock = FakeClock()
    time = SteadyClock(clock)
    start = clock.now()
    clock.tick(5)
    assert time.now() == start + timedelta(seconds=5)
    assert time.from_wall(start) == start
    assert time.from_wall(start + timedelta(hours=1)) == time.now()
    clock.step_wall(HOUR)
    assert time.now() == start + timedelta(seconds=5)
    assert clock.now() == start + timedelta(seconds=5 + HOUR)


async def test_simulated_pods_use_steady_time(tmp_path: Path) -> None:
    clock, simulation = JumpingClock(), SimulationSettings(nodes=1, prefix=NODE)
    async with (
        agent_cluster(EmbeddedServerFactory(), tmp_path, simulation=simulation) as w,
        w.agent(clock=clock),
    ):
        created = manifest("p", container("sleep", "1"), restartPolicy="Never")
        created["spec"] |= {"nodeName": f"{NODE}-0"}
        await w.client.create(PODS, created, namespace="default")
        await w.phase("p", "Running")
        clock.wrong_by = -HOUR
        await w.phase("p", "Succeeded")


async def test_token_renewal_depends_on_its_lifetime_only() -> None:
    response = {
        "spec": {"expirationSeconds": 1000},
        "status": {"token": "t", "expirationTimestamp": "2001-01-01T00:00:00Z"},
    }
    clock, requests = FakeClock(), list[str]()

    async def post(path: str, body: object, *, view: type[Any]) -> Any:
        requests.append(path)
        return msgspec.convert(response, view)

    projected = {"sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 3600}}]}
    pod = decode_pod(manifest(volumes=[{"name": "v", "projected": projected}]))
    async with Client(Credentials(server="http://nowhere.invalid"), user_agent="t") as client:
        client.post = post  # type: ignore[method-assign, assignment]
        sources = SourceManager(client, clock=clock)
        sources.register_pod(pod, lambda: None)
        await sources.get(pod)
        assert sources.next_token_refresh(pod.metadata.uid) == clock.monotonic() + 800
        for jump in (HOUR, -2 * HOUR):
            clock.step_wall(jump)
            await sources.get(pod)
        assert len(requests) == 1
        clock.tick(800)
        await sources.get(pod)
        assert len(requests) == 2
