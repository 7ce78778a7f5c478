"""The batch/v1 Job controller in a simulated cluster: user, scheduler, kubelet, garbage collector.

Time is virtual and everything runs in one loop, so that each history is deterministic. Objects are
called by their name; they are in namespace d.
"""

import random
from collections.abc import Iterator
from typing import Any

from aiohttp import web
from support.batch_audit import BatchAudit
from support.inmemory_api import InMemoryApi, InMemoryClient
from support.inmemory_objects import Target, status_response
from support.virtual_controller import CheckedWorld

from batholith.batch_ctrl.controller import BatchJobController
from batholith.batch_ctrl.settings import ALL_JOBS, BatchJobSettings
from batholith.local.apiserver.kinds.strategic_merge import PatchError, strategic_merge
from batholith.machinery.pod_control import NameGenerator
from batholith.model.names import BATCH_JOBS, PODS

Object = dict[str, Any]

STRATEGIC = "strategic-merge-patch"
TRACKING = "batch.kubernetes.io/job-tracking"
UID_LABEL = "batch.kubernetes.io/controller-uid"
ENDED = ("Succeeded", "Failed")
SETTINGS = BatchJobSettings(managed_by=ALL_JOBS, delete_finished=True, workers=2)
GRACE = 30


class BatchApi(InMemoryApi):
    """A server that honours finalizers, and applies strategic merge patches."""

    def _handle_object(self, request: web.Request, target: Target, body: Any) -> web.Response:
        old = self.stores.setdefault(target.prefix, {}).get(target.key)
        content_type = request.headers.get("Content-Type", "")
        if request.method == "PATCH" and STRATEGIC in content_type and old is not None:
            return self._patch_strategically(target, old, body)
        return super()._handle_object(request, target, body)

    def _patch_strategically(self, target: Target, old: Object, body: Object) -> web.Response:
        for name in ("uid", "resourceVersion"):
            if body["metadata"].get(name) not in (None, old["metadata"][name]):
                return status_response(409, "Conflict", f"{name} is {old['metadata'][name]}")
        resource = PODS if target.prefix == PODS.path() else BATCH_JOBS
        try:
            new = strategic_merge(resource, old, body)
        except PatchError as error:
            return status_response(error.status, error.reason, error.message)
        return web.json_response(self._store(target.prefix, target.key, new))

    def _store(self, prefix: str, key: str, obj: Object) -> Object:
        stored = super()._store(prefix, key, obj)
        meta = stored["metadata"]
        released = not meta.get("finalizers") and meta.get("deletionTimestamp")
        if released and not meta.get("deletionGracePeriodSeconds"):
            return self._remove(prefix, key)
        return stored

    def _delete(self, prefix: str, key: str) -> Object:
        obj = self.stores[prefix][key]
        meta = obj["metadata"]
        if "deletionTimestamp" in meta:
            return obj
        grace = GRACE if prefix == PODS.path() and self._is_running(obj) else 0
        finalizers = list(meta.get("finalizers", ()))
        body = (self.requesting_client and self.received[-1].body) or {}
        if body.get("propagationPolicy") == "Foreground":
            finalizers.append("foregroundDeletion")
        if not finalizers and not grace:
            return self._remove(prefix, key)
        deleted = {
            **meta,
            "finalizers": finalizers,
            "deletionTimestamp": self.now(),
            "deletionGracePeriodSeconds": grace,
        }
        return self._store(prefix, key, {**obj, "metadata": deleted})

    def _remove(self, prefix: str, key: str) -> Object:
        return super(InMemoryApi, self)._delete(prefix, key)

    @staticmethod
    def _is_running(pod: Object) -> bool:
        ended = pod.get("status", {}).get("phase") in ENDED
        return bool(pod.get("spec", {}).get("nodeName")) and not ended


