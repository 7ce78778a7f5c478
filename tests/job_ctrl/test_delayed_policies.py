"""Policies that answer later: as if each look asked about everything, at the price of what is due.

What happened to a pod long ago and is answered later costs nothing until then, and the answer is
what it would be if it were looked at all the time.
"""

import dataclasses
from itertools import count
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.jobs import job, job_view, pod_info, task

from batholith.job_ctrl import policies
from batholith.job_ctrl.decide import _apply_policies
from batholith.job_ctrl.deferred import DeferredItems
from batholith.job_ctrl.effects import (
    DeferLifecycleEvents,
    DropLifecycleEvents,
    Effect,
    RecordEvent,
    RequeueAfter,
    SetStatus,
)
from batholith.job_ctrl.job_view import JobView
from batholith.job_ctrl.phases import RULES
from batholith.job_ctrl.pod_info import LifecycleEvent
from batholith.job_ctrl.pod_tracker import PodTracker
from batholith.job_ctrl.restarts import target_for_event
from batholith.model.job import Action, Job, JobState, JobStatus
from batholith.model.pod import PodPhase

P = PodPhase
NAMES = ["a-0", "a-1", "b-0"]
POLICIES = st.lists(
    st.builds(
        lambda action, events, timeout: {"action": action, "events": events, **timeout},
        st.sampled_from(["AbortJob", "RestartJob", "RestartTask", "RestartPod", "ResumeJob"]),
        st.lists(
            st.sampled_from(["PodPending", "PodFailed", "PodEvicted", "TaskCompleted", "*"]),
            min_size=1,
            max_size=2,
        ),
        st.sampled_from([{}, {"timeout": "5s"}, {"timeout": "5s"}, {"timeout": "20s"}]),
    ),
    max_size=2,
)
STATUSES = st.builds(
    lambda phase, version: JobStatus(state=JobState(phase=phase), min_available=1, version=version),
    st.sampled_from(["Pending", "Running", "Running", "Aborted", "Aborting"]),
    st.integers(0, 1),
)
CHANGES = st.fixed_dictionaries(
    {
        "phase": st.sampled_from([*P, P.PENDING]),
        "uid": st.sampled_from(["u1", "u2"]),
        "terminating": st.sampled_from([False, False, False, True]),
        "version": st.sampled_from([0, 0, 0, 1]),
        "restarts": st.integers(0, 1),
    }
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(NAMES), CHANGES),
        st.tuples(st.just("put"), st.sampled_from(NAMES), CHANGES),
        st.tuples(st.sampled_from(["drop", "doom", "reprieve"]), st.sampled_from(NAMES)),
        st.tuples(st.just("policies"), POLICIES),
        st.tuples(st.just("status"), STATUSES),
        st.tuples(st.just("scale"), st.integers(0, 2)),
        st.tuples(st.just("wait"), st.sampled_from([0.5, 5.0, 14.0])),
    ),
    min_size=5,
    max_size=40,
)


