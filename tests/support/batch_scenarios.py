"""Scenarios of batch/v1 Jobs, each to be run by two Job controllers."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Json = dict[str, Any]

NODE = "node-0"
JOB = "job"
"""Name of the Job of a scenario, if it has no other."""


class Run(Protocol):
    """A scenario in progress under one controller."""

    async def wait(self, what: str, condition: Callable[[Json], object]) -> None:
        """Wait until *condition* is true of the Job."""

    async def patch(self, spec: Json) -> None:
        """Patch the Job's spec."""

    async def wait_pods(self, what: str, condition: Callable[[Sequence[Json]], object]) -> None:
        """Wait until *condition* is true of the pods."""

    async def patch_pod(self, index: str, metadata: Json) -> None:
        """Patch the metadata of the oldest running pod with *index*."""

    async def delete_pod(self, index: str) -> None:
        """Delete the oldest running pod with *index*."""

    async def create_pod(self, body: Json) -> None:
        """Create a pod."""

    async def delete_job(self, propagation: str) -> None:
        """Delete the Job."""

    def finish(self, outcomes: Mapping[str, str]) -> None:
        """End running pods by index."""

    def release(self) -> None:
        """Let hanging pods terminate."""


Step = Callable[[Run], Awaitable[None]]


def status(**expected: int | str) -> Step:
    """Wait until the status has these values; 0 means absent."""

    def holds(job: Json) -> bool:
        found = job.get("status", {})
        return all(found.get(name, 0) == value for name, value in expected.items())

    return lambda run: run.wait(f"status {expected}", holds)


def condition(kind: str, value: str = "True") -> Step:
    """Wait for a condition."""

    def holds(job: Json) -> bool:
        found = job.get("status", {}).get("conditions", ())
        return any(each["type"] == kind and each["status"] == value for each in found)

    return lambda run: run.wait(f"condition {kind}={value}", holds)


def spec(**fields: Any) -> Step:
    """Patch the spec."""
    return lambda run: run.patch(fields)


def running(count: int) -> Step:
    """Wait until *count* pods run."""

    def holds(pods: Sequence[Json]) -> bool:
        live = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        return len([pod for pod in live if pod["status"].get("phase") == "Running"]) == count

    return lambda run: run.wait_pods(f"{count} running pods", holds)


def pods(count: int) -> Step:
    """Wait until there are *count* pods in all."""
    return lambda run: run.wait_pods(f"{count} pods", lambda found: len(found) == count)


def delete_pod(index: str = "") -> Step:
    """Delete a running pod."""
    return lambda run: run.delete_pod(index)


def patch_pod(index: str = "", **metadata: Any) -> Step:
    """Patch the metadata of a running pod."""
    return lambda run: run.patch_pod(index, metadata)


def create_pod(body: Json) -> Step:
    """Create a pod."""
    return lambda run: run.create_pod(body)


def delete_job(propagation: str) -> Step:
    """Delete the Job."""
    return lambda run: run.delete_job(propagation)


def finish(**outcomes: str) -> Step:
    """End running pods: those of index N by ``iN``, those without an index by ``all``."""
    given = {name.removeprefix("i").replace("all", ""): value for name, value in outcomes.items()}

    async def step(run: Run) -> None:
        run.finish(given)
        await asyncio.sleep(0)

    return step