class BatchWorld(CheckedWorld[BatchJobController]):
    """The server with at most one controller, and what others do to Jobs."""

    def __init__(self, settings: BatchJobSettings = SETTINGS) -> None:
        super().__init__()
        self.settings = settings
        self.random = random.Random(1)
        self.api: BatchApi = BatchApi(self.clock, self.loop)
        self.audit = BatchAudit(self.api)
        self.violations = self.audit.violations
        self.api.on_change = self._on_change

    def make_controller(self, client: InMemoryClient) -> BatchJobController:
        """A new controller."""
        return BatchJobController(
            client,
            settings=self.settings,
            clock=self.clock,
            recorder=self.recorder,
            names=NameGenerator(self.random.choice),
        )

    def _on_change(self, prefix: str, change: str, new: Object, old: Object | None) -> None:
        self.audit.on_change(prefix, change, new, old)
        self.controller_writes = self.audit.controller_writes

    # What there is.

    def job(self, name: str = "j") -> Object:
        return self.objects(BATCH_JOBS)[name]

    def status(self, name: str = "j") -> Object:
        status: Object = self.job(name).get("status", {})
        return status

    def condition(self, kind: str, name: str = "j") -> Object:
        """Return a condition; empty if it is missing."""
        found = [one for one in self.status(name).get("conditions", ()) if one["type"] == kind]
        return found[0] if found else {}

    def pods(self, job: str = "j") -> dict[str, Object]:
        """Pods that the Job controls."""
        uid = self.objects(BATCH_JOBS).get(job, {}).get("metadata", {}).get("uid")
        return {
            name: pod
            for name, pod in self.objects(PODS).items()
            if any(one["uid"] == uid for one in pod["metadata"].get("ownerReferences", ()))
        }

    def active(self, job: str = "j") -> list[str]:
        """Names of the active pods."""
        return [name for name, pod in self.pods(job).items() if is_active(pod)]

    def reasons(self, reason: str = "") -> list[str]:
        """Reasons of the events so far, or the messages of those with *reason*."""
        return [one[4] if reason else one[3] for one in self.recorder.events if reason in one[3]]

    # The user.

    def submit(
        self, name: str = "j", *, never: bool = True, settle: bool = True, **spec: Any
    ) -> None:
        """Create a Job as the API server stores it; with *settle* the controller syncs it."""
        uid = f"uid-of-{name}-{self.api.version}"
        policy = {"restartPolicy": "Never" if never else "OnFailure"}
        labels = {UID_LABEL: uid, "batch.kubernetes.io/job-name": name}
        defaults: Object = {
            "parallelism": 1,
            "completionMode": "NonIndexed",
            "suspend": False,
            "selector": {"matchLabels": {UID_LABEL: uid}},
            "template": {
                "metadata": {"labels": labels},
                "spec": {**policy, "containers": [{"name": "main", "image": "i"}]},
            },
        }
        if "completions" not in spec and "parallelism" not in spec:
            defaults["completions"] = 1
        self.api.put(BATCH_JOBS, name, metadata={"uid": uid}, spec={**defaults, **spec})
        if settle:
            self.settle()

    def edit(self, name: str = "j", **changes: Any) -> None:
        """Change the spec."""
        self.api.put(BATCH_JOBS, name, spec=changes)

    def delete(self, name: str = "j") -> None:
        """Delete a Job in the background: its pods follow in :meth:`collect_garbage`."""
        self.api.request_delete(BATCH_JOBS, name)

    def delete_pod(self, name: str) -> None:
        self.api.request_delete(PODS, name)

    # The scheduler and the kubelet.

    def start_pod(self, name: str, *, ready: bool = True) -> None:
        """Bind a pod and run it."""
        condition = {"type": "Ready", "status": "True" if ready else "False"}
        condition["lastTransitionTime"] = self.api.now()
        self.api.put(
            PODS,
            name,
            spec={"nodeName": "n"},
            status={"phase": "Running", "conditions": [condition]},
        )

    def end_pod(self, name: str, *, code: int = 0, conditions: list[Object] | None = None) -> None:
        """The containers of a pod have ended."""
        ended = {"exitCode": code, "finishedAt": self.api.now()}
        status: Object = {
            "phase": "Failed" if code or conditions else "Succeeded",
            "containerStatuses": [{"name": "main", "state": {"terminated": ended}}],
            "conditions": conditions or [],
        }
        self.api.put(PODS, name, spec={"nodeName": "n"}, status=status)

    def restart_container(self, name: str) -> None:
        """The kubelet restarts the container of a running pod."""
        statuses = self.objects(PODS)[name].get("status", {}).get("containerStatuses", [{}])
        count = statuses[0].get("restartCount", 0) + 1
        self.api.put(
            PODS, name, status={"containerStatuses": [{"name": "main", "restartCount": count}]}
        )

    def finish_deletion(self, name: str) -> None:
        """The kubelet has ended a terminating pod."""
        pod = self.objects(PODS)[name]
        if pod.get("status", {}).get("phase") not in ENDED:
            self.end_pod(name, code=137)
        if name in self.objects(PODS):
            self.api.put(PODS, name, metadata={"deletionGracePeriodSeconds": 0})

    def finish_deletions(self) -> bool:
        """Finish all deletions of pods; return whether there were any."""
        waiting = [
            name
            for name, pod in self.objects(PODS).items()
            if pod["metadata"].get("deletionGracePeriodSeconds")
        ]
        for name in waiting:
            self.finish_deletion(name)
        return bool(waiting)

    # The garbage collector.

    def collect_garbage(self) -> bool:
        """Delete pods whose Job is deleted; remove Jobs that waited for theirs."""
        jobs = {job["metadata"]["uid"]: name for name, job in self.objects(BATCH_JOBS).items()}
        changed = False
        for name, uid in list(self._owned_pods()):
            job = self.objects(BATCH_JOBS).get(jobs.get(uid, ""))
            if job is None or "deletionTimestamp" in job["metadata"]:
                changed = changed or is_live(self.objects(PODS)[name])
                self.delete_pod(name)
        for name, job in self.objects(BATCH_JOBS).items():
            waiting = any(uid == job["metadata"]["uid"] for _, uid in self._owned_pods())
            if "deletionTimestamp" in job["metadata"] and not waiting:
                self.api._remove(BATCH_JOBS.path(), f"d/{name}")
                changed = True
        return changed

    def _owned_pods(self) -> Iterator[tuple[str, str]]:
        for name, pod in self.objects(PODS).items():
            for owner in pod["metadata"].get("ownerReferences", ()):
                yield name, owner["uid"]

    # Time.

    def settle(self) -> None:
        """Wait until the controller has nothing left to do, now and after its batch delay."""
        self.run(self.run_until_quiet())

    def advance(self, seconds: float) -> None:
        """Let time pass, with a controller."""
        self.run(self.start())
        self.run(self.pass_time(seconds))


def is_live(pod: Object) -> bool:
    """Whether *pod* is not terminating."""
    return "deletionTimestamp" not in pod["metadata"]


def is_active(pod: Object) -> bool:
    """Whether *pod* is neither finished nor terminating."""
    return is_live(pod) and pod.get("status", {}).get("phase") not in ENDED
