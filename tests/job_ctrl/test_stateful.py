"""Random histories of jobs, their controller killed, cut off and lied to on the way.

At each change of the world, the rules of ``support.job_transitions`` hold; and
when the controller is idle, the world is as the jobs and the pods require
(``support.job_invariants``).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from support.job_invariants import ANY_EVENT, is_incomplete, is_terminating, phase_of_pod, validate
from support.job_specs import mostly_single, specs
from support.job_stateful import CREATED_RESOURCES, FORGOTTEN, SETTLE_TIMEOUT, JobWorld
from support.job_transitions import FINAL, phase_of
from support.pure_decide import pure_decide
from support.stateful import (
    ControllerMachine,
    fault_rule,
    late_watch_rule,
    stateful_settings,
)

from batholith.job_ctrl import controller
from batholith.model.described_podgroup import PodGroupsOf
from batholith.model.names import COMMANDS, CONFIGMAPS, JOBS, PODGROUPS, PODS, SERVICES

Object = dict[str, Any]

KEYS = ("d/j", "d/j-a", "e/j")
COMMANDS_SENT = st.sampled_from(
    ["AbortJob", "ResumeJob", "TerminateJob", "CompleteJob", "RestartJob", "RestartPod"]
)
WHICH = st.integers(0, 5)
PACE = st.sampled_from([None, None, None, 0, 1, 3, 6, 12, 25, 60])
"""After a step: wait until all is quiet, or run a number of loop iterations."""


def _some(*phases: str, terminating: bool | None = None) -> Callable[["JobMachine"], bool]:
    """There is a pod to pick."""
    return lambda machine: machine.pick(0, *phases, terminating=terminating) is not None


def _has_jobs(machine: "JobMachine") -> bool:
    return bool(machine.world.objects_by_key(JOBS))


def _has_unfinished_jobs(machine: "JobMachine") -> bool:
    """There is a job that is not over."""
    return machine.unfinished_job(0) is not None


def _has_group(machine: "JobMachine") -> bool:
    return machine.job_with_podgroup(0) is not None


class JobMachine(ControllerMachine[JobWorld]):
    """A job controller under everything that may happen to it."""

    def __init__(self) -> None:
        super().__init__(JobWorld())
        self.keys: tuple[str, ...] = KEYS
        """Jobs that this history may have."""

    @initialize(
        number=st.sampled_from([1, 1, 2, 3]),
        first=st.lists(specs(), min_size=1, max_size=3),
        runs=st.sampled_from([True, True, False]),
        busy=st.booleans(),
    )
    def begin(self, number: int, first: list[Object], runs: bool, busy: bool) -> None:
        self._begin(number, first, runs, busy)

    def _begin(self, number: int, first: list[Object], runs: bool, busy: bool) -> None:
        self.world.transitions.defers_first_status = busy
        self.keys = KEYS[:number]
        for key, spec in zip(self.keys, first, strict=False):
            self.world.submit(spec, key)
        self._settle_or_advance(None)
        if runs:
            self.world.create_missing_pvcs()
            self._settle_or_advance(None)
            self.let_all_run(None)

    def teardown(self) -> None:
        try:
            if self.no_violation:
                self._settle_or_advance(None)
                self._check_nothing_retained()
        finally:
            self.world.close()

    def _settle_or_advance(self, pace: int | None) -> None:
        self.no_violation = False
        if pace is None:
            self.world.api.clear_faults()
            self.world.run(self.world.run_until_quiet())
            if self.world.delete_orphans():
                self.world.run(self.world.run_until_quiet())
            if is_incomplete(self.world):  # perhaps it waits to try again what was refused before
                self.world.run(self.world.pass_time(SETTLE_TIMEOUT))
                self.world.run(self.world.run_until_quiet())
            validate(self.world)
        else:
            self.world.run(self.world.run_iterations(pace))
        self.no_violation = True

    def pick(self, which: int, *phases: str, terminating: bool | None = None) -> str | None:
        """One of the pods in *phases*."""
        return _pick_by_index(
            which,
            [
                name
                for name, pod in self.world.objects_by_key(PODS).items()
                if phase_of_pod(pod) in phases and terminating in (None, is_terminating(pod))
            ],
        )

    def _job(self, which: int) -> str:
        return _pick_by_index(which, list(self.world.objects_by_key(JOBS))) or ""

    def unfinished_job(self, which: int) -> str | None:
        jobs = self.world.objects_by_key(JOBS).items()
        return _pick_by_index(which, [key for key, job in jobs if phase_of(job) not in FINAL])

    def job_with_podgroup(self, which: int) -> str | None:
        return _pick_by_index(
            which, [key for key in self.world.objects_by_key(JOBS) if self.world.group(key)]
        )

    # The user.

    @precondition(lambda self: len(self.world.objects_by_key(JOBS)) < len(self.keys))
    @rule(which=WHICH, spec=specs(), collected=st.booleans(), pace=PACE)
    def submit(self, which: int, spec: Object, collected: bool, pace: int | None) -> None:
        self._submit(which, spec, collected, pace)

    def _submit(self, which: int, spec: Object, collected: bool, pace: int | None) -> None:
        if collected:
            self.world.collect_garbage()
        free = [key for key in self.keys if key not in self.world.objects_by_key(JOBS)]
        self.world.submit(spec, free[which % len(free)])
        self._settle_or_advance(pace)

    @precondition(_has_unfinished_jobs)
    @rule(which=WHICH, task=WHICH, replicas=st.integers(0, 4), pace=PACE)
    def scale(self, which: int, task: int, replicas: int, pace: int | None) -> None:
        if key := self.unfinished_job(which):
            tasks = [dict(one) for one in self.world.objects_by_key(JOBS)[key]["spec"]["tasks"]]
            chosen = tasks[task % len(tasks)]
            least = min(chosen["minAvailable"], replicas)
            chosen |= {"replicas": replicas, "minAvailable": least}
            least = min(sum(one["minAvailable"] for one in tasks), len(tasks))
            self.world.edit(key, tasks=tasks, minAvailable=least)
        self._settle_or_advance(pace)

    @precondition(_has_unfinished_jobs)
    @rule(which=WHICH, seldom=st.integers(0, 2), pace=PACE)
    def suspend_or_clear(self, which: int, seldom: int, pace: int | None) -> None:
        if key := self.unfinished_job(which):
            suspended = self.world.objects_by_key(JOBS)[key]["spec"]["suspend"]
            self.world.edit(key, suspend=not suspended and seldom == 0)
        self._settle_or_advance(pace)

    @precondition(_has_jobs)
    @rule(which=WHICH, actions=st.lists(COMMANDS_SENT, min_size=1, max_size=2), pace=PACE)
    def command(self, which: int, actions: list[str], pace: int | None) -> None:
        for action in actions:
            self.world.command(action, self._job(which))
        self._settle_or_advance(pace)

    @precondition(_has_jobs)
    @rule(which=WHICH, how=st.sampled_from(["Background", "Foreground", "Orphan"]), pace=PACE)
    def delete_a_job(self, which: int, how: str, pace: int | None) -> None:
        self.world.delete_job(self._job(which), how=how)
        self._settle_or_advance(pace)

    @precondition(_some(*ANY_EVENT))
    @rule(which=WHICH, force=st.booleans(), pace=PACE)
    def evict(self, which: int, force: bool, pace: int | None) -> None:
        if name := self.pick(which, *ANY_EVENT, terminating=None if force else False):
            self.world.evict(name, force=force)
        self._settle_or_advance(pace)

    @precondition(_has_group)
    @rule(which=WHICH, pace=PACE)
    def delete_a_podgroup(self, which: int, pace: int | None) -> None:
        if name := self._group(which):
            self.world.api.force_delete(PODGROUPS, name)
        self._settle_or_advance(pace)

    @precondition(_has_group)
    @rule(which=WHICH, number=st.integers(0, 9), pace=PACE)
    def change_a_podgroup(self, which: int, number: int, pace: int | None) -> None:
        if name := self._group(which):
            self.world.put(PODGROUPS, name, spec={"minMember": number, "minTaskMember": {"a": 7}})
        self._settle_or_advance(pace)

    def _group(self, which: int) -> str | None:
        key = self.job_with_podgroup(which)
        return f"{key.partition('/')[0]}/{self.world.group(key)}" if key else None

    @precondition(lambda self: any(self.world.objects_by_key(kind) for kind in CREATED_RESOURCES))
    @rule(which=WHICH, kind=st.sampled_from([SERVICES, CONFIGMAPS]), pace=PACE)
    def delete_object_of_a_plugin(self, which: int, kind: Any, pace: int | None) -> None:
        if name := _pick_by_index(which, list(self.world.objects_by_key(kind))):
            self.world.api.force_delete(kind, name)
        self._settle_or_advance(pace)

    @rule(pace=PACE)
    def create_missing_pvcs(self, pace: int | None) -> None:
        self.world.create_missing_pvcs()
        self._settle_or_advance(pace)

    @precondition(lambda self: bool(self.world.foreign_objects()))
    @rule(pace=PACE)
    def delete_orphans(self, pace: int | None) -> None:
        self._remove_foreign_objects()
        self._settle_or_advance(pace)

    def _remove_foreign_objects(self) -> None:
        for kind, name in self.world.foreign_objects():
            self.world.api.force_delete(kind, name)

    @rule(key=st.sampled_from(KEYS), which=st.sampled_from(["a-0", "a-1", "b-0"]), pace=PACE)
    def create_conflicting_pod(self, key: str, which: str, pace: int | None) -> None:
        """Another client creates a pod with a name that a job may need."""
        if f"{key}-{which}" not in self.world.objects_by_key(PODS):
            self.world.put(PODS, f"{key}-{which}", metadata={"labels": {"app": "other"}})
        self._settle_or_advance(pace)

    @rule(namespace=st.sampled_from("dde"), pace=PACE)
    def the_quota_is_full_or_not(self, namespace: str, pace: int | None) -> None:
        self.world.api.full_namespaces ^= {namespace}
        self._settle_or_advance(pace)

    # The scheduler, the kubelet, the garbage collector.

    @precondition(_has_group)
    @rule(
        which=WHICH,
        phase=st.sampled_from(["Inqueue", "Running", "Pending", "Unknown"]),
        pace=PACE,
    )
    def schedule(self, which: int, phase: str, pace: int | None) -> None:
        if key := self.job_with_podgroup(which):
            self.world.admit(phase, key)
        self._settle_or_advance(pace)

    @precondition(_has_group)
    @rule(pace=PACE)
    def let_all_run(self, pace: int | None) -> None:
        for key in self.world.objects_by_key(JOBS):
            self.world.admit(job=key)
        self._settle_or_advance(None)
        while name := self.pick(0, "Pending", terminating=False):
            self.world.report_pod(name, "Running")
        self._settle_or_advance(pace)

    @precondition(_some("Pending", terminating=False))
    @rule(which=WHICH, pace=PACE)
    def bind(self, which: int, pace: int | None) -> None:
        if name := self.pick(which, "Pending", terminating=False):
            self.world.bind(name)
        self._settle_or_advance(pace)

    @precondition(_some("Pending", terminating=False))
    @rule(which=WHICH, pace=PACE)
    def run(self, which: int, pace: int | None) -> None:
        if name := self.pick(which, "Pending", terminating=False):
            self.world.report_pod(name, "Running")
        self._settle_or_advance(pace)

    @precondition(_some("Running", "Unknown"))
    @rule(which=WHICH, pace=PACE)
    def lose_or_find_its_node(self, which: int, pace: int | None) -> None:
        if name := self.pick(which, "Running", "Unknown"):
            lost = phase_of_pod(self.world.objects_by_key(PODS)[name]) == "Unknown"
            self.world.report_pod(name, "Running" if lost else "Unknown")
        self._settle_or_advance(pace)

    @precondition(_some("Running"))
    @rule(which=WHICH, code=st.sampled_from([0, 1, 3]), pace=PACE)
    def end(self, which: int, code: int, pace: int | None) -> None:
        if name := self.pick(which, "Running"):
            self.world.report_pod(name, "Failed" if code else "Succeeded", code=code)
        self._settle_or_advance(pace)

    @precondition(_some("Running", terminating=False))
    @rule(which=WHICH, restarts=st.integers(1, 3), pace=PACE)
    def restart_a_container(self, which: int, restarts: int, pace: int | None) -> None:
        if name := self.pick(which, "Running", terminating=False):
            status = self.world.objects_by_key(PODS)[name]["status"]["containerStatuses"][0]
            self.world.report_pod(name, "Running", restarts=status["restartCount"] + restarts)
        self._settle_or_advance(pace)

    @precondition(_some(*ANY_EVENT, terminating=True))
    @rule(which=WHICH, pace=PACE)
    def finish_pod_deletion(self, which: int, pace: int | None) -> None:
        if name := self.pick(which, *ANY_EVENT, terminating=True):
            self.world.finish_deletion(name)
        self._settle_or_advance(pace)

    @precondition(_some(*ANY_EVENT, terminating=True))
    @rule(pace=PACE)
    def finish_all_pod_deletions(self, pace: int | None) -> None:
        while name := self.pick(0, *ANY_EVENT, terminating=True):
            self.world.finish_deletion(name)
        self._settle_or_advance(pace)

    @rule(pace=PACE)
    def collect(self, pace: int | None) -> None:
        self.world.collect_garbage()
        self._settle_or_advance(pace)

    # Faults, and time.

    requests_fail = fault_rule("", "/pods", "/podgroups", "/jobs", "/status", "/commands")
    a_watch_is_late = late_watch_rule(COMMANDS, JOBS, PODGROUPS, PODS)

    @rule(seconds=st.sampled_from([0.5, 3, 15, 45, 400]), pace=PACE)
    def time_passes(self, seconds: float, pace: int | None) -> None:
        self.world.run(self.world.pass_time(seconds))
        self._settle_or_advance(pace)

    @rule()
    def a_new_controller_finds_nothing_to_do(self) -> None:
        """INV-LC-4, INV-PIPE-1: what is in memory only is not needed."""
        self._settle_or_advance(None)
        waiting = self.world.clock.timer_count
        before = self.world.controller_writes
        self.world.run(self.world.kill())
        self._settle_or_advance(None)
        assert waiting or self.world.controller_writes == before

    # What must be so.

    @invariant()
    def each_change_kept_the_rules(self) -> None:
        """INV-EX-1, INV-OW-1, -2 and -4, INV-SH-1, INV-VC-1, -2, -4, -6 and -7; ends are final."""
        assert self.world.violations == []

    def _check_nothing_retained(self) -> None:
        """INV-VC-3: no state is kept of jobs that are deleted with all their objects."""
        life = self.world
        for key in life.objects_by_key(JOBS):
            life.delete_job(key)
        self._settle_or_advance(None)
        while life.objects_by_key(PODS) or life.objects_by_key(PODGROUPS):
            life.collect_garbage()
            self._remove_foreign_objects()
            self.finish_all_pod_deletions(None)
        assert life.controller is not None
        assert life.controller.statistics() == FORGOTTEN


def _pick_by_index(which: int, names: list[str]) -> str | None:
    return names[which % len(names)] if names else None


@pytest.fixture(autouse=True)
def _decide_must_be_pure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare the view before and after each decision of each history."""
    monkeypatch.setattr(controller, "decide", pure_decide)


