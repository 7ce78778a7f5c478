"""The job controller against the API server: its writes, and faults of the server."""

import asyncio
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.controller_api import NAMESPACE, ControllerApi
from support.job_stateful import FORGOTTEN
from support.jobs import task
from support.polling import wait_for
from support.running_controller import FakeRecorder, running

from batholith.job_ctrl.controller import JobController
from batholith.job_ctrl.decide import decide
from batholith.job_ctrl.effects import Effect
from batholith.job_ctrl.plugins.registry import Registry
from batholith.job_ctrl.settings import JobSettings
from batholith.job_ctrl.status.job_view import JobView
from batholith.kube.client.client import Client
from batholith.kube.errors import ConnectionLostError
from batholith.machinery.change_rate import ChangeRate
from batholith.machinery.clock import Clock
from batholith.machinery.testing import FakeClock
from batholith.model.command import Command
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
from batholith.model.pod import PodPhase
from batholith.testing import RecordedRequest, RequestMatcher
from batholith.testing.faults import MESSAGE
from batholith.testing.objects import phase_of

SETTINGS = JobSettings(status_delay=0.05)
PLUGINS = Registry.load()


class DyingClient(Client):
    """A client whose process is killed after its last write, before it receives the response."""

    def __init__(self, api: ControllerApi, *, writes: int) -> None:
        super().__init__(api.credentials, user_agent="test")
        self.writes_left = writes
        self.killed = asyncio.Event()

    async def _send(self, method: str, path: str, *rest: Any) -> bytes:
        if self.killed.is_set():
            raise ConnectionLostError("dead")
        response = await super()._send(method, path, *rest)
        if method != "GET":
            self.writes_left -= 1
            if self.writes_left <= 0:
                self.killed.set()
                raise ConnectionLostError("dead")
        return response


class ControllerHarness:
    """The server, and the actions of user, scheduler and kubelet."""

    def __init__(self, api: ControllerApi) -> None:
        self.api = api
        self.wait_until = api.wait_until
        self.recorder = FakeRecorder()

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
            created = JobController(
                client, settings=settings, recorder=self.recorder, clock=clock, plugins=PLUGINS
            )
            async with running(created):
                yield created

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

    def report_pods(self, phase: str, *names: str) -> None:
        for name in names or tuple(self.objects_by_name(PODS)):
            self.api.put(PODS, name, status={"phase": phase})

    def objects_by_name(self, resource: Resource) -> dict[str, Any]:
        """The objects of namespace d."""
        stored = self.api.objects(resource).values()
        own = [obj for obj in stored if obj["metadata"]["namespace"] == NAMESPACE]
        return {obj["metadata"]["name"]: obj for obj in own}

    @property
    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.objects_by_name(JOBS)["j"].get("status", {})
        return status

    @property
    def phase(self) -> str:
        phase: str = self.status.get("state", {}).get("phase", "")
        return phase

    @property
    def state(self) -> dict[str, Any]:
        """Phase, reason and message of the job."""
        state = self.status.get("state", {})
        return {key: state[key] for key in ("reason", "message") if key in state}

    def phases(self) -> list[str]:
        """The phases of the job, in order."""
        seen: list[str] = []
        for phase in map(phase_of, self.changes_of(JOBS)):
            if phase and (not seen or seen[-1] != phase):
                seen.append(phase)
        return seen

    def pod_creations(self) -> Counter[tuple[str, str]]:
        """Number of creations of each pod, by name and version of the job."""
        created = [pod["metadata"] for pod in self.changes_of(PODS, "ADDED")]
        return Counter(
            (pod["name"], pod["annotations"]["volcano.sh/job-version"]) for pod in created
        )

    def changes_of(self, resource: Resource, *types: str) -> Iterator[dict[str, Any]]:
        """The object after each change, or after those of *types*."""
        for change in self.api.changes:
            if change.resource == resource and (not types or change.type in types):
                yield change.object

    def disturb(self, status: int | None) -> None:
        """Refuse the next request that is no watch, or lose it if there is no *status*."""
        if status is None:
            self.api.faults.lose_request(RequestMatcher(where=is_no_watch))
        else:
            self.api.fail(status)

    async def wait_phase(self, phase: str) -> None:
        await self.wait_until(lambda: self.phase == phase)

    async def wait_pods(self, number: int) -> None:
        await self.wait_until(lambda: len(self.objects_by_name(PODS)) == number)

    async def run_job(self) -> None:
        """Run the job."""
        await self.wait_until(lambda: self.objects_by_name(PODGROUPS))
        self.admit()
        await self.wait_pods(2)
        self.report_pods("Running")
        await self.wait_phase("Running")


