"""Delayed policies: each sync acts as if it evaluated all events, at the cost of the due ones."""

import dataclasses
from itertools import count
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.jobs import job, job_view, pod_info, task

from batholith.job_ctrl.effects import (
    DeferLifecycleEvents,
    DropLifecycleEvents,
    Effect,
    SetStatus,
)
from batholith.job_ctrl.status import policies
from batholith.job_ctrl.status.job_view import JobView
from batholith.job_ctrl.status.phases import RULES
from batholith.job_ctrl.status.restarts import target_for_event
from batholith.job_ctrl.tracker.deferred import DeferredItems
from batholith.job_ctrl.tracker.pod_info import LifecycleEvent
from batholith.job_ctrl.tracker.pod_tracker import PodTracker
from batholith.machinery.reconcile.controller import RequeueAfter
from batholith.machinery.reconcile.events import Event
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
        st.tuples(st.sampled_from(["drop", "delete", "undelete"]), st.sampled_from(NAMES)),
        st.tuples(st.just("policies"), POLICIES),
        st.tuples(st.just("status"), STATUSES),
        st.tuples(st.just("scale"), st.integers(0, 2)),
        st.tuples(st.just("wait"), st.sampled_from([0.5, 5.0, 14.0])),
    ),
    min_size=5,
    max_size=40,
)


class PolicyModel:
    """A tracker and its job, as both change."""

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
                created = pod_info(what, **(changes or {}))
                created = dataclasses.replace(created, uid=f"{what}-{created.uid}")
                self.uids[what] = created.uid
                self.pod_tracker.update(created, now=self.now)
            case "drop":
                self.pod_tracker.remove(self.uids.get(what, ""), now=self.now)
            case "delete":
                self.pod_tracker.mark_deleting([self.uids.get(what, "")])
            case "undelete":
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
        return msgspec.structs.replace(seen, pod_tracker=self.pod_tracker, monotonic_now=self.now)

    def evaluate_policies(self) -> list[Effect]:
        """Evaluate the policies, and apply the effects on lifecycle events."""
        view = self.view()
        asides, move = policies.apply_policies(view, RULES[view.phase].transitions(view))
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
    for event in events:
        policy = policies.match_policy(seen.job, event, seen.pod_counts)
        if policy is None or policies.is_stale(seen.pod_tracker, event, policy):
            over.append(event)
            continue
        go = RULES[seen.phase].transitions(seen).get(Action(policy.action))
        if go is None or target_for_event(policy.action, event) is None:
            over.append(event)
            continue
        left = event.occurred_at + policies.delay(policy, event.event_type) - seen.monotonic_now
        if left <= 0:
            return [*over, event], None, policy.action
        waits.append(left)
    return over, min(waits, default=None), ""


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(rules=POLICIES, steps=STEPS)
def test_inv_vc_7_each_sync_equals_an_evaluation_of_all_events(
    rules: list[dict[str, Any]], steps: list[tuple[Any, ...]]
) -> None:
    model = PolicyModel(rules)
    for step in steps:
        model.apply_step(*step)
        over, left, action = evaluate_all(model.view(), model.pod_tracker.events)
        effects = model.evaluate_policies()
        forgotten = [
            one for each in effects if isinstance(each, DropLifecycleEvents) for one in each.events
        ]
        agains = [each.seconds for each in effects if isinstance(each, RequeueAfter)]
        done = [each.message for each in effects if isinstance(each, Event)]
        assert forgotten == over
        assert agains == ([] if left is None else [left])
        assert [message for message in done if message.startswith(f"Action {action} after")] == (
            [message for message in done if message.startswith("Action")]
        )
        assert any(message.startswith("Action") for message in done) == bool(action)


def pending_job(number: int, **fields: Any) -> PolicyModel:
    """A job with *number* pending pods and a delayed policy, synced once."""
    delayed = {"action": "AbortJob", "events": ["PodPending"], "timeout": "60s"}
    model = PolicyModel([delayed])
    model.apply_step("scale", number)
    for index in range(number):
        model.apply_step("put", f"a-{index}", {"phase": P.PENDING, **fields})
    model.evaluate_policies()
    return model


