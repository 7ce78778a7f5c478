"""Random histories of jobs, their controller killed, cut off and lied to on the way.

Whatever happens, the rules of ``support.job_transitions`` hold at each change of the world; and
whenever the controller has come to a rest, the world is as the jobs and the pods ask for
(``support.job_invariants``).
"""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.job_invariants import ANY, leaves, phase_of_pod, validate, wanting
from support.job_specs import specs
from support.job_stateful import MADE, PATIENCE, Life
from support.job_transitions import FINAL, phase_of
from support.stateful import lengths

from batholith.model.names import COMMANDS, CONFIGMAPS, JOBS, PODGROUPS, PODS, SERVICES

Object = dict[str, Any]

KEYS = ("d/j", "d/j-a", "e/j")
COMMANDS_SENT = st.sampled_from(
    ["AbortJob", "ResumeJob", "TerminateJob", "CompleteJob", "RestartJob", "RestartPod"]
)
WHICH = st.integers(0, 5)
PACE = st.sampled_from([None, None, None, 0, 1, 3, 6, 12, 25, 60])
"""After a step: wait for a rest, or let everybody do only so much."""


def _some(*phases: str, leaving: bool | None = None) -> Callable[[Any], bool]:
    """There is a pod to pick."""
    return lambda machine: machine._pick(0, *phases, leaving=leaving) is not None


def _has_jobs(machine: Any) -> bool:
    return bool(machine.life.every(JOBS))


def _is_about(machine: Any) -> bool:
    """There is a job that is not over."""
    return machine._about(0) is not None


def _has_group(machine: Any) -> bool:
    return machine._with_group(0) is not None