def is_no_watch(request: RecordedRequest) -> bool:
    return request.verb != "watch"


def is_of_plugins(request: RecordedRequest) -> bool:
    return "j-svc" in request.path or "j-ssh" in request.path


@pytest.fixture
async def harness() -> AsyncIterator[ControllerHarness]:
    async with ControllerApi(JOBS, PODGROUPS, COMMANDS) as api:
        yield ControllerHarness(api)


async def test_a_job_that_runs_through_costs_few_writes(harness: ControllerHarness) -> None:
    async with harness.controller(clock=FakeClock()):  # so that all happens within `count_delay`
        harness.submit(task(replicas=20))
        await harness.wait_until(lambda: harness.objects_by_name(PODGROUPS))
        harness.admit()
        await harness.wait_pods(20)
        for name in harness.objects_by_name(PODS):
            harness.report_pods("Running", name)
            await asyncio.sleep(0)
        await harness.wait_phase("Running")
        harness.report_pods("Succeeded")
        await harness.wait_phase("Completed")
        await harness.wait_until(lambda: not harness.objects_by_name(PODGROUPS))
    assert harness.phases() == ["Pending", "Running", "Completed"]
    assert harness.status["succeeded"] == 20
    assert harness.api.count("PATCH", path="/jobs/j/status") <= 5
    assert harness.api.count("POST", path="/pods") == 20
    assert set(harness.pod_creations().values()) == {1}