def evaluated_pods(model: PolicyModel) -> list[str]:
    """The pods that the next look asks the policies about."""
    due, _ = model.pod_tracker.due_events(model.now, inputs=policies.policy_inputs(model.job))
    return [one.pod for one in due]


def test_deferred_events_cost_nothing_until_they_are_due() -> None:
    model = pending_job(5)
    assert evaluated_pods(model) == []
    model.now += 30.0
    model.apply_step("put", "a-1", {"phase": P.RUNNING})
    model.apply_step("put", "a-2", {"phase": P.PENDING, "ready": True})  # something about it is new
    assert evaluated_pods(model) == ["j-a-2"]
    assert [one.seconds for one in model.evaluate_policies() if isinstance(one, RequeueAfter)] == [
        30.0
    ]
    assert evaluated_pods(model) == []
    model.now += 30.0
    assert evaluated_pods(model) == ["j-a-0", "j-a-2", "j-a-3", "j-a-4"]
    assert any(isinstance(one, SetStatus) for one in model.evaluate_policies())
    assert model.status.state.phase == "Aborting"


def test_recreated_pod_has_its_own_timeout() -> None:
    model = pending_job(1, uid="u1")
    model.now += 40.0
    model.apply_step("delete", "a-0")
    model.apply_step("drop", "a-0")
    model.apply_step("put", "a-0", {"phase": P.PENDING, "uid": "u2"})
    assert [one.seconds for one in model.evaluate_policies() if isinstance(one, RequeueAfter)] == [
        60.0
    ]
    model.now += 20.0
    model.evaluate_policies()
    assert model.status.state.phase == "Running"


def test_changed_policy_applies_to_deferred_events() -> None:
    model = pending_job(2)
    model.now += 10.0
    model.apply_step("policies", [{**model.policies[0], "timeout": "30s"}])
    assert evaluated_pods(model) == ["j-a-0", "j-a-1"]
    assert [one.seconds for one in model.evaluate_policies() if isinstance(one, RequeueAfter)] == [
        20.0
    ]
    assert evaluated_pods(model) == []


class NaiveDeferredItems:
    """Reference model of DeferredItems."""

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
def test_deferred_items_are_due_in_the_order_in_which_they_were_added(
    steps: list[tuple[str, str, int, str]],
) -> None:
    deferred, naive, numbers, now = DeferredItems[str, int](), NaiveDeferredItems(), count(), 0.0
    for step, key, number, terms in steps:
        if step == "add":
            deferred.add(key, item := next(numbers))
            naive.deferred_until.pop(key, None)
            naive.items.pop(key, None)
            naive.items[key] = item
        elif step == "discard":
            deferred.discard(key)
            naive.items.pop(key, None)
            naive.deferred_until.pop(key, None)
        elif step == "reopen":
            deferred.reactivate(key)
            naive.deferred_until.pop(key, None)
        elif step == "put off" and key in naive.items:
            deferred.defer(key, until=now + number, inputs=terms)
            if terms != naive.inputs:
                naive.deferred_until.clear()
            naive.inputs, naive.deferred_until[key] = terms, now + number
        elif step == "wait":
            now += number
        naive.deferred_until = {
            key: until for key, until in naive.deferred_until.items() if until > now
        }
        assert deferred.due(now, inputs=naive.inputs) == (
            [item for key, item in naive.items.items() if key not in naive.deferred_until],
            min(naive.deferred_until.values(), default=None),
        )
        assert deferred.due(now, inputs="z") == ([*naive.items.values()], None)
        deferred.validate()


def test_repeated_deferral_does_not_grow_the_heap() -> None:
    deferred = DeferredItems[str, str]()
    deferred.add("a", "a")
    for number in range(10_000):
        deferred.defer("a", until=1e9 - number, inputs="x")
        deferred.reactivate("a")
    assert deferred.heap_size < 200
