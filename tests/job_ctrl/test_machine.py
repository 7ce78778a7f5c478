"""Random histories of a job, its controller killed, cut off and lied to on the way.

Whatever happens, the rules of ``support_audit_jobs`` hold at each change of the world; and whenever
the controller has come to a rest, the world is as the job and the pods ask for. For long runs set
``BATHOLITH_MACHINE_EXAMPLES`` and ``BATHOLITH_MACHINE_STEPS``.
"""

import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support_audit_jobs import FINAL, SERVED, STOPS
from support_jobs import TEMPLATE
from support_machine import JOB, Life

from batholith.model.names import (
    COMMANDS,
    CONFIGMAPS,
    JOBS,
    PODGROUPS,
    PODS,
    SERVICES,
)

Object = dict[str, Any]
ENDED = ("Succeeded", "Failed")

COMMANDS_SENT = st.sampled_from(
    ["AbortJob", "ResumeJob", "TerminateJob", "CompleteJob", "RestartJob", "RestartPod"]
)
ACTIONS = st.sampled_from(
    [
        "AbortJob",
        "CompleteJob",
        "RestartJob",
        "RestartPartition",
        "RestartPod",
        "RestartPod",
        "RestartTask",
        "TerminateJob",
    ]
)
CAUSES = st.one_of(
    st.sampled_from(
        [
            "*",
            "PodEvicted",
            "PodEvicted",
            "PodFailed",
            "PodFailed",
            "PodPending",
            "TaskCompleted",
            "TaskFailed",
            "Unknown",
        ]
    ).map(lambda event: {"event": event}),
    st.just({"exitCode": 3}),
)
TIMEOUTS = st.sampled_from([{}, {}, {"timeout": "10s"}, {"timeout": "40s"}])
POLICIES = st.lists(
    st.builds(lambda action, cause, late: {"action": action, **cause, **late},
              ACTIONS, CAUSES, TIMEOUTS),
    max_size=2,
)  # fmt: skip
WHICH = st.integers(0, 5)
PACE = st.sampled_from([None, None, None, 0, 1, 3, 6, 12, 25, 60])
"""After a step: wait for a rest, or let everybody do only so much."""


@st.composite
def specs(draw: st.DrawFn) -> Object:
    """The spec of a job as admission would let it pass."""
    tasks: list[Object] = []
    for name in ("a", "b")[: draw(st.integers(1, 2))]:
        replicas = draw(st.integers(1, 3))
        task: Object = {
            "name": name,
            "replicas": replicas,
            "minAvailable": draw(st.sampled_from([replicas, replicas, 1])),
            "template": TEMPLATE,
            "policies": draw(POLICIES),
        }
        if draw(st.booleans()) and name != "a":
            task["dependsOn"] = {"name": ["a"]}
        if draw(st.integers(0, 3)) == 0:
            task["partitionPolicy"] = {"totalPartitions": replicas, "partitionSize": 1}
        tasks.append(task)
    spec: Object = {
        "minAvailable": sum(task["minAvailable"] for task in tasks),
        "maxRetry": draw(st.sampled_from([3, 3, 2, 1])),
        "queue": "default",
        "schedulerName": "volcano",
        "tasks": tasks,
        "policies": draw(POLICIES) + draw(POLICIES),
        "suspend": draw(st.sampled_from([False, False, False, False, True])),
    }
    if any("dependsOn" in task for task in tasks):
        spec["minAvailable"] = 1
    if draw(st.integers(0, 3)) == 0:
        spec["minSuccess"] = 1
    if draw(st.integers(0, 3)) == 0:
        spec["ttlSecondsAfterFinished"] = draw(st.sampled_from([0, 30]))
    if draw(st.booleans()):
        spec["plugins"] = {"svc": []}
    return spec


def _some(*phases: str, leaving: bool | None = None) -> Callable[[Any], bool]:
    """There is a pod to pick."""
    return lambda machine: machine._pick(0, *phases, leaving=leaving) is not None


def _is_about(machine: Any) -> bool:
    """There is a job that is not over."""
    return machine.life.job is not None and machine.life.phase not in FINAL


def _has_group(machine: Any) -> bool:
    return machine.life.group() is not None


ANY = ("Pending", "Running", "Unknown", *ENDED)