class JobMachine(RuleBasedStateMachine):
    """A job controller under everything that may happen to it."""

    def __init__(self) -> None:
        super().__init__()
        self.life = Life()
        self.keys: tuple[str, ...] = KEYS
        """Jobs that this history may have."""
        self.sound = True
        """Nothing has gone wrong yet that the end would only hide."""

    @initialize(
        number=st.sampled_from([1, 1, 2, 3]),
        first=st.lists(specs(), min_size=1, max_size=3),
        runs=st.sampled_from([True, True, False]),
    )
    def begin(self, number: int, first: list[Object], runs: bool) -> None:
        self.keys = KEYS[:number]
        for key, spec in zip(self.keys, first, strict=False):
            self.life.submit(spec, key)
        self._go_on(None)
        if runs:
            self.life.bring_claims()
            self._go_on(None)
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
            if wanting(self.life):  # perhaps it waits to try again what was refused before
                self.life.do(self.life.pass_time(PATIENCE))
                self.life.do(self.life.rest())
            validate(self.life)
        else:
            self.life.do(self.life.rounds(pace))
        self.sound = True

    def _pick(self, which: int, *phases: str, leaving: bool | None = None) -> str | None:
        """One of the pods in *phases*."""
        return _one(
            which,
            [
                name
                for name, pod in self.life.every(PODS).items()
                if phase_of_pod(pod) in phases and leaving in (None, leaves(pod))
            ],
        )

    def _job(self, which: int) -> str:
        return _one(which, list(self.life.every(JOBS))) or ""

    def _about(self, which: int) -> str | None:
        jobs = self.life.every(JOBS).items()
        return _one(which, [key for key, job in jobs if phase_of(job) not in FINAL])

    def _with_group(self, which: int) -> str | None:
        return _one(which, [key for key in self.life.every(JOBS) if self.life.group(key)])

    # The user.

    @precondition(lambda self: len(self.life.every(JOBS)) < len(self.keys))
    @rule(which=WHICH, spec=specs(), collected=st.booleans(), pace=PACE)
    def submit(self, which: int, spec: Object, collected: bool, pace: int | None) -> None:
        if collected:
            self.life.collect()
        free = [key for key in self.keys if key not in self.life.every(JOBS)]
        self.life.submit(spec, free[which % len(free)])
        self._go_on(pace)

    @precondition(_is_about)
    @rule(which=WHICH, task=WHICH, replicas=st.integers(0, 4), pace=PACE)
    def scale(self, which: int, task: int, replicas: int, pace: int | None) -> None:
        if key := self._about(which):
            tasks = [dict(one) for one in self.life.every(JOBS)[key]["spec"]["tasks"]]
            chosen = tasks[task % len(tasks)]
            least = min(chosen["minAvailable"], replicas)
            chosen |= {"replicas": replicas, "minAvailable": least}
            least = min(sum(one["minAvailable"] for one in tasks), len(tasks))
            self.life.edit(key, tasks=tasks, minAvailable=least)
        self._go_on(pace)

    @precondition(_is_about)
    @rule(which=WHICH, seldom=st.integers(0, 2), pace=PACE)
    def suspend_or_clear(self, which: int, seldom: int, pace: int | None) -> None:
        if key := self._about(which):
            suspended = self.life.every(JOBS)[key]["spec"]["suspend"]
            self.life.edit(key, suspend=not suspended and seldom == 0)
        self._go_on(pace)

    @precondition(_has_jobs)
    @rule(which=WHICH, actions=st.lists(COMMANDS_SENT, min_size=1, max_size=2), pace=PACE)
    def command(self, which: int, actions: list[str], pace: int | None) -> None:
        for action in actions:
            self.life.command(action, self._job(which))
        self._go_on(pace)

    @precondition(_has_jobs)
    @rule(which=WHICH, how=st.sampled_from(["Background", "Foreground", "Orphan"]), pace=PACE)
    def delete_a_job(self, which: int, how: str, pace: int | None) -> None:
        self.life.delete_job(self._job(which), how=how)
        self._go_on(pace)

    @precondition(_some(*ANY))
    @rule(which=WHICH, force=st.booleans(), pace=PACE)
    def evict(self, which: int, force: bool, pace: int | None) -> None:
        if name := self._pick(which, *ANY, leaving=None if force else False):
            self.life.evict(name, force=force)
        self._go_on(pace)

    @precondition(_has_group)
    @rule(which=WHICH, pace=PACE)
    def delete_a_podgroup(self, which: int, pace: int | None) -> None:
        if name := self._group(which):
            self.life.api.take_away(PODGROUPS, name)
        self._go_on(pace)

    @precondition(_has_group)
    @rule(which=WHICH, number=st.integers(0, 9), pace=PACE)
    def change_a_podgroup(self, which: int, number: int, pace: int | None) -> None:
        if name := self._group(which):
            self.life.put(PODGROUPS, name, spec={"minMember": number, "minTaskMember": {"a": 7}})
        self._go_on(pace)

    def _group(self, which: int) -> str | None:
        key = self._with_group(which)
        return f"{key.partition('/')[0]}/{self.life.group(key)}" if key else None

    @precondition(lambda self: any(self.life.every(kind) for kind in MADE))
    @rule(which=WHICH, kind=st.sampled_from([SERVICES, CONFIGMAPS]), pace=PACE)
    def delete_what_a_plugin_made(self, which: int, kind: Any, pace: int | None) -> None:
        if name := _one(which, list(self.life.every(kind))):
            self.life.api.take_away(kind, name)
        self._go_on(pace)

    @rule(pace=PACE)
    def bring_the_claims(self, pace: int | None) -> None:
        self.life.bring_claims()
        self._go_on(pace)

    @precondition(lambda self: bool(self.life.strangers()))
    @rule(pace=PACE)
    def remove_what_belongs_to_nobody(self, pace: int | None) -> None:
        self._remove_strangers()
        self._go_on(pace)

    def _remove_strangers(self) -> None:
        for kind, name in self.life.strangers():
            self.life.api.take_away(kind, name)

    @rule(key=st.sampled_from(KEYS), which=st.sampled_from(["a-0", "a-1", "b-0"]), pace=PACE)
    def squat(self, key: str, which: str, pace: int | None) -> None:
        """Somebody makes a pod with a name that a job may want."""
        if f"{key}-{which}" not in self.life.every(PODS):
            self.life.put(PODS, f"{key}-{which}", metadata={"labels": {"app": "other"}})
        self._go_on(pace)

    @rule(namespace=st.sampled_from("dde"), pace=PACE)
    def the_quota_is_full_or_not(self, namespace: str, pace: int | None) -> None:
        self.life.api.full ^= {namespace}
        self._go_on(pace)

    # The scheduler, the kubelet, the garbage collector.

    @precondition(_has_group)
    @rule(
        which=WHICH,
        phase=st.sampled_from(["Inqueue", "Running", "Pending", "Unknown"]),
        pace=PACE,
    )
    def schedule(self, which: int, phase: str, pace: int | None) -> None:
        if key := self._with_group(which):
            self.life.admit(phase, key)
        self._go_on(pace)

    @precondition(_has_group)
    @rule(pace=PACE)
    def let_all_run(self, pace: int | None) -> None:
        for key in self.life.every(JOBS):
            self.life.admit(job=key)
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
            lost = phase_of_pod(self.life.every(PODS)[name]) == "Unknown"
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
            status = self.life.every(PODS)[name]["status"]["containerStatuses"][0]
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
        what=st.sampled_from([408, 409, 429, 500, "drop", "lost", "done 504"]),
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
        waiting = self.life.clock.timer_count
        before = self.life.audit.writes
        self.life.do(self.life.kill())
        self._go_on(None)
        assert waiting or self.life.audit.writes == before

    # What must be so.

    @invariant()
    def each_change_kept_the_rules(self) -> None:
        """INV-EX-1, INV-OW-1, -2 and -4, INV-SH-1, INV-VC-1, -2, -4, -6 and -7; ends are final."""
        assert self.life.audit.broken == []

    def _all_is_gone(self) -> None:
        """INV-VC-3: nothing is remembered of jobs that are gone with all that they had."""
        life = self.life
        for key in life.every(JOBS):
            life.delete_job(key)
        self._go_on(None)
        while life.every(PODS) or life.every(PODGROUPS):
            life.collect()
            self._remove_strangers()
            self.reap_all(None)
        assert life.controller is not None
        assert life.controller.statistics() == {"cases": 0, "queued": 0}


def _one(which: int, names: list[str]) -> str | None:
    return names[which % len(names)] if names else None


TestJobMachine = JobMachine.TestCase
TestJobMachine.settings = lengths(steps=30)
