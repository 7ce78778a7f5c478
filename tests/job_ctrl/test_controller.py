"""The shell against a small server: what it writes, and that it survives what servers do."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.fake_apiserver import FakeApi
from support.jobs import task
from support.polling import until
from support.running_controller import Notes, running

from batholith.job_ctrl.controller import JobController
from batholith.job_ctrl.settings import JobSettings
from batholith.kube.client.client import Client
from batholith.kube.errors import ConnectionLostError
from batholith.machinery.change_rate import ChangeRate
from batholith.machinery.clock import Clock
from batholith.machinery.testing import FakeClock
from batholith.model.names import (
    COMMANDS,
    CONFIGMAPS,
    JOBS,
    PERSISTENTVOLUMECLAIMS,
    PODGROUPS,
    PODS,
    SECRETS,
    SERVICES,
    Resource,
)

SETTINGS = JobSettings(status_delay=0.05)


class Mortal(Client):
    """A client whose process dies with its last write, before it hears the answer."""

    def __init__(self, api: FakeApi, *, writes: int) -> None:
        super().__init__(api.credentials, user_agent="test")
        self.left = writes
        self.dead = asyncio.Event()

    async def _send(self, method: str, path: str, *rest: Any) -> bytes:
        if self.dead.is_set():
            raise ConnectionLostError("dead")
        answer = await super()._send(method, path, *rest)
        if method != "GET":
            self.left -= 1
            if self.left <= 0:
                self.dead.set()
                raise ConnectionLostError("dead")
        return answer


class Stage:
    """The server, and the parts of the user, the scheduler and the kubelet."""

    def __init__(self, api: FakeApi) -> None:
        self.api = api
        self.notes = Notes()

    @asynccontextmanager
    async def controller(
        self,
        client: Client | None = None,
        *,
        settings: JobSettings = SETTINGS,
        clock: Clock | None = None,
    ) -> AsyncIterator[JobController]:
        """A controller at work."""
        async with client or Client(self.api.credentials, user_agent="test") as client:
            made = JobController(client, settings=settings, recorder=self.notes, clock=clock)
            async with running(made):
                yield made

    def submit(self, *tasks: dict[str, Any], **spec: Any) -> None:
        tasks = tasks or (task(),)
        whole = {
            "minAvailable": sum(one["replicas"] for one in tasks),
            "maxRetry": 3,
            "queue": "default",
            "schedulerName": "volcano",
            "tasks": list(tasks),
            **spec,
        }
        meta = {"name": "j", "namespace": "d", "uid": "uid-j", "generation": 1}
        self.api.put(JOBS, "j", metadata=meta, spec=whole)

    def command(self, action: str, name: str = "c") -> None:
        target = {"apiVersion": JOBS.api_version, "kind": "Job", "name": "j", "uid": "uid-j"}
        self.api.put(COMMANDS, name, action=action, target=target)

    def admit(self) -> None:
        self.api.put(PODGROUPS, "j-uid-j", status={"phase": "Inqueue"})

    def turn(self, phase: str, *names: str) -> None:
        for name in names or tuple(self.named(PODS)):
            self.api.put(PODS, name, status={"phase": phase})

    def named(self, resource: Resource) -> dict[str, Any]:
        return {key.partition("/")[2]: obj for key, obj in self.api.objects(resource).items()}

    @property
    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.named(JOBS)["j"].get("status", {})
        return status

    @property
    def phase(self) -> str:
        phase: str = self.status.get("state", {}).get("phase", "")
        return phase

    @property
    def state(self) -> dict[str, Any]:
        """What the status says of why the job is where it is."""
        state = self.status.get("state", {})
        return {key: state[key] for key in ("reason", "message") if key in state}

    def phases(self) -> list[str]:
        """The phases of the job, in order."""
        seen: list[str] = []
        for prefix, _, obj in self.api.states:
            phase = obj.get("status", {}).get("state", {}).get("phase")
            if prefix == JOBS.path() and phase and (not seen or seen[-1] != phase):
                seen.append(phase)
        return seen

    def made(self) -> Counter[tuple[str, str]]:
        """How often each pod was made, by name and version of the job."""
        return Counter(
            (
                obj["metadata"]["name"],
                obj["metadata"]["annotations"]["volcano.sh/job-version"],
            )
            for prefix, change, obj in self.api.states
            if prefix == PODS.path() and change == "ADDED"
        )

    async def until(self, phase: str) -> None:
        await until(lambda: self.phase == phase, f"{phase}, but {self.status}")

    async def until_pods(self, number: int) -> None:
        await until(lambda: len(self.named(PODS)) == number, f"{number} pods")

    async def start(self) -> None:
        """Let the job come to run."""
        await until(lambda: self.named(PODGROUPS), "a PodGroup")
        self.admit()
        await self.until_pods(2)
        self.turn("Running")
        await self.until("Running")


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with FakeApi() as api:
        yield Stage(api)


def writes_of(stage: Stage, method: str, part: str) -> int:
    return sum(seen.method == method and part in seen.path for seen in stage.api.seen)


async def test_a_job_that_runs_through_costs_few_writes(stage: Stage) -> None:
    async with stage.controller(clock=FakeClock()):  # so that all happens within `count_delay`
        stage.submit(task(replicas=20))
        await until(lambda: stage.named(PODGROUPS))
        stage.admit()
        await stage.until_pods(20)
        for name in stage.named(PODS):
            stage.turn("Running", name)
            await asyncio.sleep(0)
        await stage.until("Running")
        stage.turn("Succeeded")
        await stage.until("Completed")
        await until(lambda: not stage.named(PODGROUPS))
    assert stage.phases() == ["Pending", "Running", "Completed"]
    assert stage.status["succeeded"] == 20
    assert writes_of(stage, "PATCH", "/jobs/j/status") <= 5
    assert writes_of(stage, "POST", "/pods") == 20
    assert set(stage.made().values()) == {1}


@pytest.mark.parametrize("crowd", [False, True])
async def test_in_a_crowd_numbers_go_along_with_the_next_phase(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, crowd: bool
) -> None:
    monkeypatch.setattr(ChangeRate, "quiet_in", lambda _: 1000.0 if crowd else 0.0)
    settings = JobSettings(status_delay=0.0, max_status_delay=1000.0)
    async with stage.controller(settings=settings):
        stage.submit()
        await until(lambda: stage.named(PODGROUPS))
        stage.admit()
        await stage.until_pods(2)
        if crowd:
            await asyncio.sleep(0.1)  # a controller that does not wait would write them by now
            assert "pending" not in stage.status
        else:
            await until(lambda: stage.status.get("pending") == 2)
        stage.turn("Running")
        await stage.until("Running")
        await until(lambda: crowd or stage.status.get("running") == 2)
    writes = writes_of(stage, "PATCH", "/jobs/j/status")
    assert writes == 2 if crowd else writes >= 3


async def test_commands_are_obeyed_in_order_and_then_gone(stage: Stage) -> None:
    """INV-VC-2."""
    stage.submit()
    async with stage.controller():
        await stage.start()
        stage.command("AbortJob", "c1")
        await stage.until("Aborted")
        await until(lambda: not stage.named(COMMANDS))
        assert stage.named(PODS) == {}
        stage.command("ResumeJob", "c2")
        stage.command("DanceJob", "c3")
        await until(lambda: stage.named(PODGROUPS))
        stage.admit()
        await stage.until_pods(2)
        stage.turn("Running")
        await stage.until("Running")
        await until(lambda: not stage.named(COMMANDS))
    assert stage.phases() == [
        "Pending", "Running", "Aborting", "Aborted", "Restarting", "Pending", "Running",
    ]  # fmt: skip
    assert stage.status["version"] == 1
    assert "retryCount" not in stage.status
    issued = [event for event in stage.notes.events if event[3] == "CommandIssued"]
    assert len(issued) == 3


async def test_quirk_g4_plugins_objects_come_and_go_with_the_pods_and_keys_stay(
    stage: Stage,
) -> None:
    stage.submit(plugins={"svc": [], "ssh": ["--nonsense"], "env": []})
    async with stage.controller():
        await stage.start()
        assert stage.named(SERVICES).keys() == {"j"}
        keys = stage.named(SECRETS)["j-ssh"]["data"]
        spec = {"minAvailable": 2, "tasks": [task(replicas=3, minAvailable=2)]}
        stage.api.put(JOBS, "j", metadata={"generation": 2}, spec=spec)
        await stage.until_pods(3)
        assert "j-t-2.j" in stage.named(CONFIGMAPS)["j-svc"]["data"]["t.host"]
        scaled = stage.named(SECRETS)["j-ssh"]["data"]
        assert scaled["id_rsa"] == keys["id_rsa"]
        assert scaled["config"] != keys["config"]
        stage.turn("Succeeded")
        await stage.until("Completed")
        await until(lambda: not stage.named(SECRETS) and not stage.named(SERVICES))
        await until(lambda: "controlledResources" not in stage.status)
    assert [event[3:] for event in stage.notes.events if event[3] == "PluginError"]


async def test_keys_that_somebody_deletes_are_back_before_a_pod_is_made_again(
    stage: Stage,
) -> None:
    """Nobody tells us that they went: Secrets are not watched."""
    stage.submit(plugins={"ssh": []})
    async with stage.controller():
        await stage.start()
        stage.api.remove(SECRETS, "j-ssh")
        stage.api.remove(PODS, "j-t-0")
        await stage.until_pods(2)
        assert "j-ssh" in stage.named(SECRETS)


async def test_quirk_g6_what_plugins_brought_is_not_asked_for_again(stage: Stage) -> None:
    stage.submit(plugins={"svc": [], "ssh": []})
    async with stage.controller():
        await stage.start()
        before = sum("j-svc" in seen.path or "j-ssh" in seen.path for seen in stage.api.seen)
        stage.turn("Succeeded", "j-t-0")
        await until(lambda: stage.status.get("succeeded") == 1)
        after = sum("j-svc" in seen.path or "j-ssh" in seen.path for seen in stage.api.seen)
    assert after == before


async def test_quirk_8_pods_that_are_refused_are_told_in_the_server_s_own_words(
    stage: Stage,
) -> None:
    stage.submit()
    async with stage.controller():
        await until(lambda: stage.named(PODGROUPS))
        stage.api.fail(403, times=3, method="POST", path="/pods")
        stage.admit()
        await stage.until_pods(2)
    said = [event[3:] for event in stage.notes.events if event[3] == "FailedCreate"]
    assert said
    assert set(said) == {("FailedCreate", "as planned")}


async def test_quirk_14_a_claim_is_waited_for_however_long_it_takes(stage: Stage) -> None:
    stage.submit(volumes=[{"mountPath": "/data", "volumeClaimName": "late"}])
    async with stage.controller(settings=JobSettings(pvc_recheck_interval=0.001)):

        def asked() -> int:
            return sum("/persistentvolumeclaims/late" in seen.path for seen in stage.api.seen)

        await until(lambda: asked() > 20)
        assert stage.phase == "Pending"
        await until(lambda: stage.state.get("reason") == "PVCError")
        assert "PersistentVolumeClaim late is not there" in stage.state["message"]
        stage.api.put(PERSISTENTVOLUMECLAIMS, "late")
        await until(lambda: stage.named(PODGROUPS))
        await until(lambda: not stage.state)
    assert {event[3] for event in stage.notes.events} == {"PVCError"}


async def test_quirks_14_and_15_a_refused_podgroup_is_asked_for_until_it_is_taken(
    stage: Stage,
) -> None:
    """As after its queue is gone; however often that was, and as often again."""
    clock = FakeClock()
    stage.submit()
    async with stage.controller(clock=clock):
        for refusals in (20, 40):
            stage.api.fail(403, times=refusals, method="POST", path="/podgroups")
            while not stage.named(PODGROUPS):
                await clock.advance(100)
            assert stage.phase == "Pending"
            assert not stage.api._faults[-1].times
            stage.api.remove(PODGROUPS, "j-uid-j")
    assert stage.phases() == ["Pending"]


async def test_quirk_17_a_job_of_an_unknown_plugin_makes_nothing_and_can_be_ended(
    stage: Stage,
) -> None:
    stage.submit(plugins={"nosuch": [], "svc": []})
    async with stage.controller():
        await stage.until("Pending")
        stage.command("AbortJob", "c1")
        await stage.until("Aborted")
        stage.command("ResumeJob", "c2")
        await stage.until("Pending")
        stage.command("TerminateJob", "c3")
        await stage.until("Terminated")
        await until(lambda: not stage.named(COMMANDS))
    for resource in (PODS, PODGROUPS, SERVICES, CONFIGMAPS):
        assert stage.named(resource) == {}
    said = [event[4] for event in stage.notes.events if event[3] == "PluginError"]
    assert said
    assert all("'nosuch' is not installed" in text for text in said)


async def test_quirk_20_a_restart_that_cannot_be_written_is_counted_once(stage: Stage) -> None:
    stage.submit()
    async with stage.controller():
        await stage.start()
        stage.api.fail(500, times=3, method="PATCH", path="/jobs/j/status")
        stage.command("RestartJob")
        await until(lambda: "Restarting" in stage.phases())
        await until(lambda: not stage.named(COMMANDS))
    assert stage.phases()[:3] == ["Pending", "Running", "Restarting"]
    assert stage.status["version"] == 1


async def test_quirk_32_pods_belong_to_the_podgroup_that_is_looked_after(stage: Stage) -> None:
    """Older versions of Volcano named it after the job alone; that one is not taken for ours."""
    owner = {
        "apiVersion": JOBS.api_version, "kind": "Job", "name": "j", "uid": "uid-j",
        "controller": True,
    }  # fmt: skip
    legacy = {"ownerReferences": [owner]}
    stage.api.put(PODGROUPS, "j", metadata=legacy, status={"phase": "Running"})
    stage.submit()
    async with stage.controller():
        await until(lambda: "j-uid-j" in stage.named(PODGROUPS))
        assert stage.named(PODS) == {}
        await stage.start()
    notes = [pod["metadata"]["annotations"] for pod in stage.named(PODS).values()]
    assert {each["scheduling.k8s.io/group-name"] for each in notes} == {"j-uid-j"}


async def test_quirk_33_a_kill_is_one_call_a_pod_and_never_too_many_at_a_time(
    stage: Stage,
) -> None:
    stage.submit(task(replicas=30))
    settings = JobSettings(status_delay=0.05, max_writes_in_flight=7)
    async with stage.controller(settings=settings):
        await until(lambda: stage.named(PODGROUPS))
        stage.admit()
        await stage.until_pods(30)
        stage.api.fail("hang", times=30, method="DELETE", path="/pods/")
        stage.command("AbortJob")
        await until(lambda: writes_of(stage, "DELETE", "/pods/") == 7)
        assert stage.phase == "Aborting"
        assert len(stage.named(PODS)) == 30
        assert writes_of(stage, "DELETE", "/pods/") == 7
        stage.api._faults.clear()
        stage.api._hanging.set()
        await stage.until("Aborted")
    assert writes_of(stage, "DELETE", "/pods/") == 30 + 7
    assert writes_of(stage, "PATCH", "/pods/") == 0


async def test_an_object_of_somebody_elses_is_neither_changed_nor_removed(stage: Stage) -> None:
    """INV-OW-2."""
    stage.api.put(CONFIGMAPS, "j-svc", data={"mine": "1"})
    stage.submit(plugins={"svc": []})
    async with stage.controller():
        await until(lambda: any(event[3] == "PluginError" for event in stage.notes.events))
        assert stage.named(PODGROUPS) == {}
        told = "ConfigMap j-svc is there and does not belong to the job"
        await until(lambda: stage.state == {"reason": "PluginError", "message": told})
        stage.api.remove(CONFIGMAPS, "j-svc")
        await until(lambda: stage.named(PODGROUPS))
        await until(lambda: not stage.state)


async def test_quirk_26_a_pod_of_somebody_elses_under_the_name_holds_the_job_up_with_an_event(
    stage: Stage,
) -> None:
    stage.api.put(PODS, "j-t-1")
    stage.submit()
    async with stage.controller():
        await until(lambda: stage.named(PODGROUPS))
        stage.admit()
        await until(lambda: any(event[3] == "FailedCreate" for event in stage.notes.events))
        told = "Pod j-t-1 is there and does not belong to the job"
        await until(lambda: stage.state == {"reason": "FailedCreate", "message": told})
        stage.api.remove(PODS, "j-t-1")
        await stage.until_pods(2)


async def test_conflicts_errors_and_lost_connections_only_cost_time(stage: Stage) -> None:
    stage.submit(policies=[{"action": "RestartJob", "event": "PodFailed"}])
    async with stage.controller():
        for fault in (409, 500, "drop", 409, "drop"):
            stage.api.fail(fault, watch=False)
        await stage.start()
        for fault in ("drop", 409, 500):
            stage.api.fail(fault, watch=False)
        stage.turn("Failed", "j-t-0")
        await until(lambda: "Restarting" in stage.phases())
        await until(lambda: stage.phase == "Pending" and stage.named(PODGROUPS))
        await stage.start()
    assert stage.phases() == ["Pending", "Running", "Restarting", "Pending", "Running"]
    assert stage.made() == Counter(
        {(f"j-t-{index}", version): 1 for index in "01" for version in "01"}
    )
    assert (stage.status["version"], stage.status["retryCount"]) == (1, 1)


@pytest.mark.parametrize("kind", ["pods", "podgroups", "commands"])
async def test_a_delete_that_meets_a_conflict_is_tried_again(stage: Stage, kind: str) -> None:
    """A 409 does not prove that the object is gone."""
    stage.submit()
    async with stage.controller():
        await stage.start()
        stage.api.fail(409, method="DELETE", path=f"/{kind}/")
        stage.command("RestartJob")
        await until(lambda: not stage.named(COMMANDS))
        await until(lambda: stage.phase == "Pending" and stage.named(PODGROUPS))
        await stage.start()
    assert stage.phases() == ["Pending", "Running", "Restarting", "Pending", "Running"]
    assert set(stage.made().values()) == {1}


async def test_quirk_g7_an_object_that_is_lost_while_all_are_seen_to_comes_back(
    stage: Stage,
) -> None:
    stage.submit(plugins={"svc": [], "ssh": []})
    async with stage.controller():
        await stage.start()
        for number in range(20):
            stage.api.remove(SERVICES, "j")
            stage.api.discard(CONFIGMAPS, "j-svc")
            await until(lambda: stage.named(SERVICES).keys() == {"j"}, f"the Service {number}")
        await until(lambda: "j-svc" in stage.named(CONFIGMAPS))
        labels = stage.named(SERVICES)["j"]["metadata"]["labels"]
        assert labels == {"volcano.sh/job-name": "j"}
        stage.command("AbortJob")
        await stage.until("Aborted")
        await until(lambda: not stage.named(SERVICES))
        await until(lambda: not stage.named(COMMANDS))
    assert stage.named(SERVICES) == stage.named(CONFIGMAPS) == stage.named(SECRETS) == {}


async def test_objects_of_plugins_go_though_a_delete_meets_a_conflict(stage: Stage) -> None:
    stage.submit(plugins={"svc": []})
    async with stage.controller():
        await stage.start()
        assert stage.named(SERVICES)
        stage.api.fail(409, method="DELETE", path="/services/")
        stage.turn("Succeeded")
        await stage.until("Completed")
        await until(lambda: not stage.named(SERVICES))


async def test_quirk_25_a_job_made_again_under_its_name_is_another_job(stage: Stage) -> None:
    """INV-VC-4; INV-OW-2: what the old job's pods do is not done to the new one."""
    stage.submit(policies=[{"action": "AbortJob", "event": "*"}])
    async with stage.controller() as controller:
        await stage.start()
        old = stage.named(JOBS)["j"]["spec"]
        stage.api.remove(JOBS, "j")
        stage.api.put(JOBS, "j", metadata={"name": "j", "uid": "uid-2", "generation": 1}, spec=old)
        await until(lambda: "j-uid-2" in stage.named(PODGROUPS))
        stage.api.put(PODGROUPS, "j-uid-2", status={"phase": "Inqueue"})
        for name in ("j-t-0", "j-t-1"):
            stage.api.remove(PODS, name)
        await stage.until_pods(2)
        owners = {
            pod["metadata"]["ownerReferences"][0]["uid"] for pod in stage.named(PODS).values()
        }
        assert owners == {"uid-2"}
        assert stage.phase == "Pending"
        stage.api.remove(JOBS, "j")
        for name in ("j-t-0", "j-t-1"):
            stage.api.remove(PODS, name)
        stage.api.remove(PODGROUPS, "j-uid-2")
        stage.api.remove(PODGROUPS, "j-uid-j")
        await until(lambda: controller.statistics() == {"cases": 0, "queued": 0})


