"""The rules that every change of a job's world must keep, whatever came before."""

from collections import defaultdict
from typing import Any

from support_local import LocalApi

from batholith.model.names import COMMANDS, JOBS, PODGROUPS, PODS

Object = dict[str, Any]

STOPS = {"Aborting", "Completing", "Terminating"}
EDGES = {
    "": {"Pending"},
    "Pending": {"Running", "Restarting", *STOPS},
    "Running": {"Pending", "Restarting", "Completed", "Failed", *STOPS},
    "Restarting": {"Pending", "Failed", *STOPS},
    "Aborting": {"Aborted", "Restarting"},
    "Aborted": {"Restarting"},
    "Completing": {"Completed"},
    "Terminating": {"Terminated"},
    "Completed": set(),
    "Failed": set(),
    "Terminated": set(),
}
FINAL = {"Completed", "Failed", "Terminated"}
SERVED = {"Pending", "Running"}
ADMITTED = {"Inqueue", "Running", "Unknown", "Completed"}


def phase_of(job: Object) -> str:
    phase: str = job.get("status", {}).get("state", {}).get("phase", "")
    return phase


def owner_of(obj: Object) -> str:
    """Uid of the job that *obj* belongs to."""
    owners = [one["uid"] for one in obj["metadata"].get("ownerReferences", ())]
    return owners[0] if owners else ""


