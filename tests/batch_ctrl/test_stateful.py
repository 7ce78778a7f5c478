"""Random histories of Jobs: their controller is killed, disconnected and delayed in between.

``support.batch_audit`` checks each change, and ``support.batch_rest`` what there is when the
controller is idle.
"""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from support.batch_audit import is_finished, is_foreign
from support.batch_rest import validate, wanted
from support.batch_specs import COUNT, DISRUPTION, FAIL_INDEX, FAIL_JOB, specs
from support.batch_tracker import check_tracker
from support.batch_world import ENDED, BatchWorld, is_active, is_live
from support.stateful import PACE, ControllerMachine, fault_rule, late_watch_rule, stateful_settings

from batholith.model.names import BATCH_JOBS, PODS

Object = dict[str, Any]

NAMES = ("j", "k")
WHICH = st.integers(0, 5)
CODES = st.sampled_from([0, 0, 0, 1, 1, COUNT, FAIL_JOB, FAIL_INDEX])
ALL_DELAYS = 700.0
"""Seconds after which every replacement may be created."""


class _World(BatchWorld):
    def check_invariants(self) -> None:
        """Check the Jobs, and that what the controller keeps agrees with the pods."""
        validate(self)
        if self.controller is not None:
            for pods in self.controller.tracked_pods():
                check_tracker(pods)


