"""A world of one job for pure decisions: it does at once what a decision asks for."""

import dataclasses
from collections import Counter

import msgspec
from support.jobs import NOW, job_view, make_command, pod_info
from support.pure_decide import pure_decide

from batholith.job_ctrl import effects as fx
from batholith.job_ctrl import podgroups
from batholith.job_ctrl.decide import decide
from batholith.job_ctrl.status.job_view import JobView
from batholith.job_ctrl.status.recovery import restore
from batholith.job_ctrl.tracker.pod_info import PodInfo
from batholith.job_ctrl.tracker.pod_tracker import PodTracker
from batholith.machinery.reconcile.controller import RequeueAfter
from batholith.machinery.reconcile.events import Event
from batholith.model.command import Command
from batholith.model.job import Job, JobStatus
from batholith.model.job_podgroup import partition_of
from batholith.model.pod import PodPhase
from batholith.model.podgroup import PodGroup, PodGroupSpec, PodGroupStatus


class JobSimulator:
    """The API server, the scheduler and the kubelet of one job, all in memory."""

    def __init__(self, job: Job) -> None:
        self.job: Job | None = job
        self.pods: dict[str, PodInfo] = {}
        self.podgroup: PodGroup | None = None
        self.phases: list[str] = []
        self.events: list[str] = []
        self.created: Counter[tuple[str, int]] = Counter()
        self.has_plugin_objects = False
        self.now = NOW
        self.monotonic_now = 0.0
        self.requeue_after: list[float] = []
        self.extra_grace: list[int] = []
        self._serial = 0
        self.commands: list[Command] = []
        self.crash()

    @property
    def status(self) -> JobStatus:
        """Status of the job, which must exist."""
        assert self.job is not None
        return self.job.status

    def run_all_pods(self) -> None:
        """All pods of the admitted job run, and so does the job."""
        self.run_until_stable()
        for name in list(self.pods):
            self.report_pod(name.removeprefix("j-"), PodPhase.RUNNING)
        self.run_until_stable()
        assert self.status.state.phase == "Running"

    def crash(self) -> None:
        """The controller is killed and restarted: only the server's state is left."""
        self.pod_tracker = PodTracker()
        for pod in self.pods.values():
            self.pod_tracker.update(pod)
        self._first_sync = self._plugin_objects_stale = True

    # What others do; with *settle* the controller then runs until it is stable.

    def send_command(self, action: str, *, settle: bool = True, **target: str) -> None:
        """The user sends a Command, with a *target* in its annotations."""
        self._serial += 1
        self.commands.append(make_command(action, f"c{self._serial}", **target))
        self._settle(settle)

    def suspend(self, value: bool = True, *, settle: bool = True) -> None:
        """The user sets or clears ``spec.suspend``."""
        assert self.job is not None
        spec = msgspec.structs.replace(self.job.spec, suspend=value)
        self.job = msgspec.structs.replace(self.job, spec=spec)
        self._settle(settle)

    def admit(self, phase: str = "Inqueue", *, settle: bool = True) -> None:
        """The scheduler puts the PodGroup in *phase*."""
        assert self.podgroup is not None
        self.podgroup = msgspec.structs.replace(self.podgroup, status=PodGroupStatus(phase=phase))
        self._settle(settle)

    def report_pod(
        self, name: str, phase: PodPhase, *, exit_code: int = 0, failure: str = ""
    ) -> None:
        """The kubelet reports that the pod ``j-<name>`` is in *phase*."""
        pod = self.pods[f"j-{name}"]
        self.update_pod(dataclasses.replace(pod, phase=phase, exit_code=exit_code, failure=failure))

    def evict(self, name: str, *, settle: bool = True) -> None:
        """A user deletes a pod without grace period."""
        self.pod_tracker.remove(self.pods.pop(f"j-{name}").uid, now=self.monotonic_now)
        self._settle(settle)

    def finish_deletions(self, *, settle: bool = True) -> None:
        """All pods that were asked to go, go."""
        for pod in [pod for pod in self.pods.values() if pod.terminating]:
            self.update_pod(dataclasses.replace(pod, phase=PodPhase.FAILED))
            del self.pods[pod.name]
            self.pod_tracker.remove(pod.uid, now=self.monotonic_now)
        self._settle(settle)

    def _settle(self, settle: bool) -> None:
        if settle:
            self.run_until_stable()

    def job_view(self) -> JobView:
        """What the controller sees now."""
        assert self.job is not None
        self.pod_tracker.set_job(self.job)
        if self._first_sync:
            restore(self.job, self.pod_tracker, now=self.monotonic_now)
            self._first_sync = False
        seen = job_view(
            self.job,
            podgroup=None,
            plugin_objects_stale=self._plugin_objects_stale,
        )
        return msgspec.structs.replace(
            seen,
            pod_tracker=self.pod_tracker,
            podgroup=self.podgroup,
            now=self.now,
            monotonic_now=self.monotonic_now,
        )

    def run_until_stable(self) -> None:
        """Decide and do until there is nothing left to do."""
        for _ in range(100):
            if not self.step():
                return
        raise AssertionError(f"no rest: {decide(self.job_view())}")

    def step(self) -> bool:
        """Decide and do once; whether there may be more to do."""
        if self.job is None:
            return False
        order = self.commands[0] if self.commands else None
        asked = pure_decide(self.job_view(), order)
        self.requeue_after = []
        for effect in asked:
            self._apply(effect)
        self.pod_tracker.validate()
        return not all(
            isinstance(effect, Event | fx.DeferLifecycleEvents | RequeueAfter) for effect in asked
        )

    def _apply(self, effect: fx.Effect) -> None:  # noqa: C901, PLR0912 - one branch per effect
        assert self.job is not None
        match effect:
            case fx.SetStatus(status):
                if status.state.phase != self.job.status.state.phase:
                    self.phases.append(status.state.phase)
                assert status != self.job.status, "a write that changes nothing"
                self.job = msgspec.structs.replace(self.job, status=status)
            case fx.CreatePodGroup(spec):
                assert self.podgroup is None
                created = podgroups.build(self.job, spec)
                self._serial += 1
                meta = msgspec.structs.replace(created.metadata, uid=f"pg-{self._serial}")
                self.podgroup = msgspec.structs.replace(created, metadata=meta)
            case fx.UpdatePodGroup(patch):
                assert self.podgroup is not None
                fields = {**msgspec.to_builtins(self.podgroup.spec), **patch}
                self.podgroup = msgspec.structs.replace(
                    self.podgroup, spec=msgspec.convert(fields, PodGroupSpec)
                )
            case fx.DeletePodGroup(uid):
                assert self.podgroup is not None and self.podgroup.metadata.uid == uid
                self.podgroup = None
            case fx.CreatePods(indices):
                for task, numbers in indices.items():
                    for index in numbers:
                        self._create(task, index)
            case fx.DeletePods(pods, extra_grace):
                self.extra_grace.append(extra_grace)
                self.pod_tracker.mark_deleting(pod.uid for pod in pods)
                for pod in pods:
                    self.update_pod(dataclasses.replace(self.pods[pod.name], terminating=True))
            case fx.RemoveLostPods(pods):
                for pod in pods:
                    del self.pods[pod.name]
                    self.pod_tracker.remove(pod.uid, now=self.monotonic_now)
            case fx.EnsurePluginObjects():
                self.has_plugin_objects, self._plugin_objects_stale = True, False
            case fx.DeletePluginObjects():
                self.has_plugin_objects, self._plugin_objects_stale = False, True
            case fx.DeleteCommand():
                self.commands.pop(0)
            case fx.DeleteJob():
                self.job = None
            case fx.DropLifecycleEvents(events):
                self.pod_tracker.drop_events(events)
            case fx.DeferLifecycleEvents(waits, inputs):
                self.pod_tracker.defer_events(waits, inputs=inputs)
            case Event(reason):
                self.events.append(reason)
            case RequeueAfter(seconds):
                self.requeue_after.append(seconds)

    def _create(self, task: str, index: int) -> None:
        assert self.job is not None
        version = self.job.status.version
        name = f"{task}-{index}"
        assert f"j-{name}" not in self.pods, "the name is taken"
        self._serial += 1
        self.created[name, version] += 1
        (of_task,) = (one for one in self.job.spec.tasks if one.name == task)
        pod = pod_info(
            name,
            PodPhase.PENDING,
            version=version,
            uid=f"pod-{self._serial}",
            partition=partition_of(of_task, index),
        )
        self.update_pod(pod)

    def update_pod(self, pod: PodInfo) -> None:
        """The pod changes to this state."""
        self.pods[pod.name] = pod
        self.pod_tracker.update(pod, now=self.monotonic_now)


def running_world(of: Job) -> JobSimulator:
    """A world in which the job *of* runs, with all its pods."""
    world = JobSimulator(of)
    world.run_until_stable()
    world.admit()
    world.run_all_pods()
    return world