@asynccontextmanager
async def acting(act: Callable[[], None]) -> AsyncIterator[None]:
    """Let *act* look at the world again and again, as the scheduler and the kubelet do."""

    async def play() -> None:
        while True:
            act()
            await asyncio.sleep(0.002)

    task = asyncio.create_task(play())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def start_all(stage: Stage) -> None:
    """Admit every gang, run every pod."""
    if any("status" not in group for group in stage.named(PODGROUPS).values()):
        stage.admit()
    for name, pod in stage.named(PODS).items():
        if "status" not in pod:
            stage.turn("Running", name)


def fail_once(stage: Stage) -> None:
    """The first run fails, the second succeeds."""
    start_all(stage)
    pods = stage.named(PODS)
    if stage.phase == "Running" and len(pods) == 2:
        notes = [pod["metadata"]["annotations"] for pod in pods.values()]
        if all(note["volcano.sh/job-version"] == "0" for note in notes):
            stage.turn("Failed", "j-t-0")
        else:
            stage.turn("Succeeded")


@pytest.mark.parametrize("writes", range(1, 17))
async def test_a_controller_may_die_at_any_write(stage: Stage, writes: int) -> None:
    """INV-LC-4, and no pod is made twice for a version."""
    stage.submit(policies=[{"action": "RestartJob", "event": "PodFailed"}])
    mortal = Mortal(stage.api, writes=writes)
    async with acting(lambda: fail_once(stage)):
        async with stage.controller(mortal):
            await mortal.dead.wait()
        async with stage.controller():
            await stage.until("Completed")
            await until(lambda: not stage.named(PODGROUPS))
    assert stage.phases() == [
        "Pending", "Running", "Restarting", "Pending", "Running", "Completed",
    ]  # fmt: skip
    assert set(stage.made().values()) == {1}
    assert len(stage.made()) == 4
    assert (stage.status["version"], stage.status["retryCount"]) == (2, 1)
    assert stage.status["succeeded"] == 2


@pytest.mark.parametrize("writes", range(1, 8))
async def test_a_command_takes_effect_once_whenever_the_controller_dies(
    stage: Stage, writes: int
) -> None:
    """INV-VC-1."""
    stage.submit()
    async with stage.controller():
        await stage.start()
    stage.command("RestartJob")
    mortal = Mortal(stage.api, writes=writes)
    async with acting(lambda: start_all(stage)):
        async with stage.controller(mortal):
            await mortal.dead.wait()
        async with stage.controller():
            await until(lambda: not stage.named(COMMANDS))
            await until(lambda: stage.phases().count("Running") == 2)
    assert (stage.status["version"], stage.status["retryCount"]) == (1, 1)
