"""Rules that every change of a Job and its pods must keep, also if the controller is killed."""

from collections import Counter, defaultdict
from typing import Any

from support.inmemory_api import InMemoryApi

from batholith.batch_ctrl.indexes import IndexSet
from batholith.model.names import BATCH_JOBS, PODS

Object = dict[str, Any]

TRACKING = "batch.kubernetes.io/job-tracking"
INDEX = "batch.kubernetes.io/job-completion-index"
MONOTONIC = ("Failed", "Complete", "FailureTarget", "SuccessCriteriaMet")
EXCLUSIVE = (
    ("Failed", "Complete"),
    ("Complete", "FailureTarget"),
    ("SuccessCriteriaMet", "Failed"),
    ("SuccessCriteriaMet", "FailureTarget"),
)
ANNOUNCED_BY = {"Failed": "FailureTarget", "Complete": "SuccessCriteriaMet"}


class BatchAudit:
    """Checks every change, and records violations: raised they would look like a server error."""

    def __init__(self, api: InMemoryApi) -> None:
        self._api = api
        self.violations: list[str] = []
        self.controller_writes = 0
        self.status_writes: Counter[str] = Counter()
        """Status writes by uid of the Job."""
        self.released: defaultdict[str, dict[str, Object]] = defaultdict(dict)
        """By uid of the Job: pods that the controller released, as they were then, by uid."""
        self.created: Counter[str] = Counter()
        """Pods created by uid of the Job."""
        self.listed: defaultdict[str, dict[str, str]] = defaultdict(dict)
        """By uid of the Job: pods that were ever listed as uncounted, and in which list."""

        self._left: defaultdict[str, set[str]] = defaultdict(set)
        """By uid of the Job: pods that were released after they were listed."""
        self._counted: defaultdict[str, set[str]] = defaultdict(set)
        """By uid of the Job: pods that have left the lists for the counters."""

    def on_change(self, prefix: str, change: str, new: Object, old: Object | None) -> None:
        by_controller = bool(self._api.requesting_client)
        self.controller_writes += by_controller
        try:
            if prefix == PODS.path():
                self._check_pod(change, new, old, by_controller=by_controller)
            elif prefix == BATCH_JOBS.path() and change == "MODIFIED" and old is not None:
                self._check_job(new, old, by_controller=by_controller)
        except AssertionError as error:
            self.violations.append(str(error))

    # Pods.

    def _check_pod(
        self, change: str, new: Object, old: Object | None, *, by_controller: bool
    ) -> None:
        owner = owner_of(old or new)
        if not by_controller:
            return
        if change == "ADDED":
            self._check_creation(new)
        elif old is not None and owner and has_finalizer(old) and not has_finalizer(new):
            self._check_release(owner, old)

    def _check_creation(self, pod: Object) -> None:
        meta = pod["metadata"]
        job = self._job(owner_of(pod))
        self.created[owner_of(pod)] += 1
        assert has_finalizer(pod), f"INV-BJ-2: {meta['name']} has no finalizer"
        assert meta.get("generateName"), f"{meta['name']} has no generateName"
        if job is None:
            return  # deleted since: the garbage collector deletes the pod
        assert not is_finished(job), "a finished Job gets a pod"
        assert not is_foreign(job), "INV-BJ-12: a foreign Job gets a pod"

    def _check_release(self, owner: str, pod: Object) -> None:
        """INV-BJ-1, INV-BJ-2: a pod is released only if it is accounted for, and then once.

        An active pod whose deletion failed is released before: it may be adopted and counted later.
        """
        uid, job = pod["metadata"]["uid"], self._job(owner)
        phase = pod.get("status", {}).get("phase")
        name = pod["metadata"]["name"]
        assert uid not in self._left[owner], f"INV-BJ-1: counted {name} is released again"
        self.released[owner][uid] = pod
        if uid in self.listed[owner]:
            self._left[owner].add(uid)
        if job is None or is_finished(job) or "deletionTimestamp" in job["metadata"]:
            return
        if not is_selected(job, pod):
            return  # no longer the Job's
        assert not is_foreign(job), f"INV-BJ-12: {name} of a foreign Job is released"
        if phase == "Succeeded":
            assert self._is_success_counted(job, pod), f"INV-BJ-2: {name} is not counted"
        elif must_count_failure(job, pod):
            assert uid in self.listed[owner], f"INV-BJ-2: failed {name} is not counted"

    def _is_success_counted(self, job: Object, pod: Object) -> bool:
        if job["spec"].get("completionMode") != "Indexed":
            return pod["metadata"]["uid"] in self.listed[job["metadata"]["uid"]]
        completed = indexes(job, "completedIndexes")
        return not in_range(job, pod) or int(index_of(pod) or 0) in completed

    # Jobs.

    def _check_job(self, new: Object, old: Object, *, by_controller: bool) -> None:
        uid = new["metadata"]["uid"]
        if new.get("status") == old.get("status") or not by_controller:
            return
        assert not is_foreign(new), "INV-BJ-12: the status of a foreign Job is written"
        assert new.get("spec") == old.get("spec"), "a status write changes the spec"
        self.status_writes[uid] += 1
        self._check_lists(uid, new, old)
        check_transition(new, old)
        self._check_counters(new, old)

    def _check_lists(self, uid: str, new: Object, old: Object) -> None:
        """INV-BJ-1: a pod is listed once, and in one list."""
        before = {pod for uids in uncounted(old).values() for pod in uids}
        after = {pod for uids in uncounted(new).values() for pod in uids}
        again = (after - before) & self._counted[uid]
        assert not again, f"INV-BJ-1: {sorted(again)} are counted again"
        self._counted[uid] |= before - after
        for kind, uids in uncounted(new).items():
            for pod in uids:
                known = self.listed[uid].setdefault(pod, kind)
                assert known == kind, f"INV-BJ-1: {pod} is {known} and {kind}"

    def _check_counters(self, new: Object, old: Object) -> None:
        """INV-BJ-1: counters and lists together contain each pod once."""
        uid = new["metadata"]["uid"]
        for kind in ("succeeded", "failed"):
            if kind == "succeeded" and new["spec"].get("completionMode") == "Indexed":
                continue
            total = new["status"].get(kind, 0) + len(uncounted(new)[kind])
            listed = sum(each == kind for each in self.listed[uid].values())
            assert total == listed, f"INV-BJ-1: {kind} is {total}, but {listed} pods ended so"

    def _job(self, uid: str) -> Object | None:
        jobs = self._api.objects(BATCH_JOBS).values()
        return next((job for job in jobs if job["metadata"]["uid"] == uid), None)