class PodGroupMachine(JobMachine):
    """A job controller that creates PodGroups for gangs only, or for all jobs."""

    @initialize(
        number=st.sampled_from([1, 1, 2, 3]),
        first=st.lists(mostly_single(), min_size=1, max_size=3),
        runs=st.sampled_from([True, True, False]),
        busy=st.booleans(),
    )
    def begin(self, number: int, first: list[Object], runs: bool, busy: bool) -> None:
        self._switch(PodGroupsOf.GANGS)
        self._begin(number, first, runs, busy)

    @precondition(lambda self: len(self.world.objects_by_key(JOBS)) < len(self.keys))
    @rule(which=WHICH, spec=mostly_single(), collected=st.booleans(), pace=PACE)
    def submit(self, which: int, spec: Object, collected: bool, pace: int | None) -> None:
        self._submit(which, spec, collected, pace)

    @rule(pace=PACE)
    def switch_the_option(self, pace: int | None) -> None:
        is_all = self.world.settings.podgroups is PodGroupsOf.ALL
        self.world.run(self.world.kill())
        self._switch(PodGroupsOf.GANGS if is_all else PodGroupsOf.ALL)
        self._settle_or_advance(pace)

    def _switch(self, podgroups: PodGroupsOf) -> None:
        self.world.settings = dataclasses.replace(self.world.settings, podgroups=podgroups)

    @precondition(_some("Pending", terminating=False))
    @rule(which=WHICH, pace=PACE)
    def report_a_pod(self, which: int, pace: int | None) -> None:
        """The scheduler reports why it does not schedule a pod."""
        if name := self.pick(which, "Pending", terminating=False):
            condition = {"type": "PodScheduled", "status": "False", "message": "full"}
            self.world.put(PODS, name, status={"phase": "Pending", "conditions": [condition]})
        self._settle_or_advance(pace)


TestJobMachine = JobMachine.TestCase
TestJobMachine.settings = stateful_settings(steps=30, histories=20)
TestPodGroupMachine = PodGroupMachine.TestCase
TestPodGroupMachine.settings = stateful_settings(steps=30, histories=10)