class PolicyModel:
    """A ledger, and the job that it is kept for, as both change."""

    def __init__(self, policies: list[dict[str, Any]]) -> None:
        self.pod_tracker = PodTracker()
        self.policies, self.replicas = policies, 2
        self.status = JobStatus(state=JobState(phase="Running"), min_available=1)
        self.now = 100.0
        self.uids = dict[str, str]()
        self._set_job()

    def _set_job(self) -> None:
        tasks = task("a", self.replicas), task("b", 1)
        self.job: Job = job(*tasks, policies=self.policies, minAvailable=1, status=self.status)
        self.pod_tracker.set_job(self.job)

    def apply_step(self, step: str, what: Any, changes: dict[str, Any] | None = None) -> None:
        """Do one step of a random history."""
        match step:
            case "put":
                made = pod_info(what, **(changes or {}))
                made = dataclasses.replace(made, uid=f"{what}-{made.uid}")
                self.uids[what] = made.uid
                self.pod_tracker.update(made, now=self.now)
            case "drop":
                self.pod_tracker.remove(self.uids.get(what, ""), now=self.now)
            case "doom":
                self.pod_tracker.mark_deleting([self.uids.get(what, "")])
            case "reprieve":
                self.pod_tracker.unmark_deleting([self.uids.get(what, "")])
            case "policies":
                self.policies = what
            case "status":
                self.status = what
            case "scale":
                self.replicas = what
            case "wait":
                self.now += what
        self._set_job()

    def view(self) -> JobView:
        seen = job_view(self.job, podgroup="Running")
        return dataclasses.replace(seen, pod_tracker=self.pod_tracker, monotonic_now=self.now)

    def evaluate_policies(self) -> list[Effect]:
        """Ask the policies, and put down what concerns happenings."""
        asides, move = _apply_policies(self.view())
        effects = [*asides, *move]
        for effect in effects:
            if isinstance(effect, DropLifecycleEvents):
                self.pod_tracker.drop_events(effect.events)
            if isinstance(effect, DeferLifecycleEvents):
                self.pod_tracker.defer_events(effect.due_at, inputs=effect.inputs)
            if isinstance(effect, SetStatus):
                self.status = effect.status
                self._set_job()
        self.pod_tracker.validate()
        return effects


def evaluate_all(
    seen: JobView, events: list[LifecycleEvent]
) -> tuple[list[LifecycleEvent], float | None, str]:
    """The naive rule: all that happened, asked about one by one.

    Returns what needs no more thought, seconds until something else is due, and what is done.
    """
    over, waits = list[LifecycleEvent](), list[float]()
    for happening in events:
        policy = policies.match_policy(seen.job, happening, seen.pod_counts)
        if policy is None or policies.is_stale(seen.pod_tracker, happening, policy):
            over.append(happening)
            continue
        go = RULES[seen.phase].transitions.get(Action(policy.action))
        if go is None or target_for_event(policy.action, happening) is None:
            over.append(happening)
            continue
        left = (
            happening.occurred_at
            + policies.delay(policy, happening.event_type)
            - seen.monotonic_now
        )
        if left <= 0:
            return [*over, happening], None, policy.action
        waits.append(left)
    return over, min(waits, default=None), ""


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(rules=POLICIES, steps=STEPS)
def test_inv_vc_7_each_look_finds_what_asking_about_everything_would(
    rules: list[dict[str, Any]], steps: list[tuple[Any, ...]]
) -> None:
    story = PolicyModel(rules)
    for step in steps:
        story.apply_step(*step)
        over, left, action = evaluate_all(story.view(), story.pod_tracker.events)
        effects = story.evaluate_policies()
        forgotten = [
            one for each in effects if isinstance(each, DropLifecycleEvents) for one in each.events
        ]
        agains = [each.seconds for each in effects if isinstance(each, RequeueAfter)]
        done = [each.message for each in effects if isinstance(each, RecordEvent)]
        assert forgotten == over
        assert agains == ([] if left is None else [left])
        assert [said for said in done if said.startswith(f"Action {action} after")] == (
            [said for said in done if said.startswith("Action")]
        )
        assert any(said.startswith("Action") for said in done) == bool(action)


def pending_job(number: int, **fields: Any) -> PolicyModel:
    """A job of so many pods that all wait, with a policy against it; it has been looked at."""
    late = {"action": "AbortJob", "events": ["PodPending"], "timeout": "60s"}
    story = PolicyModel([late])
    story.apply_step("scale", number)
    for index in range(number):
        story.apply_step("put", f"a-{index}", {"phase": P.PENDING, **fields})
    story.evaluate_policies()
    return story


def evaluated_pods(model: PolicyModel) -> list[str]:
    """The pods that the next look asks the policies about."""
    due, _ = model.pod_tracker.due_events(model.now, inputs=policies.policy_inputs(model.job))
    return [one.pod for one in due]