def check_transition(new: Object, old: Object) -> None:
    """INV-BJ-11: check a status write by the rules of the API server."""
    status, before = new["status"], old.get("status", {})
    assert status.get("failed", 0) >= before.get("failed", 0), "INV-BJ-5: failed decreases"
    spec = new["spec"]
    elastic = spec.get("completionMode") == "Indexed" and spec.get("completions") == spec.get(
        "parallelism"
    )
    decreases = status.get("succeeded", 0) < before.get("succeeded", 0)
    assert elastic or not decreases, "INV-BJ-11: succeeded decreases"
    for kind in MONOTONIC:
        kept = condition(new, kind) == "True" or condition(old, kind) != "True"
        assert kept, f"INV-BJ-5: {kind} is taken back"
    for kinds in EXCLUSIVE:
        both = all(condition(new, kind) == "True" for kind in kinds)
        assert not both, f"INV-BJ-5: {kinds}"
    for kind, announcement in ANNOUNCED_BY.items():
        if condition(new, kind) == "True":
            assert condition(new, announcement) == "True", f"INV-BJ-11: {kind} is not announced"
    assert not is_finished(old), "INV-BJ-5: a finished Job is written"
    check_numbers(new)
    check_indexes(new)
    check_times(new, old)


def check_numbers(job: Object) -> None:
    """Check the numbers of pods in a status."""
    status = job["status"]
    active, ready = status.get("active", 0), status.get("ready", 0)
    assert 0 <= ready <= active, f"INV-BJ-11: {ready} of {active} pods are ready"
    lists = [uid for uids in uncounted(job).values() for uid in uids]
    assert len(lists) == len(set(lists)), "INV-BJ-1: a pod is listed twice"
    if is_finished(job):
        left = (active, status.get("terminating", 0), len(lists))
        assert left == (0, 0, 0), f"INV-BJ-11: finished with {left}"