async def release(run: Run) -> None:
    """Let hanging pods terminate."""
    run.release()
    await asyncio.sleep(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A Job, how its pods end, and what happens to it."""

    name: str
    spec: Json = field(default_factory=dict)
    template: Json = field(default_factory=dict)
    """Metadata and spec of the pod template, in addition to those of `pod_template`."""
    metadata: Json = field(default_factory=dict)
    outcomes: Sequence[str] | Mapping[str, Sequence[str]] = ("ok",)
    on_delete: str = "exit 143"
    before: Sequence[Step] = ()
    """Steps before the Job is created."""
    steps: Sequence[Step] = (condition("Complete"),)


def pod_template(more: Json) -> Json:
    """Return a pod template on the only node."""
    metadata, pod = more.get("metadata", {}), more.get("spec", {})
    return {
        "metadata": metadata,
        "spec": {
            "nodeName": NODE,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 5,
            "containers": [{"name": "main", "image": "busybox"}],
            **pod,
        },
    }


def _indexed(completions: int, **more: Any) -> Json:
    return {
        "completionMode": "Indexed",
        "completions": completions,
        "parallelism": completions,
        **more,
    }


def _rules(*rules: Json) -> Json:
    return {"rules": list(rules)}


def _on_exit(action: str, *values: int, operator: str = "In", **more: str) -> Json:
    codes = {"operator": operator, "values": list(values), **more}
    return {"action": action, "onExitCodes": codes}


def _on_disruption(action: str) -> Json:
    return {
        "action": action,
        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
    }


_OWN_LABELS = {"selector": {"matchLabels": {"app": "mine"}}, "manualSelector": True}
_OWN_TEMPLATE = {"metadata": {"labels": {"app": "mine"}}}
_ORPHAN = {
    "metadata": {"name": "orphan", "labels": {"app": "mine"}},
    "spec": pod_template({})["spec"],
}
_ON_FAILURE = {"spec": {"restartPolicy": "OnFailure"}}
_TWO_CONTAINERS = {
    "spec": {"containers": [{"name": name, "image": "busybox"} for name in ("main", "side")]}
}

SCENARIOS = (
    Scenario(name="one-pod"),
    Scenario(name="five-completions-two-at-once", spec={"completions": 5, "parallelism": 2}),
    Scenario(name="more-parallelism-than-completions", spec={"completions": 2, "parallelism": 5}),
    Scenario(
        name="work-queue",
        spec={"parallelism": 3},
        outcomes=["run"],
        steps=(running(3), finish(all="ok"), condition("Complete")),
    ),
    Scenario(name="work-queue-of-one", spec={"parallelism": 1}),
    Scenario(name="long-name", metadata={"name": "n" * 63}),
    Scenario(
        name="long-name-indexed",
        metadata={"name": "n" * 61},
        spec={"completions": 2, "completionMode": "Indexed"},
    ),
    Scenario(name="no-completions", spec={"completions": 0}),
    Scenario(
        name="no-parallelism-at-first",
        spec={"completions": 1, "parallelism": 0},
        steps=(status(active=0, terminating=0), spec(parallelism=1), condition("Complete")),
    ),
    Scenario(
        name="more-parallelism-later",
        spec={"completions": 3, "parallelism": 1},
        outcomes=["run"],
        steps=(
            running(1),
            spec(parallelism=3),
            running(3),
            finish(all="ok"),
            condition("Complete"),
        ),
    ),
    Scenario(
        name="less-parallelism-later",
        spec={"completions": 3, "parallelism": 3},
        outcomes=["run"],
        steps=(running(3), spec(parallelism=1), running(1), status(active=1, terminating=0)),
    ),
    Scenario(name="created-suspended", spec={"suspend": True}, steps=(condition("Suspended"),)),
    Scenario(
        name="resumed",
        spec={"suspend": True},
        steps=(condition("Suspended"), spec(suspend=False), condition("Complete")),
    ),
    Scenario(
        name="suspended-while-running",
        spec={"completions": 2, "parallelism": 2},
        outcomes=["run"],
        steps=(
            running(2),
            spec(suspend=True),
            condition("Suspended"),
            status(active=0, terminating=0),
            pods(0),
        ),
    ),
    Scenario(
        name="suspended-and-resumed",
        spec={"completions": 2, "parallelism": 2},
        outcomes=["run", "run", "ok"],
        steps=(
            running(2),
            spec(suspend=True),
            status(active=0, terminating=0),
            pods(0),
            spec(suspend=False),
            condition("Complete"),
        ),
    ),
    Scenario(
        name="suspended-when-complete",
        steps=(condition("Complete"), spec(suspend=True)),
    ),
    Scenario(
        name="suspended-indexed",
        spec=_indexed(2),
        outcomes={"0": ["ok"], "1": ["run", "ok"]},
        steps=(
            status(succeeded=1, active=1),
            spec(suspend=True),
            status(active=0, terminating=0),
            spec(suspend=False),
            condition("Complete"),
        ),
    ),
    Scenario(
        name="no-retries",
        spec={"backoffLimit": 0},
        outcomes=["exit 1"],
        steps=(condition("Failed"),),
    ),
    Scenario(
        name="one-retry",
        spec={"backoffLimit": 1},
        outcomes=["exit 1"],
        steps=(condition("Failed"),),
    ),
    Scenario(name="succeeds-at-the-second-attempt", outcomes=["exit 1", "ok"]),
    Scenario(
        name="two-of-four-fail-once",
        spec={"completions": 4, "parallelism": 4},
        outcomes=["exit 1", "exit 2", "ok"],
    ),
    Scenario(
        name="others-are-deleted-at-the-limit",
        spec={"completions": 3, "parallelism": 3, "backoffLimit": 0},
        outcomes=["exit 1", "run", "run"],
        steps=(condition("Failed"),),
    ),
    Scenario(
        name="a-higher-limit-while-it-waits",
        spec={"backoffLimit": 1},
        outcomes=["exit 1", "exit 1", "ok"],
        steps=(status(failed=1), spec(backoffLimit=2), condition("Complete")),
    ),
    Scenario(
        name="restarts-reach-the-limit",
        spec={"backoffLimit": 2},
        template=_ON_FAILURE,
        outcomes=["restarts 2"],
        steps=(condition("Failed"),),
    ),
    Scenario(
        name="one-restart-without-retries",
        spec={"backoffLimit": 0},
        template=_ON_FAILURE,
        outcomes=["restarts 1"],
        steps=(condition("Failed"),),
    ),
    Scenario(
        name="restarts-below-the-limit",
        spec={"backoffLimit": 3},
        template=_ON_FAILURE,
        outcomes=["restarts 1"],
        steps=(running(1), finish(all="ok"), status(active=1)),
    ),
    Scenario(
        name="deadline",
        spec={"activeDeadlineSeconds": 2, "completions": 2, "parallelism": 2},
        outcomes=["run"],
        steps=(condition("Failed"),),
    ),
    Scenario(
        name="deadline-set-later",
        outcomes=["run"],
        steps=(running(1), spec(activeDeadlineSeconds=2), condition("Failed")),
    ),
    Scenario(
        name="deadline-counts-from-resumption",
        spec={"activeDeadlineSeconds": 2, "suspend": True},
        outcomes=["run"],
        steps=(condition("Suspended"), spec(suspend=False), condition("Failed")),
    ),
    Scenario(
        name="deadline-with-pods-that-hang",
        spec={"activeDeadlineSeconds": 1},
        outcomes=["run"],
        on_delete="hang",
        steps=(condition("FailureTarget"), release, condition("Failed")),
    ),
    Scenario(
        name="policy-fails-the-job",
        spec={
            "completions": 2,
            "parallelism": 2,
            "podFailurePolicy": _rules(_on_exit("FailJob", 42)),
        },
        outcomes=["exit 42", "run"],
        steps=(condition("Failed"),),
    ),
    Scenario(
        name="policy-fails-the-job-by-condition",
        spec={"podFailurePolicy": _rules(_on_disruption("FailJob"))},
        outcomes=["evicted"],
        steps=(condition("Failed"),),
    ),
    Scenario(
        name="policy-ignores-disruptions",
        spec={"backoffLimit": 0, "podFailurePolicy": _rules(_on_disruption("Ignore"))},
        outcomes=["evicted", "ok"],
    ),
    Scenario(
        name="policy-counts",
        spec={"podFailurePolicy": _rules(_on_exit("Count", 7), _on_exit("FailJob", 1))},
        outcomes=["exit 7", "ok"],
    ),
    Scenario(
        name="policy-not-in",
        spec={"podFailurePolicy": _rules(_on_exit("FailJob", 1, 2, operator="NotIn"))},
        outcomes=["exit 3"],
        steps=(condition("Failed"),),
    ),
    Scenario(
        name="policy-for-one-container",
        spec={
            "podFailurePolicy": _rules(
                _on_exit("Ignore", 5, containerName="side"),
                _on_exit("FailJob", 5, containerName="main"),
            )
        },
        template=_TWO_CONTAINERS,
        outcomes=["exit 5"],
        steps=(condition("Failed"),),
    ),
    Scenario(
        name="policy-without-a-match",
        spec={"backoffLimit": 0, "podFailurePolicy": _rules(_on_exit("FailJob", 9))},
        outcomes=["exit 1"],
        steps=(condition("Failed"),),
    ),
    Scenario(
        name="policy-waits-for-terminating-pods",
        spec={"podFailurePolicy": _rules(_on_exit("FailJob", 42))},
        outcomes=["run", "ok"],
        on_delete="hang",
        steps=(
            running(1),
            delete_pod(),
            status(terminating=1, active=0),
            release,
            condition("Complete"),
        ),
    ),
    Scenario(
        name="policy-evaluates-terminated-pods",
        spec={"podFailurePolicy": _rules(_on_exit("FailJob", 143))},
        outcomes=["run"],
        steps=(running(1), delete_pod(), condition("Failed")),
    ),
    Scenario(
        name="replaced-while-terminating",
        outcomes=["run", "ok"],
        on_delete="hang",
        steps=(running(1), delete_pod(), status(succeeded=1), release, condition("Complete")),
    ),
    Scenario(
        name="replaced-when-failed",
        spec={"podReplacementPolicy": "Failed"},
        outcomes=["run", "ok"],
        on_delete="hang",
        steps=(
            running(1),
            delete_pod(),
            status(terminating=1, active=0),
            release,
            condition("Complete"),
        ),
    ),
    Scenario(
        name="a-deleted-pod-that-succeeds",
        outcomes=["run", "ok"],
        on_delete="ok",
        spec={"podReplacementPolicy": "Failed"},
        steps=(running(1), delete_pod(), condition("Complete")),
    ),
    Scenario(name="evicted", outcomes=["evicted", "ok"]),
    Scenario(name="indexed", spec=_indexed(3)),
    Scenario(name="indexed-one-at-a-time", spec=_indexed(3, parallelism=1)),
    Scenario(
        name="indexed-retries-an-index",
        spec=_indexed(3),
        outcomes={"1": ["exit 1", "ok"]},
    ),
    Scenario(
        name="indexed-gaps",
        spec=_indexed(6),
        outcomes={"1": ["run"], "4": ["run"]},
        steps=(status(succeeded=4, active=2, completedIndexes="0,2,3,5"),),
    ),
    Scenario(
        name="indexed-pod-deleted",
        spec=_indexed(2),
        outcomes={"0": ["run", "ok"], "1": ["run"]},
        steps=(
            running(2),
            delete_pod("0"),
            status(succeeded=1),
            finish(i1="ok"),
            condition("Complete"),
        ),
    ),
    Scenario(
        name="per-index-without-retries",
        spec=_indexed(3, backoffLimitPerIndex=0),
        outcomes={"1": ["exit 1"]},
        steps=(condition("Failed"),),
    ),
    Scenario(
        name="per-index-one-retry",
        spec=_indexed(3, backoffLimitPerIndex=1),
        outcomes={"1": ["exit 1", "ok"]},
    ),
    Scenario(
        name="per-index-retry-used-up",
        spec=_indexed(2, backoffLimitPerIndex=1),
        outcomes={"0": ["exit 1"]},
        steps=(condition("Failed"),),
    ),
    Scenario(
        name="no-failed-index-allowed",
        spec=_indexed(3, backoffLimitPerIndex=0, maxFailedIndexes=0),
        outcomes={"0": ["run"], "1": ["exit 1"], "2": ["run"]},
        steps=(condition("Failed"),),
    ),
    Scenario(
        name="too-many-failed-indexes",
        spec=_indexed(4, backoffLimitPerIndex=0, maxFailedIndexes=1),
        outcomes={"0": ["exit 1"], "1": ["exit 1"], "2": ["run"], "3": ["run"]},
        steps=(condition("Failed"),),
    ),
    Scenario(
        name="policy-fails-an-index",
        spec=_indexed(
            3, backoffLimitPerIndex=2, podFailurePolicy=_rules(_on_exit("FailIndex", 42))
        ),
        outcomes={"2": ["exit 42"]},
        steps=(condition("Failed"),),
    ),
    Scenario(
        name="policy-ignores-for-an-index",
        spec=_indexed(2, backoffLimitPerIndex=0, podFailurePolicy=_rules(_on_disruption("Ignore"))),
        outcomes={"1": ["evicted", "ok"]},
    ),
    Scenario(
        name="success-of-the-leader",
        spec=_indexed(3, successPolicy=_rules({"succeededIndexes": "0"})),
        outcomes={"1": ["run"], "2": ["run"]},
    ),
    Scenario(
        name="success-of-two",
        spec=_indexed(4, successPolicy=_rules({"succeededCount": 2})),
        outcomes={"1": ["run"], "3": ["run"]},
    ),
    Scenario(
        name="success-of-one-of-three",
        spec=_indexed(4, successPolicy=_rules({"succeededIndexes": "1-3", "succeededCount": 1})),
        outcomes={"0": ["run"], "1": ["run"], "2": ["ok"], "3": ["run"]},
    ),
    Scenario(
        name="success-by-the-second-rule",
        spec=_indexed(
            3, successPolicy=_rules({"succeededIndexes": "0"}, {"succeededIndexes": "2"})
        ),
        outcomes={"0": ["run"], "1": ["run"]},
    ),
    Scenario(
        name="success-with-a-failed-follower",
        spec=_indexed(2, backoffLimit=3, successPolicy=_rules({"succeededIndexes": "0"})),
        outcomes={"0": ["run"], "1": ["exit 1"]},
        steps=(status(failed=1), finish(i0="ok"), condition("Complete")),
    ),
    Scenario(
        name="elastic-up",
        spec=_indexed(2),
        outcomes={"0": ["run"], "1": ["run"]},
        steps=(
            running(2),
            spec(completions=4, parallelism=4),
            status(succeeded=2, completedIndexes="2,3"),
            finish(i0="ok", i1="ok"),
            condition("Complete"),
        ),
    ),
    Scenario(
        name="elastic-down",
        spec=_indexed(4),
        outcomes={str(index): ["run"] for index in range(4)},
        steps=(
            running(4),
            spec(completions=2, parallelism=2),
            running(2),
            finish(i0="ok", i1="ok"),
            condition("Complete"),
        ),
    ),
    Scenario(
        name="elastic-down-past-completed-indexes",
        spec=_indexed(4),
        outcomes={"0": ["run"], "1": ["run"]},
        steps=(
            status(succeeded=2, completedIndexes="2,3"),
            spec(completions=2, parallelism=2),
            status(succeeded=0),
            finish(i0="ok", i1="ok"),
            condition("Complete"),
        ),
    ),
    Scenario(name="selector-of-the-user", spec=_OWN_LABELS, template=_OWN_TEMPLATE),
    Scenario(
        name="adopts-a-pod",
        spec={**_OWN_LABELS, "completions": 2, "parallelism": 2},
        template=_OWN_TEMPLATE,
        outcomes=["run"],
        before=(create_pod(_ORPHAN), running(1)),
        steps=(running(2), status(active=2), finish(all="ok"), condition("Complete")),
    ),
    Scenario(
        name="releases-a-pod",
        spec=_OWN_LABELS,
        template=_OWN_TEMPLATE,
        outcomes=["run"],
        steps=(running(1), patch_pod(labels={"app": "other"}), pods(2), status(active=1)),
    ),
    Scenario(
        name="labels-and-annotations",
        metadata={"labels": {"team": "a"}, "annotations": {"note": "b"}},
        template={"metadata": {"labels": {"role": "c"}, "annotations": {"why": "d"}}},
    ),
    Scenario(
        name="index-variable-of-the-user",
        spec=_indexed(1),
        template={
            "spec": {
                "initContainers": [{"name": "init", "image": "busybox"}],
                "containers": [
                    {
                        "name": "main",
                        "image": "busybox",
                        "env": [{"name": "JOB_COMPLETION_INDEX", "value": "mine"}],
                    }
                ],
            }
        },
    ),
    Scenario(
        name="finalizers-of-the-user",
        template={"metadata": {"finalizers": ["example.com/keep"]}},
        steps=(condition("Complete"),),
    ),
    Scenario(
        name="a-name-with-dots",
        metadata={"name": "job.with.dots"},
        steps=(condition("Complete"),),
    ),
    Scenario(
        name="deleted-with-its-pods",
        spec={"completions": 2, "parallelism": 2},
        outcomes=["run"],
        steps=(running(2), delete_job("Background"), pods(0)),
    ),
    Scenario(
        name="deleted-in-the-foreground",
        spec={"completions": 2, "parallelism": 2},
        outcomes=["run"],
        steps=(running(2), delete_job("Foreground"), pods(0)),
    ),
    Scenario(
        name="deleted-without-its-pods",
        outcomes=["run"],
        steps=(running(1), delete_job("Orphan")),
    ),
    Scenario(
        name="deleted-after-its-ttl",
        spec={"ttlSecondsAfterFinished": 0},
        steps=(pods(1), pods(0)),
    ),
)
"""All scenarios; names are unique."""
