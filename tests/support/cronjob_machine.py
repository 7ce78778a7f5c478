"""Random histories of CronJobs, with their controller killed, disconnected and lagging."""

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from support.cronjob_stateful import CronJobWorld
from support.stateful import PACE, ControllerMachine, fault_rule

NAMES = st.sampled_from(["a", "b"])
SCHEDULES = st.sampled_from(["* * * * *", "* * * * *", "*/2 * * * *", "*/5 * * * *", "@every 40s"])
POLICIES = st.sampled_from(["Allow", "Forbid", "Replace"])
LIMITS = st.sampled_from([None, 0, 1, 3])
WHICH = st.integers(0, 7)


class CronJobMachine(ControllerMachine[CronJobWorld]):
    """A CronJob controller under random operations and faults."""

    world: CronJobWorld
    world_type: type[CronJobWorld]

    def __init__(self) -> None:
        super().__init__(self.world_type())

    @initialize(schedule=SCHEDULES, policy=POLICIES)
    def begin(self, schedule: str, policy: str) -> None:
        self.world.put_cronjob("a", schedule=schedule, concurrencyPolicy=policy)
        self._settle_or_advance(None)

    # Users.

    @rule(
        name=NAMES,
        schedule=SCHEDULES,
        policy=POLICIES,
        successful=LIMITS,
        failed=LIMITS,
        deadline=st.sampled_from([None, None, None, 20]),
        pace=PACE,
    )
    def put_a_cronjob(
        self,
        name: str,
        schedule: str,
        policy: str,
        successful: int | None,
        failed: int | None,
        deadline: int | None,
        pace: int | None,
    ) -> None:
        self.world.put_cronjob(
            name,
            schedule=schedule,
            concurrencyPolicy=policy,
            successfulJobsHistoryLimit=successful,
            failedJobsHistoryLimit=failed,
            startingDeadlineSeconds=deadline,
        )
        self._settle_or_advance(pace)

    @precondition(lambda self: self.world.cronjobs)
    @rule(which=WHICH, suspend=st.booleans(), pace=PACE)
    def suspend_or_resume(self, which: int, suspend: bool, pace: int | None) -> None:
        names = sorted(self.world.cronjobs)
        self.world.put_cronjob(
            names[which % len(names)],
            schedule=self.world.cronjobs[names[which % len(names)]]["spec"]["schedule"],
            suspend=suspend,
        )
        self._settle_or_advance(pace)

    @rule(name=NAMES, pace=PACE)
    def delete_a_cronjob(self, name: str, pace: int | None) -> None:
        if name in self.world.cronjobs:
            self._settle_or_advance(None)
            self.world.remove_cronjob(name)
            # Its names may be used again in the next minute.
            self.world.run(self.world.pass_time(61))
        self._settle_or_advance(pace)

    @precondition(lambda self: self.world.cronjobs)
    @rule(which=WHICH, pace=PACE)
    def create_a_job_manually(self, which: int, pace: int | None) -> None:
        names = sorted(self.world.cronjobs)
        self.world.put_manual_job(f"manual-{which}", names[which % len(names)])
        self._settle_or_advance(pace)

    @precondition(lambda self: self.world.api.objects(self.world.kind.jobs))
    @rule(which=WHICH)
    def delete_a_job(self, which: int) -> None:
        """Once the status shows it: before that Kubernetes does not promise a single start."""
        self._settle_or_advance(None)
        jobs = sorted(self.world.api.objects(self.world.kind.jobs))
        if jobs:
            self.world.api.force_delete(
                self.world.kind.jobs, jobs[which % len(jobs)].partition("/")[2]
            )
        self._settle_or_advance(None)

    # The Job controller.

    @rule(which=WHICH, failed=st.sampled_from([False, False, True]), pace=PACE)
    def a_job_ends(self, which: int, failed: bool, pace: int | None) -> None:
        jobs = [
            job
            for job in self.world.api.objects(self.world.kind.jobs).values()
            if not self.world.is_finished(job)
        ]
        if jobs:
            self.world.finish(jobs[which % len(jobs)], failed=failed)
        self._settle_or_advance(pace)

    # Faults and time.

    @rule(pace=PACE)
    def a_minute_passes(self, pace: int | None) -> None:
        self.world.run(self.world.pass_time(60))
        self._settle_or_advance(pace)

    @rule(
        dies_after=st.integers(1, 30),
        ends=st.booleans(),
        downtime=st.sampled_from([0, 0, 70]),
        dies_again_after=st.none() | st.integers(5, 60),
    )
    def it_dies_while_it_starts_jobs(
        self, dies_after: int, ends: bool, downtime: int, dies_again_after: int | None
    ) -> None:
        self._reach_the_next_minute()
        self.world.run(self.world.run_iterations(dies_after))
        self.world.run(self.world.kill())
        if ends:
            self._end_all_jobs()
        self.world.run(self.world.pass_time(downtime))
        if dies_again_after is not None:
            self.world.run(self.world.start())
            self.world.run(self.world.run_iterations(dies_again_after))
            self.world.run(self.world.kill())
        self._settle_or_advance(None)

    @rule(
        what=st.sampled_from([500, "drop"]),
        path=st.sampled_from(["/jobs", "/status"]),
        late=st.sampled_from(["cronjobs", "jobs", None]),
        ends=st.booleans(),
    )
    def requests_fail_for_a_minute(
        self, what: int | str, path: str, late: str | None, ends: bool
    ) -> None:
        self._settle_or_advance(None)
        if late is not None:
            self.world.api.hold_watches(getattr(self.world.kind, late))
        method = "POST" if path == "/jobs" else "PATCH"
        self.world.api.inject_fault(what, times=1000, method=method, path=path)
        self.world.run(self.world.pass_time(61))
        if ends:
            self._end_all_jobs()
        self.world.run(self.world.pass_time(61))
        self.world.api.clear_faults()
        self.world.api.release_watches()
        self.world.run(self.world.pass_time(40))  # the longest delay after an outage
        self._settle_or_advance(None)

    def _reach_the_next_minute(self) -> None:
        self._settle_or_advance(None)
        seconds = 60 - self.world.clock.now().timestamp() % 60
        self.world.run(self.world.pass_time(seconds))
        self.world.clock.tick(0.2)

    def _end_all_jobs(self) -> None:
        for job in [*self.world.api.objects(self.world.kind.jobs).values()]:
            if not self.world.is_finished(job):
                self.world.finish(job)

    @rule(seconds=st.sampled_from([-3600, -90, -2, 2, 90, 3600]))
    def the_wall_clock_is_changed(self, seconds: int) -> None:
        self._settle_or_advance(None)
        self.world.clock.step_wall(seconds)
        self.world.run(self.world.pass_time(6))  # until the controller notices
        self._settle_or_advance(None)

    requests_fail = fault_rule("", "/cronjobs", "/status", "/jobs")

    @rule(late=st.sampled_from(["cronjobs", "jobs"]))
    def a_watch_is_late(self, late: str) -> None:
        self.world.api.hold_watches(getattr(self.world.kind, late))

    @rule()
    def a_new_controller_finds_nothing_to_do(self) -> None:
        """What is in memory only is not needed, unless another time is due."""
        self._settle_or_advance(None)
        writes, minute = self.world.controller_writes, self.world.minute
        self.world.run(self.world.kill())
        self._settle_or_advance(None)
        cronjobs = self.world.cronjobs.values()
        known = not any(
            "@every" in each["spec"]["schedule"] or self.world.was_changed(each)
            for each in cronjobs
        )
        if self.world.minute == minute and known:
            assert self.world.controller_writes == writes