def check_indexes(job: Object) -> None:
    """INV-BJ-9: check the texts of indexes."""
    completed, failed = (indexes(job, name) for name in ("completedIndexes", "failedIndexes"))
    assert completed.intersection_total(failed) == 0, "INV-BJ-9: an index completed and failed"
    for name, found in (("completedIndexes", completed), ("failedIndexes", failed)):
        assert str(found) == job["status"].get(name, ""), "INV-BJ-9: the text is not canonical"
    if job["spec"].get("completionMode") == "Indexed":
        assert job["status"].get("succeeded", 0) == completed.total, "INV-BJ-1: indexes differ"


def check_times(new: Object, old: Object) -> None:
    """Check the start and completion time."""
    status, before = new["status"], old.get("status", {})
    complete = condition(new, "Complete") == "True"
    assert complete == ("completionTime" in status), "INV-BJ-11: completionTime"
    if complete:
        assert status["completionTime"] >= status.get("startTime", ""), "INV-BJ-11: startTime"
        assert status["completionTime"] == transition_time(new, "Complete")
    resumed = condition(new, "Suspended") != condition(old, "Suspended")
    unchanged = before.get("startTime") in (None, status.get("startTime"))
    assert resumed or unchanged, "INV-BJ-11: startTime changes"


def must_count_failure(job: Object, pod: Object) -> bool:
    """Whether a pod that did not succeed is released only after it was counted as failed."""
    if not in_range(job, pod) or condition(job, "SuccessCriteriaMet") == "True":
        return False
    spec = job["spec"]
    if spec.get("podFailurePolicy"):
        return False  # a failure may be ignored
    if pod.get("status", {}).get("phase") == "Failed" or condition(job, "FailureTarget") == "True":
        return True
    waits = spec.get("podReplacementPolicy") == "Failed"
    return "deletionTimestamp" in pod["metadata"] and not waits


def is_selected(job: Object, pod: Object) -> bool:
    selector: Object = job["spec"]["selector"]["matchLabels"]
    return bool(selector.items() <= pod["metadata"].get("labels", {}).items())


def owner_of(obj: Object) -> str:
    owners = [one["uid"] for one in obj["metadata"].get("ownerReferences", ())]
    return owners[0] if owners else ""


def has_finalizer(pod: Object) -> bool:
    return TRACKING in pod["metadata"].get("finalizers", ())


def index_of(pod: Object) -> str | None:
    index: str | None = pod["metadata"].get("annotations", {}).get(INDEX)
    return index


def in_range(job: Object, pod: Object) -> bool:
    """Whether the pod has an index that the Job has."""
    if job["spec"].get("completionMode") != "Indexed":
        return True
    index = index_of(pod)
    return index is not None and int(index) < job["spec"]["completions"]


def indexes(job: Object, name: str) -> IndexSet:
    return IndexSet.parse(job["status"].get(name, ""), 10**6)


def uncounted(job: Object) -> dict[str, list[str]]:
    lists = job.get("status", {}).get("uncountedTerminatedPods", {})
    return {kind: lists.get(kind, []) for kind in ("succeeded", "failed")}


def condition(job: Object, kind: str) -> str:
    """Return the status of a condition; empty if it is missing."""
    conditions = job.get("status", {}).get("conditions", ())
    return next((str(one["status"]) for one in conditions if one["type"] == kind), "")


def transition_time(job: Object, kind: str) -> str:
    conditions = job["status"]["conditions"]
    return next(str(one["lastTransitionTime"]) for one in conditions if one["type"] == kind)


def is_finished(job: Object) -> bool:
    return "True" in (condition(job, "Complete"), condition(job, "Failed"))


def is_foreign(job: Object) -> bool:
    """Whether another controller manages the Job."""
    ours = (None, "kubernetes.io/job-controller", "batholith.io/job-controller")
    return job["spec"].get("managedBy") not in ours