class BatchMachine(ControllerMachine[_World]):
    """A Job controller under everything that may happen to it."""

    def __init__(self) -> None:
        super().__init__(_World())

    @initialize(first=st.lists(specs(), min_size=1, max_size=2), starts=st.booleans())
    def begin(self, first: list[Object], starts: bool) -> None:
        for name, spec in zip(NAMES, first, strict=False):
            self.world.submit(name, **spec, settle=False)
        self._settle_or_advance(None)
        if starts:
            self.all_pods_start(None)

    def teardown(self) -> None:
        try:
            if self.no_violation:
                self._all_jobs_end()
        finally:
            self.world.close()

    def _all_jobs_end(self) -> None:
        """INV-BJ-2, INV-BJ-5: without faults each Job ends, and keeps no pod's finalizer."""
        for name in self._jobs():
            if not is_foreign(self.world.job(name)):
                least = max(1, self.world.job(name)["spec"]["parallelism"])
                self._scale(name, least)
                self.world.edit(name, suspend=False)
        for _ in range(20):
            self._settle_or_advance(None)
            self.world.finish_deletions()
            for name in self._pods(is_active):
                self.world.end_pod(name)
            self.world.collect_garbage()
            self.world.advance(ALL_DELAYS)
            if not self._unfinished():
                break
        self._settle_or_advance(None)
        assert self._unfinished() == []
        assert self.world.violations == []
        assert self.world.controller is not None
        assert self.world.controller.statistics()["jobs"] == 0

    def _unfinished(self) -> list[str]:
        jobs = self.world.objects(BATCH_JOBS).items()
        return [name for name, job in jobs if not is_finished(job) and not is_foreign(job)]

    def _jobs(self) -> list[str]:
        """Names of the unfinished Jobs that are not being deleted."""
        jobs = self.world.objects(BATCH_JOBS).items()
        return [name for name, job in jobs if is_live(job) and not is_finished(job)]

    def _pods(self, *conditions: Any) -> list[str]:
        """Names of the pods of Jobs that meet the conditions."""
        pods = self.world.objects(PODS).items()
        return [
            name
            for name, pod in pods
            if pod["metadata"].get("ownerReferences") and all(each(pod) for each in conditions)
        ]

    # The user.

    @precondition(lambda self: len(self.world.objects(BATCH_JOBS)) < len(NAMES))
    @rule(spec=specs(), foreign=st.sampled_from([False, False, True]), pace=PACE)
    def submit(self, spec: Object, foreign: bool, pace: int | None) -> None:
        free = next(name for name in NAMES if name not in self.world.objects(BATCH_JOBS))
        if foreign:
            spec = {**spec, "managedBy": "example.com/other"}
        self.world.submit(free, **spec, settle=False)
        self._settle_or_advance(pace)

    @precondition(lambda self: self._jobs())
    @rule(which=WHICH, parallelism=st.integers(0, 4), pace=PACE)
    def scale(self, which: int, parallelism: int, pace: int | None) -> None:
        self._scale(_pick(self._jobs(), which), parallelism)
        self._settle_or_advance(pace)

    def _scale(self, name: str, parallelism: int) -> None:
        spec = self.world.job(name)["spec"]
        elastic = spec.get("completionMode") == "Indexed" and (
            spec["completions"] == spec["parallelism"]
        )
        if elastic and "maxFailedIndexes" not in spec and "successPolicy" not in spec:
            self.world.edit(name, parallelism=parallelism, completions=parallelism)
        else:
            self.world.edit(name, parallelism=parallelism)

    @precondition(lambda self: self._jobs())
    @rule(which=WHICH, pace=PACE)
    def suspend_or_resume(self, which: int, pace: int | None) -> None:
        name = _pick(self._jobs(), which)
        self.world.edit(name, suspend=not self.world.job(name)["spec"]["suspend"])
        self._settle_or_advance(pace)

    @precondition(lambda self: self._jobs())
    @rule(which=WHICH, seconds=st.sampled_from([1, 100, 2000]), pace=PACE)
    def change_the_deadline(self, which: int, seconds: int, pace: int | None) -> None:
        self.world.edit(_pick(self._jobs(), which), activeDeadlineSeconds=seconds)
        self._settle_or_advance(pace)

    @precondition(lambda self: self.world.objects(BATCH_JOBS))
    @rule(which=WHICH, collected=st.booleans(), pace=PACE)
    def delete_a_job(self, which: int, collected: bool, pace: int | None) -> None:
        self.world.delete(_pick(list(self.world.objects(BATCH_JOBS)), which))
        if collected:
            self.world.collect_garbage()
        self._settle_or_advance(pace)

    @precondition(lambda self: self._pods(is_live))
    @rule(which=WHICH, pace=PACE)
    def delete_a_pod(self, which: int, pace: int | None) -> None:
        self.world.delete_pod(_pick(self._pods(is_live), which))
        self._settle_or_advance(pace)

    @precondition(lambda self: self._pods(is_live))
    @rule(which=WHICH, pace=PACE)
    def orphan_a_pod(self, which: int, pace: int | None) -> None:
        """A client removes the owner reference: the Job adopts the pod again."""
        name = _pick(self._pods(is_live), which)
        meta = self.world.objects(PODS)[name]["metadata"]
        self.world.api.put(PODS, name, metadata={**meta, "ownerReferences": []})
        self._settle_or_advance(pace)

    @precondition(lambda self: self._pods(is_live))
    @rule(which=WHICH, pace=PACE)
    def relabel_a_pod(self, which: int, pace: int | None) -> None:
        """The selector no longer matches: the Job releases the pod."""
        name = _pick(self._pods(is_live), which)
        self.world.api.put(
            PODS, name, metadata={"labels": {"batch.kubernetes.io/controller-uid": "other"}}
        )
        self._settle_or_advance(pace)

    # The kubelet and the garbage collector.

    @precondition(lambda self: self._pods(is_active))
    @rule(pace=PACE)
    def all_pods_start(self, pace: int | None) -> None:
        for name in self._pods(is_active):
            self.world.start_pod(name)
        self._settle_or_advance(pace)

    @precondition(lambda self: self._pods(_may_end))
    @rule(which=WHICH, code=CODES, pace=PACE)
    def end(self, which: int, code: int, pace: int | None) -> None:
        self.world.end_pod(_pick(self._pods(_may_end), which), code=code)
        self._settle_or_advance(pace)

    @precondition(lambda self: self._pods(_may_end))
    @rule(codes=st.lists(CODES, min_size=1, max_size=4), pace=PACE)
    def several_end(self, codes: list[int], pace: int | None) -> None:
        for name, code in zip(self._pods(_may_end), codes, strict=False):
            self.world.end_pod(name, code=code)
        self._settle_or_advance(pace)

    @precondition(lambda self: self._pods(_may_end))
    @rule(which=WHICH, pace=PACE)
    def disrupt(self, which: int, pace: int | None) -> None:
        name = _pick(self._pods(_may_end), which)
        self.world.end_pod(name, conditions=[DISRUPTION])
        self._settle_or_advance(pace)

    @rule(pace=PACE)
    def finish_deletions(self, pace: int | None) -> None:
        self.world.finish_deletions()
        self._settle_or_advance(pace)

    @rule(pace=PACE)
    def collect_garbage(self, pace: int | None) -> None:
        self.world.collect_garbage()
        self._settle_or_advance(pace)

    # Faults, and time.

    requests_fail = fault_rule("", "/pods", "/jobs", "/status")
    a_watch_is_late = late_watch_rule(BATCH_JOBS, PODS)

    @rule()
    def after_all_delays_no_pod_is_missing(self) -> None:
        """INV-BJ-3, INV-BJ-4: a Job has as many pods as it needs."""
        self._settle_or_advance(None)
        self.world.advance(ALL_DELAYS)
        self._settle_or_advance(None)
        for name in self._jobs():
            job, pods = self.world.job(name), self.world.pods(name).values()
            if is_foreign(job):
                continue
            active = sum(map(is_active, pods))
            stopping = sum(not is_live(pod) and _has_not_ended(pod) for pod in pods)
            waits = job["spec"].get("podReplacementPolicy") == "Failed"
            expected = wanted(job, active)
            least = max(0, expected - stopping) if waits else expected
            assert least <= active <= expected, f"{active} instead of {expected}: {job}"

    @rule()
    def a_new_controller_finds_nothing_to_do(self) -> None:
        """INV-LC-4, INV-PIPE-1: what is in memory only is not needed."""
        self._settle_or_advance(None)
        self.world.advance(ALL_DELAYS)
        super().a_new_controller_finds_nothing_to_do()


def _pick(names: list[str], which: int) -> str:
    return names[which % len(names)]


def _has_not_ended(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") not in ENDED


def _may_end(pod: Object) -> bool:
    """Whether containers may end: a pod that is deleted before it has a node never gets one."""
    return _has_not_ended(pod) and (is_live(pod) or "nodeName" in pod.get("spec", {}))


class TestStateful(BatchMachine.TestCase):  # type: ignore[valid-type,misc]
    """INV-BJ-1 to INV-BJ-5, INV-BJ-8, INV-BJ-9, INV-BJ-11, INV-BJ-12."""

    settings = stateful_settings(steps=30, histories=40)
