"""The wall clock jumps by an hour while pods live: what is due comes when it should."""

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
from support.fake_apiserver import FakeApi
from support.jumping_clock import HOUR, JumpingClock

from batholith.agent.pods.records import PodDir
from batholith.agent.settings import SimulationSettings
from batholith.agent.state.pod_actions import DeadlineExceeded, StartContainer
from batholith.agent.state.status import Accepted, BackOff, Exited, Started
from batholith.agent.volumes.source_manager import SourceManager
from batholith.kube.client.client import Client
from batholith.machinery.clock import SteadyClock
from batholith.machinery.testing import FakeClock
from batholith.model.names import PODS

Json = dict[str, Any]


@pytest.fixture
def clock() -> JumpingClock:
    return JumpingClock()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[AgentCluster]:
    async with agent_cluster(EmbeddedServerFactory(), tmp_path) as made:
        yield made


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


async def test_set_back_it_delays_nothing(cluster: AgentCluster, clock: JumpingClock) -> None:
    async with cluster.agent(clock=clock, back_off=BackOff(initial_delay=0.5, max_delay=0.5)):
        await cluster.run(manifest("failing", shell("exit 1")))
        await cluster.run(manifest("late", shell("exec sleep 600"), activeDeadlineSeconds=3))
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
        late = await cluster.phase("late", "Failed")
        assert late["status"]["reason"] == "DeadlineExceeded"
        await cluster.delete("failing", grace=0)


async def test_set_forward_it_hurries_nothing(cluster: AgentCluster, clock: JumpingClock) -> None:
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
        # Its end has the worker look at everything again.
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


async def test_a_deadline_outlives_the_agent_and_a_jump(
    cluster: AgentCluster, clock: JumpingClock
) -> None:
    async with cluster.agent(clock=clock):
        await cluster.run(manifest("p", shell("exec sleep 600"), activeDeadlineSeconds=1800))
        await cluster.phase("p", "Running")
    ((folder, record),) = PodDir.all(cluster.settings.data_dir)
    clock.wrong_by = HOUR
    async with cluster.agent(clock=clock):
        await cluster.run(manifest("next", shell("exit 0"), restartPolicy="Never"))
        await cluster.phase("next", "Succeeded")
        assert (await cluster.pod("p"))["status"]["phase"] == "Running"
    # As it is after 1,800 s by the steady clock, whatever the other says.
    folder.write_record(msgspec.structs.replace(record, monotonic=record.monotonic - 1800))
    clock.wrong_by = -HOUR
    async with cluster.agent(clock=clock):
        seen = await cluster.phase("p", "Failed")
        assert seen["status"]["reason"] == "DeadlineExceeded"


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_a_restart_is_due_by_the_steady_time(jump: float) -> None:
    wrong = timedelta(seconds=jump)
    story = PodStatusSimulator(decode_pod(manifest()))
    for begin in (0, 10):
        story.apply(Started("c", after(begin), steady_at=after(begin)))
        # The clock jumps while the container runs: the run is no longer, nor shorter, for that.
        story.apply(Exited("c", after(begin + 5) + wrong, 1, steady_at=after(begin + 5)))
    assert story.state.of("c").consecutive_exits == 2
    assert not story.next_actions(24).actions
    assert story.next_actions(24).wake_at == after(15 + BACKOFF.delay(2))
    assert story.next_actions(25).actions == (StartContainer("c"),)


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_a_deadline_is_due_by_the_steady_time(jump: float) -> None:
    story = PodStatusSimulator(decode_pod(manifest(activeDeadlineSeconds=60)))
    story.state = replace(story.state, started_at=None)
    story.apply(Accepted(START + timedelta(seconds=jump), START))
    assert story.next_actions(59).wake_at == after(60)
    (command,) = story.next_actions(60).actions
    assert isinstance(command, DeadlineExceeded)


def test_steady_time_does_not_jump_and_believes_nothing_of_the_future() -> None:
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


async def test_simulated_pods_live_by_the_steady_time(tmp_path: Path) -> None:
    clock = JumpingClock()
    async with (
        agent_cluster(EmbeddedServerFactory(), tmp_path) as w,
        w.agent(clock=clock, simulation=SimulationSettings(nodes=1, prefix=NODE)),
    ):
        made = manifest("p", container("sleep", "1"), restartPolicy="Never")
        made["spec"] |= {"nodeName": f"{NODE}-0"}
        await w.client.create(PODS, made, namespace="default")
        await w.phase("p", "Running")
        clock.wrong_by = -HOUR
        await w.phase("p", "Succeeded")


async def test_a_token_is_renewed_by_its_length_of_life_whatever_the_clocks_say() -> None:
    answer = {
        "spec": {"expirationSeconds": 1000},
        "status": {"token": "t", "expirationTimestamp": "2001-01-01T00:00:00Z"},
    }
    clock, asked = FakeClock(), list[str]()

    async def post(path: str, body: object, *, view: type[Any]) -> Any:
        asked.append(path)
        return msgspec.convert(answer, view)

    projected = {"sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 3600}}]}
    pod = decode_pod(manifest(volumes=[{"name": "v", "projected": projected}]))
    async with FakeApi() as api, Client(api.credentials, user_agent="t") as client:
        client.post = post  # type: ignore[method-assign, assignment]
        book = SourceManager(client, clock=clock)
        book.register_pod(pod, lambda: None)
        await book.get(pod)
        assert book.next_token_refresh(pod.metadata.uid) == clock.monotonic() + 800
        for jump in (HOUR, -2 * HOUR):
            clock.step_wall(jump)
            await book.get(pod)
        assert len(asked) == 1
        clock.tick(800)
        await book.get(pod)
        assert len(asked) == 2