def test_pods_that_wait_cost_a_look_nothing_until_they_are_due() -> None:
    story = pending_job(5)
    assert evaluated_pods(story) == []
    story.now += 30.0
    story.apply_step("put", "a-1", {"phase": P.RUNNING})
    story.apply_step("put", "a-2", {"phase": P.PENDING, "ready": True})  # something about it is new
    assert evaluated_pods(story) == ["j-a-2"]
    assert [one.seconds for one in story.evaluate_policies() if isinstance(one, RequeueAfter)] == [
        30.0
    ]
    assert evaluated_pods(story) == []
    story.now += 30.0
    assert evaluated_pods(story) == ["j-a-0", "j-a-2", "j-a-3", "j-a-4"]
    assert any(isinstance(one, SetStatus) for one in story.evaluate_policies())
    assert story.status.state.phase == "Aborting"


def test_a_pod_made_again_waits_its_own_time() -> None:
    story = pending_job(1, uid="u1")
    story.now += 40.0
    story.apply_step("doom", "a-0")
    story.apply_step("drop", "a-0")
    story.apply_step("put", "a-0", {"phase": P.PENDING, "uid": "u2"})
    assert [one.seconds for one in story.evaluate_policies() if isinstance(one, RequeueAfter)] == [
        60.0
    ]
    story.now += 20.0
    story.evaluate_policies()
    assert story.status.state.phase == "Running"


def test_a_policy_that_is_changed_counts_for_pods_that_wait_already() -> None:
    story = pending_job(2)
    story.now += 10.0
    story.apply_step("policies", [{**story.policies[0], "timeout": "30s"}])
    assert evaluated_pods(story) == ["j-a-0", "j-a-1"]
    assert [one.seconds for one in story.evaluate_policies() if isinstance(one, RequeueAfter)] == [
        20.0
    ]
    assert evaluated_pods(story) == []


class NaiveDeferredItems:
    """What a docket must do, without its shortcuts."""

    def __init__(self) -> None:
        self.items = dict[str, int]()
        self.deferred_until = dict[str, float]()
        self.inputs: object = None


@settings(deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["add", "discard", "reopen", "put off", "put off", "wait"]),
            st.sampled_from(["a", "b", "c", "d"]),
            st.integers(0, 6),
            st.sampled_from(["x", "x", "x", "y"]),
        ),
        max_size=60,
    )
)
def test_a_docket_calls_what_is_due_in_the_order_in_which_it_came(
    steps: list[tuple[str, str, int, str]],
) -> None:
    docket, naive, numbers, now = DeferredItems[str, int](), NaiveDeferredItems(), count(), 0.0
    for step, key, number, terms in steps:
        if step == "add":
            docket.add(key, matter := next(numbers))
            naive.deferred_until.pop(key, None)
            naive.items.pop(key, None)
            naive.items[key] = matter
        elif step == "discard":
            docket.discard(key)
            naive.items.pop(key, None)
            naive.deferred_until.pop(key, None)
        elif step == "reopen":
            docket.reactivate(key)
            naive.deferred_until.pop(key, None)
        elif step == "put off" and key in naive.items:
            docket.defer(key, until=now + number, inputs=terms)
            if terms != naive.inputs:
                naive.deferred_until.clear()
            naive.inputs, naive.deferred_until[key] = terms, now + number
        elif step == "wait":
            now += number
        naive.deferred_until = {
            key: until for key, until in naive.deferred_until.items() if until > now
        }
        assert docket.due(now, inputs=naive.inputs) == (
            [matter for key, matter in naive.items.items() if key not in naive.deferred_until],
            min(naive.deferred_until.values(), default=None),
        )
        assert docket.due(now, inputs="z") == ([*naive.items.values()], None)
        docket.validate()


def test_putting_off_again_and_again_leaves_nothing_behind() -> None:
    docket = DeferredItems[str, str]()
    docket.add("a", "a")
    for number in range(10_000):
        docket.defer("a", until=1e9 - number, inputs="x")
        docket.reactivate("a")
    assert len(docket._heap) < 200