class JobAudit:
    """Hears every change, and notes those that break a rule."""

    def __init__(self, api: LocalApi) -> None:
        self._api = api
        self._obeyed: set[str] = set()
        self._commands: set[str] = set()
        self._let_in: set[tuple[str, int]] = set()
        """(uid of a job, version) for which a PodGroup of that time was admitted."""
        self._gangs: dict[str, tuple[str, int]] = {}
        """By uid of a PodGroup: the job and version it was made for."""
        self._evicted: defaultdict[str, set[str]] = defaultdict(set)
        self._failed: defaultdict[str, set[str]] = defaultdict(set)
        self._asked: dict[str, Object] = {}
        """Pods that the controller has asked to go, by uid."""
        self._doomed: set[str] = set()
        self._made: set[tuple[str, str, str]] = set()
        """(uid of a job, pod, version) that must not be made again without a reason."""
        self._fewest: dict[tuple[str, str], int] = {}
        """Replicas that a task has had at least, by uid of its job and name."""
        self.phases: list[str] = []
        """That jobs have gone through."""
        self.broken: list[str] = []
        """What was wrong; raised here it would only look like an answer to the controller."""

    # What others did, told beforehand.

    def evicted(self, name: str) -> None:
        """Somebody other than the controller deletes a pod."""
        self._evicted[owner_of(self._pod(name))].add(name)
        self._made.discard(_made_as(self._pod(name)))

    def failed(self, name: str) -> None:
        """A pod fails."""
        self._failed[owner_of(self._pod(name))].add(name)

    def taken_over(self) -> None:
        """A new controller starts; it may take for evicted what nothing shows to be its own doing.

        Its forerunner asked pods to go, and neither a restart of a part of the job under way nor
        the number of replicas says so any longer.
        """
        job = self._api.objects(JOBS).get("d/j")
        for pod in self._asked.values():
            uid, name = owner_of(pod), pod["metadata"]["name"]
            if job is None or job["metadata"]["uid"] != uid or not _shows(job, pod):
                self._evicted[uid].add(name)
        self._asked.clear()

    def going(self, job: Object) -> None:
        """The controller has seen that the job is being deleted."""
        self._doomed.add(job["metadata"]["uid"])

    def _pod(self, name: str) -> Object:
        return self._api.objects(PODS)[f"d/{name}"]

    # What happens.

    def hear(self, prefix: str, change: str, new: Object, old: Object | None) -> None:
        """Check one change."""
        try:
            self._check(prefix, change, new, old)
        except AssertionError as error:
            self.broken.append(f"{error}")

    def _check(self, prefix: str, change: str, new: Object, old: Object | None) -> None:
        assert sum(one.get("controller", False) for one in _owners(new)) <= 1, "INV-OW-1"
        if change == "ADDED" and self._api.asked_by:
            assert owner_of(new) not in self._doomed, "INV-OW-4: a child of a job that goes"
        if prefix == JOBS.path() and change != "DELETED":
            self._job(new, old or {})
        elif prefix == PODS.path() and self._api.asked_by:
            self._pod_by_controller(change, new)
        elif prefix == PODGROUPS.path():
            self._podgroup(change, new)
        elif prefix == COMMANDS.path() and change == "ADDED":
            self._commands.add(new["metadata"]["uid"])

    def _job(self, new: Object, old: Object) -> None:
        for task in new["spec"]["tasks"]:
            key = new["metadata"]["uid"], task["name"]
            self._fewest[key] = min(task["replicas"], self._fewest.get(key, task["replicas"]))
        was, now = phase_of(old), phase_of(new)
        before, after = old.get("status", {}), new.get("status", {})
        if was != now:
            self.phases.append(now)
            assert now in EDGES[was], f"from {was} to {now}: {after}"
        assert was not in FINAL or now == was, "terminal phases stay"
        version, retries = after.get("version", 0), after.get("retryCount", 0)
        assert version - before.get("version", 0) in (0, 1), after
        assert retries - before.get("retryCount", 0) in (0, 1), after
        if retries > before.get("retryCount", 0):
            assert (was in SERVED, now) == (True, "Restarting")
        if self._api.asked_by:
            assert new["spec"] == old["spec"]
            self._cause(new, before.get("state", {}).get("message", ""))

    def _cause(self, job: Object, before: str) -> None:
        """What the status gives as the cause of a phase has really happened."""
        said = job["status"]["state"].get("message", "")
        if said == before:
            return
        uid = job["metadata"]["uid"]
        if said.startswith("Command "):
            command = said.split("(")[1].rstrip(")")
            assert command in self._commands
            assert command not in self._obeyed, "INV-VC-1: a Command took effect twice"
            self._obeyed.add(command)
        for event, world in (("PodEvicted", self._evicted), ("PodFailed", self._failed)):
            _, found, rest = said.partition(f"{event} of ")
            if found:
                assert rest.split(" ")[0] in world[uid], f"{said}: that did not happen"

    def _pod_by_controller(self, change: str, pod: Object) -> None:
        body = self._api.seen[-1].body
        name, notes = pod["metadata"]["name"], pod["metadata"]["annotations"]
        job = self._api.objects(JOBS).get("d/j")
        if change != "ADDED":
            assert body["preconditions"]["uid"] == pod["metadata"]["uid"], "INV-OW-2"
        if job is None or job["metadata"]["uid"] != owner_of(pod):
            return  # its job went in this moment
        if change != "ADDED":
            fewest = self._fewest.get((owner_of(pod), notes["volcano.sh/task-spec"]), 0)
            if phase_of(job) == "Restarting" or int(notes["volcano.sh/task-index"]) >= fewest:
                self._made.discard(_made_as(pod))
                self._asked[pod["metadata"]["uid"]] = pod
            return
        assert _made_as(pod) not in self._made, f"{name} is made twice for a version"
        self._made.add(_made_as(pod))
        version = int(notes["volcano.sh/job-version"])
        assert phase_of(job) in SERVED, f"{name} is made while the job is {phase_of(job)}"
        assert version == job["status"].get("version", 0), f"{name} is made for another version"
        admitted = (job["metadata"]["uid"], version) in self._let_in
        assert admitted, f"INV-VC-6: {name} is made before the gang is admitted"

    def _podgroup(self, change: str, group: Object) -> None:
        uid, owner = group["metadata"]["uid"], owner_of(group)
        job = self._api.objects(JOBS).get("d/j")
        if job is None or job["metadata"]["uid"] != owner:
            return
        version = job.get("status", {}).get("version", 0)
        if change == "ADDED":
            assert phase_of(job) in SERVED, f"a PodGroup is made while the job is {phase_of(job)}"
            self._gangs[uid] = (owner, version)
        if group.get("status", {}).get("phase") in ADMITTED and uid in self._gangs:
            self._let_in.add(self._gangs[uid])


def _owners(obj: Object) -> list[Object]:
    owners: list[Object] = obj["metadata"].get("ownerReferences", [])
    return owners


def _made_as(pod: Object) -> tuple[str, str, str]:
    meta = pod["metadata"]
    return owner_of(pod), meta["name"], meta["annotations"]["volcano.sh/job-version"]


def _shows(job: Object, pod: Object) -> bool:
    """Whether *job* says that *pod* was asked to go."""
    meta, state = pod["metadata"], job["status"]["state"]
    task = meta["annotations"]["volcano.sh/task-spec"]
    part = meta["labels"].get("volcano.sh/partition-id", "")
    replicas = {one["name"]: one["replicas"] for one in job["spec"]["tasks"]}
    if int(meta["annotations"]["volcano.sh/task-index"]) >= replicas.get(task, 0):
        return True
    targets = {f"pod {meta['name']}", f"task {task}", f"partition {task}/{part}"}
    restarts = state["phase"] in ("Restarting", "Pending")
    return restarts and state.get("message", "").partition(":")[0] in targets