@pytest.mark.parametrize("busy", [False, True])
async def test_in_a_burst_status_is_written_with_the_next_phase(
    harness: ControllerHarness, monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    monkeypatch.setattr(ChangeRate, "quiet_in", lambda _: 1000.0 if busy else 0.0)
    settings = JobSettings(status_delay=0.0, max_status_delay=1000.0, burst_size=0 if busy else 1)
    async with harness.controller(settings=settings):
        harness.submit()
        await harness.wait_until(lambda: harness.objects_by_name(PODGROUPS))
        harness.admit()
        await harness.wait_pods(2)
        if busy:
            await asyncio.sleep(0.1)  # a controller that does not wait would write it by now
            assert harness.status == {}
        else:
            await harness.wait_until(lambda: harness.status.get("pending") == 2)
        harness.report_pods("Running")
        await harness.wait_phase("Running")
        await harness.wait_until(lambda: busy or harness.status.get("running") == 2)
    writes = harness.api.count("PATCH", path="/jobs/j/status")
    assert writes == 1 if busy else writes >= 3
    assert [one["status"] for one in harness.status["conditions"]] == ["Pending", "Running"]


async def test_in_a_burst_a_job_that_does_not_run_becomes_pending(
    harness: ControllerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ChangeRate, "quiet_in", lambda _: 1000.0)
    settings = JobSettings(status_delay=0.0, max_status_delay=0.1, burst_size=0)
    async with harness.controller(settings=settings):
        harness.submit()
        await harness.wait_until(lambda: harness.objects_by_name(PODGROUPS))
        assert harness.status == {}
        await harness.wait_phase("Pending")


async def test_in_a_burst_a_job_becomes_pending_despite_errors(harness: ControllerHarness) -> None:
    harness.api.fail(500, "POST", "/podgroups", count=1000)
    settings = JobSettings(status_delay=0.0, max_status_delay=0.1, burst_size=0)
    async with harness.controller(settings=settings):
        harness.submit()
        await harness.wait_phase("Pending")
        assert not harness.objects_by_name(PODGROUPS)


async def test_what_is_observed_before_the_response_to_its_creation_counts(
    harness: ControllerHarness,
) -> None:
    """Nothing reports it again: the admission of the PodGroup, and that the pods run."""
    held = harness.api.faults.hold_response(RequestMatcher("create", PODGROUPS))
    harness.submit(task("t", 2))
    async with harness.controller():
        await harness.wait_until(lambda: "j-uid-j" in harness.objects_by_name(PODGROUPS))
        harness.admit()
        held.release()
        held = harness.api.faults.hold_response(RequestMatcher("create", PODS, count=None))
        await harness.wait_until(lambda: harness.objects_by_name(PODS))
        harness.report_pods("Running")
        held.release()
        await harness.wait_pods(2)
        harness.report_pods("Running")
        await harness.wait_phase("Running")


async def test_no_decision_only_confirms_that_objects_were_created(
    harness: ControllerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until a pod runs, there is one for the phase, one for the PodGroup and one for the pods."""
    decided: list[tuple[str, str | None]] = []

    def recorded(view: JobView, command: Command | None) -> list[Effect]:
        if not view.pod_counts.in_phase(PodPhase.RUNNING):
            admitted = view.podgroup.status.phase if view.podgroup is not None else None
            decided.append((view.job.status.state.phase, admitted))
        return decide(view, command)

    monkeypatch.setattr("batholith.job_ctrl.controller.decide", recorded)
    harness.submit(task("t", 2))
    async with harness.controller(clock=FakeClock()):
        await harness.wait_until(lambda: harness.objects_by_name(PODGROUPS))
        harness.admit()
        await harness.wait_pods(2)
        harness.report_pods("Running")
        await harness.wait_phase("Running")
    assert decided == [("", None), ("Pending", None), ("Pending", "Inqueue")]


@pytest.mark.parametrize("spec", [{"plugins": {"svc": []}}, {"volumes": [{"mountPath": "/v"}]}])
async def test_in_a_burst_objects_of_plugins_and_volumes_are_marked_before_their_creation(
    harness: ControllerHarness, monkeypatch: pytest.MonkeyPatch, spec: dict[str, Any]
) -> None:
    monkeypatch.setattr(ChangeRate, "quiet_in", lambda _: 1000.0)
    async with harness.controller(settings=JobSettings(max_status_delay=1000.0, burst_size=0)):
        harness.submit(**spec)
        await harness.wait_phase("Pending")


async def test_commands_are_executed_in_order_and_then_deleted(harness: ControllerHarness) -> None:
    """INV-VC-2."""
    harness.submit()
    async with harness.controller():
        await harness.run_job()
        harness.command("AbortJob", "c1")
        await harness.wait_phase("Aborted")
        await harness.wait_until(lambda: not harness.objects_by_name(COMMANDS))
        assert harness.objects_by_name(PODS) == {}
        harness.command("ResumeJob", "c2")
        harness.command("DanceJob", "c3")
        await harness.wait_until(lambda: harness.objects_by_name(PODGROUPS))
        harness.admit()
        await harness.wait_pods(2)
        harness.report_pods("Running")
        await harness.wait_phase("Running")
        await harness.wait_until(lambda: not harness.objects_by_name(COMMANDS))
    assert harness.phases() == [
        "Pending", "Running", "Aborting", "Aborted", "Restarting", "Pending", "Running",
    ]  # fmt: skip
    assert harness.status["version"] == 1
    assert "retryCount" not in harness.status
    issued = [event for event in harness.recorder.events if event[3] == "CommandIssued"]
    assert len(issued) == 3


async def test_quirk_g4_plugin_objects_are_deleted_with_the_pods_and_keys_are_kept(
    harness: ControllerHarness,
) -> None:
    harness.submit(plugins={"svc": [], "ssh": ["--nonsense"], "env": []})
    async with harness.controller():
        await harness.run_job()
        assert harness.objects_by_name(SERVICES).keys() == {"j"}
        keys = harness.objects_by_name(SECRETS)["j-ssh"]["data"]
        spec = {"minAvailable": 2, "tasks": [task(replicas=3, minAvailable=2)]}
        harness.api.put(JOBS, "j", metadata={"generation": 2}, spec=spec)
        await harness.wait_pods(3)
        assert "j-t-2.j" in harness.objects_by_name(CONFIGMAPS)["j-svc"]["data"]["t.host"]
        scaled = harness.objects_by_name(SECRETS)["j-ssh"]["data"]
        assert scaled["id_rsa"] == keys["id_rsa"]
        assert scaled["config"] != keys["config"]
        harness.report_pods("Succeeded")
        await harness.wait_phase("Completed")
        await harness.wait_until(
            lambda: not harness.objects_by_name(SECRETS) and not harness.objects_by_name(SERVICES)
        )
        await harness.wait_until(lambda: "controlledResources" not in harness.status)
    assert [event[3:] for event in harness.recorder.events if event[3] == "PluginError"]


async def test_deleted_ssh_secret_is_created_again_before_the_next_pod(
    harness: ControllerHarness,
) -> None:
    """No event reports their deletion: Secrets are not watched."""
    harness.submit(plugins={"ssh": []})
    async with harness.controller():
        await harness.run_job()
        harness.api.remove(SECRETS, "j-ssh")
        harness.api.remove(PODS, "j-t-0")
        await harness.wait_pods(2)
        assert "j-ssh" in harness.objects_by_name(SECRETS)


async def test_quirk_g6_synced_plugin_objects_are_not_requested_again(
    harness: ControllerHarness,
) -> None:
    harness.submit(plugins={"svc": [], "ssh": []})
    async with harness.controller():
        await harness.run_job()
        before = harness.api.count(where=is_of_plugins)
        harness.report_pods("Succeeded", "j-t-0")
        await harness.wait_until(lambda: harness.status.get("succeeded") == 1)
    assert harness.api.count(where=is_of_plugins) == before


async def test_quirk_8_rejected_pods_cause_events_with_the_server_s_message(
    harness: ControllerHarness,
) -> None:
    harness.submit()
    async with harness.controller():
        await harness.wait_until(lambda: harness.objects_by_name(PODGROUPS))
        harness.api.fail(403, "POST", "/pods", count=3)
        harness.admit()
        await harness.wait_pods(2)
    message = [event[3:] for event in harness.recorder.events if event[3] == "FailedCreate"]
    assert message
    assert set(message) == {("FailedCreate", MESSAGE)}


async def test_quirk_14_job_waits_for_a_missing_pvc_without_limit(
    harness: ControllerHarness,
) -> None:
    harness.submit(volumes=[{"mountPath": "/data", "volumeClaimName": "data"}])
    async with harness.controller(settings=JobSettings(pvc_recheck_interval=0.001)):

        def asked() -> int:
            return harness.api.count("get", PERSISTENTVOLUMECLAIMS, name="data")

        await harness.wait_until(lambda: asked() > 20)
        assert harness.phase == "Pending"
        await harness.wait_until(lambda: harness.state.get("reason") == "PVCError")
        assert 'PersistentVolumeClaim "data" not found' in harness.state["message"]
        harness.api.put(PERSISTENTVOLUMECLAIMS, "data")
        await harness.wait_until(lambda: harness.objects_by_name(PODGROUPS))
        await harness.wait_until(lambda: not harness.state)
    assert {event[3] for event in harness.recorder.events} == {"PVCError"}


async def test_quirks_14_and_15_rejected_podgroup_is_retried_until_it_is_created(
    harness: ControllerHarness,
) -> None:
    """As after the deletion of its queue; after any number of rejections."""
    clock = FakeClock()
    harness.submit()
    async with harness.controller(clock=clock):
        for refusals in (20, 40):
            fault = harness.api.fail(403, "POST", "/podgroups", count=refusals)
            while not harness.objects_by_name(PODGROUPS):
                await clock.advance(100)
            assert harness.phase == "Pending"
            assert not fault.pending
            harness.api.remove(PODGROUPS, "j-uid-j")
    assert harness.phases() == ["Pending"]


async def test_quirk_17_a_job_of_an_unknown_plugin_makes_nothing_and_can_be_ended(
    harness: ControllerHarness,
) -> None:
    harness.submit(plugins={"nosuch": [], "svc": []})
    async with harness.controller():
        await harness.wait_phase("Pending")
        harness.command("AbortJob", "c1")
        await harness.wait_phase("Aborted")
        harness.command("ResumeJob", "c2")
        await harness.wait_phase("Pending")
        harness.command("TerminateJob", "c3")
        await harness.wait_phase("Terminated")
        await harness.wait_until(lambda: not harness.objects_by_name(COMMANDS))
    for resource in (PODS, PODGROUPS, SERVICES, CONFIGMAPS):
        assert harness.api.count("create", resource) == 0
    message = [event[4] for event in harness.recorder.events if event[3] == "PluginError"]
    assert message
    assert all("'nosuch' is not installed" in text for text in message)


async def test_quirk_20_a_restart_that_cannot_be_written_is_counted_once(
    harness: ControllerHarness,
) -> None:
    harness.submit()
    async with harness.controller():
        await harness.run_job()
        harness.api.fail(500, "PATCH", "/jobs/j/status", count=3)
        harness.command("RestartJob")
        await harness.wait_until(lambda: "Restarting" in harness.phases())
        await harness.wait_until(lambda: not harness.objects_by_name(COMMANDS))
    assert harness.phases()[:3] == ["Pending", "Running", "Restarting"]
    assert harness.status["version"] == 1


async def test_quirk_32_pods_are_members_of_the_synced_podgroup(
    harness: ControllerHarness,
) -> None:
    """Older versions of Volcano named it after the job alone; that one is not taken for ours."""
    owner = {
        "apiVersion": JOBS.api_version, "kind": "Job", "name": "j", "uid": "uid-j",
        "controller": True,
    }  # fmt: skip
    legacy = {"ownerReferences": [owner]}
    harness.api.put(PODGROUPS, "j", metadata=legacy, status={"phase": "Running"})
    harness.submit()
    async with harness.controller():
        await harness.wait_until(lambda: "j-uid-j" in harness.objects_by_name(PODGROUPS))
        assert harness.objects_by_name(PODS) == {}
        await harness.run_job()
    notes = [pod["metadata"]["annotations"] for pod in harness.objects_by_name(PODS).values()]
    assert {each["scheduling.k8s.io/group-name"] for each in notes} == {"j-uid-j"}


async def test_quirk_33_a_kill_is_one_call_a_pod_and_never_too_many_at_a_time(
    harness: ControllerHarness,
) -> None:
    harness.submit(task(replicas=30))
    settings = JobSettings(status_delay=0.05, max_writes_in_flight=7)
    async with harness.controller(settings=settings):
        await harness.wait_until(lambda: harness.objects_by_name(PODGROUPS))
        harness.admit()
        await harness.wait_pods(30)
        held = harness.api.faults.hold(RequestMatcher("delete", PODS, count=None))
        harness.command("AbortJob")
        await harness.wait_until(lambda: harness.api.count("DELETE", path="/pods/") == 7)
        assert harness.phase == "Aborting"
        assert len(harness.objects_by_name(PODS)) == 30
        assert harness.api.count("DELETE", path="/pods/") == 7
        held.lose()
        await harness.wait_phase("Aborted")
    assert harness.api.count("DELETE", path="/pods/") == 30 + 7
    assert harness.api.count("PATCH", path="/pods/") == 0


async def test_object_of_another_owner_is_neither_changed_nor_deleted(
    harness: ControllerHarness,
) -> None:
    """INV-OW-2."""
    harness.api.put(CONFIGMAPS, "j-svc", data={"mine": "1"})
    harness.submit(plugins={"svc": []})
    async with harness.controller():
        await wait_for(lambda: any(event[3] == "PluginError" for event in harness.recorder.events))
        assert harness.objects_by_name(PODGROUPS) == {}
        message = 'ConfigMap "j-svc" already exists and is not controlled by this job'
        await harness.wait_until(
            lambda: harness.state == {"reason": "PluginError", "message": message}
        )
        harness.api.remove(CONFIGMAPS, "j-svc")
        await harness.wait_until(lambda: harness.objects_by_name(PODGROUPS))
        await harness.wait_until(lambda: not harness.state)


async def test_quirk_26_foreign_pod_of_the_same_name_blocks_the_job_with_an_event(
    harness: ControllerHarness,
) -> None:
    harness.api.put(PODS, "j-t-1")
    harness.submit()
    async with harness.controller():
        await harness.wait_until(lambda: harness.objects_by_name(PODGROUPS))
        harness.admit()
        await wait_for(lambda: any(event[3] == "FailedCreate" for event in harness.recorder.events))
        message = 'pod "j-t-1" already exists and is not controlled by this job'
        await harness.wait_until(
            lambda: harness.state == {"reason": "FailedCreate", "message": message}
        )
        harness.api.remove(PODS, "j-t-1")
        await harness.wait_pods(2)


async def test_conflicts_errors_and_lost_connections_only_delay(
    harness: ControllerHarness,
) -> None:
    harness.submit(policies=[{"action": "RestartJob", "event": "PodFailed"}])
    async with harness.controller():
        for status in (409, 500, None, 409, None):
            harness.disturb(status)
        await harness.run_job()
        for status in (None, 409, 500):
            harness.disturb(status)
        harness.report_pods("Failed", "j-t-0")
        await harness.wait_until(lambda: "Restarting" in harness.phases())
        await harness.wait_until(
            lambda: harness.phase == "Pending" and harness.objects_by_name(PODGROUPS)
        )
        await harness.run_job()
    assert harness.phases() == ["Pending", "Running", "Restarting", "Pending", "Running"]
    assert harness.pod_creations() == Counter(
        {(f"j-t-{index}", version): 1 for index in "01" for version in "01"}
    )
    assert (harness.status["version"], harness.status["retryCount"]) == (1, 1)


@pytest.mark.parametrize("kind", ["pods", "podgroups", "commands"])
async def test_a_delete_that_meets_a_conflict_is_tried_again(
    harness: ControllerHarness, kind: str
) -> None:
    """A 409 does not prove that the object is deleted."""
    harness.submit()
    async with harness.controller():
        await harness.run_job()
        harness.api.fail(409, "DELETE", f"/{kind}/")
        harness.command("RestartJob")
        await harness.wait_until(lambda: not harness.objects_by_name(COMMANDS))
        await harness.wait_until(
            lambda: harness.phase == "Pending" and harness.objects_by_name(PODGROUPS)
        )
        await harness.run_job()
    assert harness.phases() == ["Pending", "Running", "Restarting", "Pending", "Running"]
    assert set(harness.pod_creations().values()) == {1}


async def test_quirk_g7_object_deleted_during_the_sync_is_created_again(
    harness: ControllerHarness,
) -> None:
    harness.submit(plugins={"svc": [], "ssh": []})
    async with harness.controller():
        await harness.run_job()
        for _ in range(20):
            harness.api.remove(SERVICES, "j")
            harness.api.remove(CONFIGMAPS, "j-svc")
            await harness.wait_until(lambda: harness.objects_by_name(SERVICES).keys() == {"j"})
        await harness.wait_until(lambda: "j-svc" in harness.objects_by_name(CONFIGMAPS))
        labels = harness.objects_by_name(SERVICES)["j"]["metadata"]["labels"]
        assert labels == {"volcano.sh/job-name": "j"}
        harness.command("AbortJob")
        await harness.wait_phase("Aborted")
        await harness.wait_until(lambda: not harness.objects_by_name(SERVICES))
        await harness.wait_until(lambda: not harness.objects_by_name(COMMANDS))
    assert "j-svc" not in harness.objects_by_name(CONFIGMAPS)
    assert not harness.objects_by_name(SERVICES)
    assert not harness.objects_by_name(SECRETS)


async def test_objects_of_plugins_go_though_a_delete_meets_a_conflict(
    harness: ControllerHarness,
) -> None:
    harness.submit(plugins={"svc": []})
    async with harness.controller():
        await harness.run_job()
        assert harness.objects_by_name(SERVICES)
        harness.api.fail(409, "DELETE", "/services/")
        harness.report_pods("Succeeded")
        await harness.wait_phase("Completed")
        await harness.wait_until(lambda: not harness.objects_by_name(SERVICES))


async def test_quirk_25_recreated_job_of_the_same_name_is_another_job(
    harness: ControllerHarness,
) -> None:
    """INV-VC-4; INV-OW-2: what the old job's pods do is not done to the new one."""
    harness.submit(policies=[{"action": "AbortJob", "event": "*"}])
    async with harness.controller() as controller:
        await harness.run_job()
        old = harness.objects_by_name(JOBS)["j"]["spec"]
        harness.api.remove(JOBS, "j")
        harness.api.put(
            JOBS, "j", metadata={"name": "j", "uid": "uid-2", "generation": 1}, spec=old
        )
        await harness.wait_until(lambda: "j-uid-2" in harness.objects_by_name(PODGROUPS))
        harness.api.put(PODGROUPS, "j-uid-2", status={"phase": "Inqueue"})
        for name in ("j-t-0", "j-t-1"):
            harness.api.remove(PODS, name)
        await harness.wait_pods(2)
        owners = {
            pod["metadata"]["ownerReferences"][0]["uid"]
            for pod in harness.objects_by_name(PODS).values()
        }
        assert owners == {"uid-2"}
        assert harness.phase == "Pending"
        harness.api.remove(JOBS, "j")
        for name in ("j-t-0", "j-t-1"):
            harness.api.remove(PODS, name)
        harness.api.remove(PODGROUPS, "j-uid-2")
        harness.api.remove(PODGROUPS, "j-uid-j")
        await wait_for(lambda: controller.statistics() == FORGOTTEN)


@asynccontextmanager
async def acting_in_background(api: ControllerApi, act: Callable[[], None]) -> AsyncIterator[None]:
    """Call *act* after each change, as scheduler and kubelet would."""

    async def loop() -> None:
        while True:
            seen = len(api.changes)
            act()
            await api.wait_until(lambda: len(api.changes) > seen)  # noqa: B023 - at this point

    task = asyncio.create_task(loop())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def start_all(harness: ControllerHarness) -> None:
    """Admit every gang, run every pod."""
    if any(not phase_of(group) for group in harness.objects_by_name(PODGROUPS).values()):
        harness.admit()
    for name, pod in harness.objects_by_name(PODS).items():
        if phase_of(pod) == "Pending":
            harness.report_pods("Running", name)


def fail_once(harness: ControllerHarness) -> None:
    """The first run fails, the second succeeds."""
    start_all(harness)
    pods = harness.objects_by_name(PODS)
    if harness.phase == "Running" and len(pods) == 2:
        notes = [pod["metadata"]["annotations"] for pod in pods.values()]
        if all(note["volcano.sh/job-version"] == "0" for note in notes):
            harness.report_pods("Failed", "j-t-0")
        else:
            harness.report_pods("Succeeded")


@pytest.mark.parametrize("writes", range(1, 17))
async def test_a_controller_may_die_at_any_write(harness: ControllerHarness, writes: int) -> None:
    """INV-LC-4, and no pod has two creations for one version."""
    harness.submit(policies=[{"action": "RestartJob", "event": "PodFailed"}])
    mortal = DyingClient(harness.api, writes=writes)
    async with acting_in_background(harness.api, lambda: fail_once(harness)):
        async with harness.controller(mortal):
            await mortal.killed.wait()
        async with harness.controller():
            await harness.wait_phase("Completed")
            await harness.wait_until(lambda: not harness.objects_by_name(PODGROUPS))
    assert harness.phases() == [
        "Pending", "Running", "Restarting", "Pending", "Running", "Completed",
    ]  # fmt: skip
    assert set(harness.pod_creations().values()) == {1}
    assert len(harness.pod_creations()) == 4
    assert (harness.status["version"], harness.status["retryCount"]) == (2, 1)
    assert harness.status["succeeded"] == 2


@pytest.mark.parametrize("writes", range(1, 8))
async def test_command_takes_effect_once_if_the_controller_stops_at_any_write(
    harness: ControllerHarness, writes: int
) -> None:
    """INV-VC-1."""
    harness.submit()
    async with harness.controller():
        await harness.run_job()
    harness.command("RestartJob")
    mortal = DyingClient(harness.api, writes=writes)
    async with acting_in_background(harness.api, lambda: start_all(harness)):
        async with harness.controller(mortal):
            await mortal.killed.wait()
        async with harness.controller():
            await harness.wait_until(lambda: not harness.objects_by_name(COMMANDS))
            await harness.wait_until(lambda: harness.phases().count("Running") == 2)
    assert (harness.status["version"], harness.status["retryCount"]) == (1, 1)


async def test_a_stored_job_with_too_many_pods_fails_before_they_are_listed(
    harness: ControllerHarness,
) -> None:
    """Jobs that were stored without admission; their sum counts."""
    tasks = (task("a", 10**9), task("b", 2**31 - 1))
    harness.submit(*tasks, minAvailable=1, plugins={"svc": [], "ssh": []})
    tracemalloc.start()
    try:
        async with harness.controller():
            await harness.wait_phase("Failed")
            await harness.wait_until(lambda: "controlledResources" not in harness.status)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 32 * 2**20
    assert harness.state["reason"] == "TooManyPods"
    assert "3147483647 pods" in harness.state["message"]
    assert "at most 100000" in harness.state["message"]
    assert harness.api.count("POST") == 0
    assert "TooManyPods" in [reason for _, _, _, reason, _ in harness.recorder.events]


async def test_a_job_that_is_scaled_beyond_the_limit_fails_and_its_pods_are_deleted(
    harness: ControllerHarness,
) -> None:
    settings = JobSettings(max_pods_per_job=3, status_delay=0.05)
    async with harness.controller(settings=settings):
        harness.submit()
        await harness.run_job()
        spec = harness.objects_by_name(JOBS)["j"]["spec"]
        larger = [{**spec["tasks"][0], "replicas": 4}]
        harness.api.put(JOBS, "j", metadata={"generation": 2}, spec={**spec, "tasks": larger})
        await harness.wait_phase("Failed")
        await harness.wait_pods(0)
    assert harness.state["reason"] == "TooManyPods"


@pytest.mark.parametrize(
    ("pod", "cause"),
    [
        ({"reason": "OOMKilled", "exitCode": 137}, "OOMKilled (exit code 137)"),
        (
            {"reason": "StartError", "exitCode": 128, "message": 'exec: "pyhton3": No such file'},
            'StartError: exec: "pyhton3": No such file',
        ),
    ],
)
async def test_the_message_of_a_failed_job_says_why_its_pod_failed(
    harness: ControllerHarness, pod: dict[str, Any], cause: str
) -> None:
    state = {"terminated": {"startedAt": None, "finishedAt": "2026-01-01T00:00:00Z", **pod}}
    failed = {"phase": "Failed", "containerStatuses": [{"name": "main", "state": state}]}
    async with harness.controller():
        harness.submit(policies=[{"event": "PodFailed", "action": "RestartJob"}], maxRetry=1)
        await harness.run_job()
        harness.api.put(PODS, "j-t-0", status=failed)
        await harness.wait_phase("Failed")
    assert harness.state["reason"] == "MaxRetryReached"
    assert f"PodFailed of j-t-0: {cause}; retries used up" in harness.state["message"]


async def test_a_job_whose_pod_exceeded_its_deadline_names_the_field(
    harness: ControllerHarness,
) -> None:
    state = {"terminated": {"exitCode": 143, "reason": "Error"}}
    failed = {
        "phase": "Failed",
        "reason": "DeadlineExceeded",
        "message": "Pod was active on the node longer than the specified deadline",
        "containerStatuses": [{"name": "main", "state": state}],
    }
    async with harness.controller():
        harness.submit(task(replicas=1))
        await harness.wait_until(lambda: harness.objects_by_name(PODGROUPS))
        harness.admit()
        await harness.wait_pods(1)
        harness.report_pods("Running")
        await harness.wait_phase("Running")
        harness.api.put(PODS, "j-t-0", status=failed)
        await harness.wait_phase("Failed")
    assert harness.state["message"] == (
        "1 of 1 pods failed: j-t-0: DeadlineExceeded: it ran longer than its activeDeadlineSeconds"
    )