class JobMachine(RuleBasedStateMachine):
    """A job controller under everything that may happen to it."""

    def __init__(self) -> None:
        super().__init__()
        self.life = Life()
        self.sound = True
        """Nothing has gone wrong yet that the end would only hide."""

    @initialize(spec=specs(), runs=st.sampled_from([True, True, False]))
    def begin(self, spec: Object, runs: bool) -> None:
        self.life.submit(spec)
        self._go_on(None)
        if runs:
            self.let_all_run(None)

    def teardown(self) -> None:
        try:
            if self.sound:
                self._go_on(None)
                self._all_is_gone()
        finally:
            self.life.close()

    def _go_on(self, pace: int | None) -> None:
        self.sound = False
        if pace is None:
            self.life.api.heal()
            self.life.do(self.life.rest())
            if self.life.sweep():
                self.life.do(self.life.rest())
            self._at_rest()
        else:
            self.life.do(self.life.rounds(pace))
        self.sound = True

    def _pick(self, which: int, *phases: str, leaving: bool | None = None) -> str | None:
        """One of the pods in *phases*."""
        names = [
            name
            for name, pod in self.life.named(PODS).items()
            if pod.get("status", {}).get("phase", "Pending") in phases
            and leaving in (None, "deletionTimestamp" in pod["metadata"])
        ]
        return names[which % len(names)] if names else None

    # The user.

    @precondition(lambda self: self.life.job is None)
    @rule(spec=specs(), pace=PACE)
    def submit(self, spec: Object, pace: int | None) -> None:
        self.life.collect()
        self.life.submit(spec)
        self._go_on(pace)

    @precondition(_is_about)
    @rule(which=WHICH, replicas=st.integers(0, 4), pace=PACE)
    def scale(self, which: int, replicas: int, pace: int | None) -> None:
        assert self.life.job is not None
        tasks = [dict(task) for task in self.life.job["spec"]["tasks"]]
        task = tasks[which % len(tasks)]
        task |= {"replicas": replicas, "minAvailable": min(task["minAvailable"], replicas)}
        least = min(sum(one["minAvailable"] for one in tasks), len(tasks))
        self.life.edit(tasks=tasks, minAvailable=least)
        self._go_on(pace)

    @precondition(_is_about)
    @rule(seldom=st.integers(0, 2), pace=PACE)
    def suspend_or_clear(self, seldom: int, pace: int | None) -> None:
        assert self.life.job is not None
        suspended = self.life.job["spec"]["suspend"]
        self.life.edit(suspend=not suspended and seldom == 0)
        self._go_on(pace)

    @precondition(lambda self: self.life.job is not None)
    @rule(action=COMMANDS_SENT, pace=PACE)
    def command(self, action: str, pace: int | None) -> None:
        self.life.command(action)
        self._go_on(pace)

    @precondition(lambda self: self.life.job is not None)
    @rule(foreground=st.booleans(), pace=PACE)
    def delete_the_job(self, foreground: bool, pace: int | None) -> None:
        self.life.delete_job(foreground=foreground)
        self._go_on(pace)

    @precondition(_some(*ANY))
    @rule(which=WHICH, force=st.booleans(), pace=PACE)
    def evict(self, which: int, force: bool, pace: int | None) -> None:
        if name := self._pick(which, *ANY, leaving=None if force else False):
            self.life.evict(name, force=force)
        self._go_on(pace)

    @precondition(_has_group)
    @rule(pace=PACE)
    def delete_the_podgroup(self, pace: int | None) -> None:
        if name := self.life.group():
            self.life.api.take_away(PODGROUPS, name)
        self._go_on(pace)

    # The scheduler, the kubelet, the garbage collector.

    @precondition(_has_group)
    @rule(phase=st.sampled_from(["Inqueue", "Running", "Pending", "Unknown"]), pace=PACE)
    def schedule(self, phase: str, pace: int | None) -> None:
        self.life.admit(phase)
        self._go_on(pace)

    @precondition(_has_group)
    @rule(pace=PACE)
    def let_all_run(self, pace: int | None) -> None:
        self.life.admit()
        self._go_on(None)
        while name := self._pick(0, "Pending", leaving=False):
            self.life.turn(name, "Running")
        self._go_on(pace)

    @precondition(_some("Pending", leaving=False))
    @rule(which=WHICH, pace=PACE)
    def bind(self, which: int, pace: int | None) -> None:
        if name := self._pick(which, "Pending", leaving=False):
            self.life.bind(name)
        self._go_on(pace)

    @precondition(_some("Pending", leaving=False))
    @rule(which=WHICH, pace=PACE)
    def run(self, which: int, pace: int | None) -> None:
        if name := self._pick(which, "Pending", leaving=False):
            self.life.turn(name, "Running")
        self._go_on(pace)

    @precondition(_some("Running", "Unknown"))
    @rule(which=WHICH, pace=PACE)
    def lose_or_find_its_node(self, which: int, pace: int | None) -> None:
        if name := self._pick(which, "Running", "Unknown"):
            lost = _phase(self.life.named(PODS)[name]) == "Unknown"
            self.life.turn(name, "Running" if lost else "Unknown")
        self._go_on(pace)

    @precondition(_some("Running"))
    @rule(which=WHICH, code=st.sampled_from([0, 1, 3]), pace=PACE)
    def end(self, which: int, code: int, pace: int | None) -> None:
        if name := self._pick(which, "Running"):
            self.life.turn(name, "Failed" if code else "Succeeded", code=code)
        self._go_on(pace)

    @precondition(_some("Running", leaving=False))
    @rule(which=WHICH, restarts=st.integers(1, 3), pace=PACE)
    def restart_a_container(self, which: int, restarts: int, pace: int | None) -> None:
        if name := self._pick(which, "Running", leaving=False):
            status = self.life.named(PODS)[name]["status"]["containerStatuses"][0]
            self.life.turn(name, "Running", restarts=status["restartCount"] + restarts)
        self._go_on(pace)

    @precondition(_some(*ANY, leaving=True))
    @rule(which=WHICH, pace=PACE)
    def reap(self, which: int, pace: int | None) -> None:
        if name := self._pick(which, *ANY, leaving=True):
            self.life.reap(name)
        self._go_on(pace)

    @precondition(_some(*ANY, leaving=True))
    @rule(pace=PACE)
    def reap_all(self, pace: int | None) -> None:
        while name := self._pick(0, *ANY, leaving=True):
            self.life.reap(name)
        self._go_on(pace)

    @rule(pace=PACE)
    def collect(self, pace: int | None) -> None:
        self.life.collect()
        self._go_on(pace)

    # What goes wrong, and time.

    @rule(graceful=st.booleans())
    def the_controller_ends(self, graceful: bool) -> None:
        self.life.do(self.life.stop() if graceful else self.life.kill())

    @rule(pace=PACE)
    def the_controller_starts(self, pace: int | None) -> None:
        self.life.do(self.life.start())
        self._go_on(pace)

    @rule(
        what=st.sampled_from([409, 429, 500, "drop", "lost"]),
        times=st.integers(1, 4),
        method=st.sampled_from(["", "GET", "POST", "PATCH", "DELETE"]),
        path=st.sampled_from(["", "/pods", "/podgroups", "/jobs", "/status", "/commands"]),
        pace=st.sampled_from([0, 3, 12, 60]),
    )
    def requests_fail(self, what: int | str, times: int, method: str, path: str, pace: int) -> None:
        self.life.api.fail(what, times=times, method=method, path=path)
        self._go_on(pace)

    @rule(resource=st.sampled_from([COMMANDS, JOBS, PODGROUPS, PODS]))
    def a_watch_is_late(self, resource: Any) -> None:
        self.life.api.hold(resource)

    @rule(lag=st.sampled_from([1, 4, 15]))
    def answers_are_slow(self, lag: int) -> None:
        self.life.api.lag = lag

    @rule(forget=st.booleans(), pace=PACE)
    def watches_end(self, forget: bool, pace: int | None) -> None:
        (self.life.api.lose if forget else self.life.api.end_watches)()
        self._go_on(pace)

    @rule(seconds=st.sampled_from([0.5, 3, 15, 45, 400]), pace=PACE)
    def time_passes(self, seconds: float, pace: int | None) -> None:
        self.life.do(self.life.pass_time(seconds))
        self._go_on(pace)

    @rule()
    def a_new_controller_finds_nothing_to_do(self) -> None:
        """INV-LC-4, INV-PIPE-1: what is in memory only is not needed."""
        self._go_on(None)
        waiting = self.life.clock.waiting
        before = self._writes()
        self.life.do(self.life.kill())
        self._go_on(None)
        assert waiting or self._writes() == before

    def _writes(self) -> int:
        return sum(seen.method != "GET" for seen in self.life.api.seen)

    # What must be so.

    @invariant()
    def each_change_kept_the_rules(self) -> None:
        """INV-OW-1, INV-OW-2, INV-OW-4, INV-VC-1, INV-VC-4, INV-VC-6; terminal phases stay."""
        assert self.life.audit.broken == []

    def _at_rest(self) -> None:
        life = self.life
        assert life.named(COMMANDS) == {}
        job = life.job
        if job is None:
            return
        if "deletionTimestamp" in job["metadata"]:
            life.audit.going(job)
            return
        pods = [pod for pod in life.named(PODS).values() if _owned(pod, job)]
        self._counts_equal_the_pods(pods)
        if life.phase in SERVED:
            self._served(job)
            for pod in pods:
                self._was_answered(job, pod)
        elif life.phase == "Restarting":
            assert self._leaving(pods), f"nothing is left to wait for: {life.status}"
        else:
            self._ended(job, pods)

    def _counts_equal_the_pods(self, pods: list[Object]) -> None:
        status, phase = self.life.status, self.life.phase
        for name in ANY:
            number = sum(_phase(pod) == name and not _leaves(pod) for pod in pods)
            counted = status.get(name.lower(), 0)
            kept = phase in FINAL and name in ENDED and counted >= number
            assert counted == number or kept, f"{name}: {number} pods, {status}"
            tasks = status.get("taskStatusCount", {}).values()
            assert counted == sum(task["phase"].get(name, 0) for task in tasks), status
        assert status.get("terminating", 0) == len(self._leaving(pods)), status

    def _leaving(self, pods: list[Object]) -> list[Object]:
        return [pod for pod in pods if _leaves(pod)]

    def _served(self, job: Object) -> None:
        """A PodGroup, and once it is admitted a pod for each index."""
        life, spec, status = self.life, job["spec"], job["status"]
        group = life.named(PODGROUPS).get(life.group() or "")
        assert group is not None, "the PodGroup is missing"
        assert group["spec"].get("minMember", 0) == spec["minAvailable"]
        assert not spec["suspend"], f"a suspended job is {life.phase}"
        assert status.get("minAvailable", 0) == spec["minAvailable"]
        ended = status.get("succeeded", 0) + status.get("failed", 0)
        total = sum(task["replicas"] for task in spec["tasks"])
        if life.phase == "Pending":
            assert status.get("running", 0) + ended < spec["minAvailable"], status
        else:
            assert ended < total or not total, status
        wanted = {
            f"{JOB}-{task['name']}-{index}"
            for task in spec["tasks"]
            for index in range(task["replicas"])
            if "dependsOn" not in task
        }
        if group.get("status", {}).get("phase") in ("Inqueue", "Running", "Unknown"):
            assert wanted <= life.named(PODS).keys()
        assert (f"{JOB}-svc" in life.named(CONFIGMAPS)) == ("svc" in spec.get("plugins", {}))

    def _was_answered(self, job: Object, pod: Object) -> None:
        """No pod stands there failed that a policy answers at once."""
        notes = pod["metadata"]["annotations"]
        old = int(notes["volcano.sh/job-version"]) < job["status"].get("version", 0)
        if old or _phase(pod) != "Failed" or _leaves(pod):
            return
        code = pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"]
        named = notes["volcano.sh/task-spec"]
        (task,) = [one for one in job["spec"]["tasks"] if one["name"] == named]
        for policy in (*task["policies"], *job["spec"]["policies"]):
            if policy.get("event") in ("*", "PodFailed") or policy.get("exitCode") == code:
                lacks = policy["action"] == "RestartPartition" and "partitionPolicy" not in task
                assert lacks or "timeout" in policy, f"{policy} was forgotten"
                return

    def _ended(self, job: Object, pods: list[Object]) -> None:
        """Nothing is left that lives, and as soon as the last pod has gone it is said."""
        assert all(_phase(pod) in ENDED or _leaves(pod) for pod in pods)
        assert self.life.group() is None, "the PodGroup is left over"
        assert self.life.phase not in STOPS or self._leaving(pods), self.life.status
        assert not any(_owned(one, job) for one in self.life.named(SERVICES).values())

    def _all_is_gone(self) -> None:
        """INV-VC-3: nothing is remembered of a job that is gone with all that it had."""
        life = self.life
        if life.job is not None:
            life.delete_job()
        self._go_on(None)
        while life.named(PODS) or life.named(PODGROUPS):
            life.collect()
            self.reap_all(None)
        assert life.controller is not None
        assert life.controller.statistics() == {"cases": 0, "queued": 0}


def _phase(pod: Object) -> str:
    phase: str = pod.get("status", {}).get("phase", "Pending")
    return phase


def _leaves(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def _owned(obj: Object, job: Object) -> bool:
    owners = obj["metadata"].get("ownerReferences", ())
    return any(one["uid"] == job["metadata"]["uid"] for one in owners)


TestJobMachine = JobMachine.TestCase
TestJobMachine.settings = settings(
    max_examples=int(os.environ.get("BATHOLITH_MACHINE_EXAMPLES", "40")),
    stateful_step_count=int(os.environ.get("BATHOLITH_MACHINE_STEPS", "30")),
    derandomize="BATHOLITH_MACHINE_EXAMPLES" not in os.environ,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
