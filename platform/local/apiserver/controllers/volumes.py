"""The volume controller: binds claims to volumes, and provisions directory volumes.

A binding is written to the volume first and to the claim last; a crash in between leaves a volume
with a claimRef, from which the next start continues. Agents keep the directories by claim uid, so
that binding moves no files.
"""

import hashlib
from typing import Any

from ....model import names, quantity, times
from ..builtin.core_objects import default_class, storage_request
from ..current_time import current_time, now
from ..errors.status import StatusError
from ..storage.resource_store import ResourceStore
from ..storage.stored_objects import DELETED, StoredObject, WatchEvent
from ..verbs.options import DeleteOptions
from . import volume_binding
from .base import Controller, ControllerContext, internal_request
from .volume_binding import Bind, Provision, Wait

Json = dict[str, Any]

_COMPONENT = "persistentvolume-controller"
_EXTERNAL_EXPANSION = Wait(
    "ExternalExpanding", "waiting for an external controller to expand this PVC"
)
_NORMAL_REASONS = (
    "ExternalProvisioning",
    _EXTERNAL_EXPANSION.reason,
    volume_binding.WAIT_FOR_FIRST_CONSUMER,
)
_NON_SOURCE_FIELDS = frozenset(
    {
        "accessModes", "capacity", "claimRef", "mountOptions", "nodeAffinity",
        "persistentVolumeReclaimPolicy", "storageClassName", "volumeAttributesClassName",
        "volumeMode",
    }
)  # fmt: skip


class PersistentVolumeController(Controller):
    """Binds claims and volumes; a key is ``claim/<namespace>/<name>`` or ``volume/<name>``."""

    name = "volumes"

    def __init__(self, context: ControllerContext, node: str = "") -> None:
        """*node* has the directories of claims; empty: there is only one node."""
        super().__init__(context)
        self._node = node
        self._claims = context.resource_store(names.PERSISTENTVOLUMECLAIMS)
        self._volumes = context.resource_store(names.PERSISTENTVOLUMES)
        self._classes = context.resource_store(names.STORAGECLASSES)
        self.observed = (self._claims, self._volumes, self._classes)
        self._nodes = context.resource_store(names.NODES)
        self._waiting: set[str] = set()
        """Keys of claims that a new volume or class may unblock."""
        self._volumes_by_claim_uid: dict[str, str] = {}
        """Names of volumes by the uids in their claimRef."""

    def on_event(self, resource_store: ResourceStore, event: WatchEvent) -> None:
        """Enqueue what changed, and claims that may wait for it."""
        entry = event.entry
        if resource_store is self._claims:
            self.queue.add(_claim_key(entry.namespace, entry.name))
            if volume_name := self._volumes_by_claim_uid.get(entry.uid):
                self.queue.add(f"volume/{volume_name}")
        elif resource_store is self._volumes:
            self._enqueue_volume(entry, deleted=event.type == DELETED)
            self._enqueue_waiting()
        elif resource_store is self._classes:
            self._enqueue_waiting()

    def enqueue_all(self) -> None:
        """Enqueue all claims and volumes."""
        for entry in self._volumes.entries():
            self._enqueue_volume(entry)
        for entry in self._claims.entries():
            self.queue.add(_claim_key(entry.namespace, entry.name))

    def _enqueue_volume(self, entry: StoredObject, *, deleted: bool = False) -> None:
        about = volume_binding.claim_ref(entry.parse())
        if uid := about.get("uid"):
            self._volumes_by_claim_uid[uid] = entry.name
            if deleted:
                del self._volumes_by_claim_uid[uid]
        if about:
            self.queue.add(_claim_key(about.get("namespace", ""), about.get("name", "")))
        self.queue.add(f"volume/{entry.name}")

    def _enqueue_waiting(self) -> None:
        for key in self._waiting:
            self.queue.add(key)

    async def reconcile(self, key: str) -> float | None:
        """Bind a claim, or set the phase of a volume."""
        kind, _, rest = key.partition("/")
        if kind == "volume":
            await self._sync_volume(rest)
        else:
            namespace, _, name = rest.partition("/")
            self._waiting.discard(key)
            await self._sync_claim(key, self._claims.latest(namespace, name))
        return None

    # Claims.

    async def _sync_claim(self, key: str, entry: StoredObject | None) -> None:
        if entry is None or entry.deleting:
            return
        claim = entry.parse()
        phase = claim["status"].get("phase")
        done = volume_binding.BIND_COMPLETED in (claim["metadata"].get("annotations") or {})
        if done:
            volume = self._volumes.latest("", claim["spec"].get("volumeName", ""))
            if volume is None:
                await self._mark_lost(claim)
            else:
                await self._expand(claim, volume.parse())
            return
        classes = {each.name: each.parse() for each in self._classes.latest_entries()}
        if phase == "Bound":  # by an old agent, which created a directory for any claim
            await self._provision(claim, Provision())
            return
        if "storageClassName" not in claim["spec"]:
            claim["spec"]["storageClassName"] = default_class(classes.values())
        volumes = {each.name: each.parse() for each in self._volumes.latest_entries()}
        decision = volume_binding.decide(claim, volumes, classes)
        if isinstance(decision, Bind):
            await self._bind(claim, decision.volume)
        elif isinstance(decision, Provision):
            await self._provision(claim, decision)
        else:
            self._waiting.add(key)
            await self._record_event(claim, decision)

    async def _provision(self, claim: Json, provision: Provision) -> None:
        """Provision a volume, unless the node for which it is does not exist: then the scheduler is
        asked for another one."""
        host = ""
        if provision.node and self._node and provision.node != self._node:
            await self._drop_selected_node(claim, provision.node)  # it has no directories
            return
        if chosen := provision.node or self._node:
            node = self._nodes.latest("", chosen)
            if node is None and provision.node:
                await self._drop_selected_node(claim, provision.node)
                return
            labels = (node.parse()["metadata"].get("labels") or {}) if node else {}
            host = labels.get(volume_binding.HOSTNAME, chosen)
        volume = _dir_volume(claim, provision, host)
        name = volume["metadata"]["name"]
        if self._volumes.latest("", name) is None:
            await self.context.create(names.PERSISTENTVOLUMES, "", volume).committed()
        found = self._volumes.latest("", name)
        if found is not None:
            await self._bind(claim, found.parse())

    async def _drop_selected_node(self, claim: Json, node: str) -> None:
        def without(current: Json) -> Json:
            annotations = dict(current["metadata"].get("annotations") or {})
            if annotations.get(volume_binding.SELECTED_NODE) != node:
                return current
            del annotations[volume_binding.SELECTED_NODE]
            return {**current, "metadata": {**current["metadata"], "annotations": annotations}}

        meta = claim["metadata"]
        where = meta["namespace"], meta["name"]
        await self.context.update_unchecked(self._claims.kind, where, without).committed()

    async def _bind(self, claim: Json, volume: Json) -> None:
        """Write the binding to volume and claim, the claim last."""
        name = volume["metadata"]["name"]

        def bound_volume(current: Json) -> Json:
            spec = {**current["spec"], "claimRef": _claim_reference(claim)}
            return _with_phase({**current, "spec": spec}, "Bound")

        def bound_claim(current: Json) -> Json:
            if current["metadata"]["uid"] != claim["metadata"]["uid"]:
                return current
            return _with_volume(current, claim, volume)

        await self.context.update_unchecked(
            self._volumes.kind, ("", name), bound_volume
        ).committed()
        meta = claim["metadata"]
        where = meta["namespace"], meta["name"]
        if self._claims.latest(*where) is not None:
            await self.context.update_unchecked(self._claims.kind, where, bound_claim).committed()

    async def _expand(self, claim: Json, volume: Json) -> None:
        """Give a claim the size that it requests, which its class allowed to grow.

        A directory has no size, so that only the objects change.
        """
        size = storage_request(claim["spec"])
        capacity = (claim["status"].get("capacity") or {}).get("storage", "0")
        if quantity.parse(size) <= quantity.parse(capacity):
            return
        if not _is_dir(volume):
            await self._record_event(claim, _EXTERNAL_EXPANSION)
            return

        def larger_volume(current: Json) -> Json:
            if quantity.parse(current["spec"]["capacity"]["storage"]) >= quantity.parse(size):
                return current
            return {**current, "spec": {**current["spec"], "capacity": {"storage": size}}}

        def larger_claim(current: Json) -> Json:
            return {**current, "status": {**current["status"], "capacity": {"storage": size}}}

        where = "", volume["metadata"]["name"]
        await self.context.update_unchecked(self._volumes.kind, where, larger_volume).committed()
        meta = claim["metadata"]
        where = meta["namespace"], meta["name"]
        if self._claims.latest(*where) is not None:
            await self.context.update_unchecked(self._claims.kind, where, larger_claim).committed()

    async def _mark_lost(self, claim: Json) -> None:
        def lost(current: Json) -> Json:
            return {**current, "status": {**current["status"], "phase": "Lost"}}

        if claim["status"].get("phase") != "Lost":
            meta = claim["metadata"]
            where = meta["namespace"], meta["name"]
            await self.context.update_unchecked(self._claims.kind, where, lost).committed()
            await self._record_event(
                claim, Wait("ClaimLost", "Bound claim has lost its PersistentVolume.")
            )

    async def _record_event(self, claim: Json, result: Wait) -> None:
        """Record why a claim waits, each reason once an hour."""
        meta, moment = claim["metadata"], now()
        text = f"{meta['uid']} {result.reason} {result.message}"
        name = f"{meta['name'][:200]}.{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        if self.context.resource_store(names.EVENTS).latest(meta["namespace"], name) is not None:
            return
        event = {
            "metadata": {"name": name},
            "involvedObject": _claim_reference(claim),
            "type": "Normal" if result.reason in _NORMAL_REASONS else "Warning",
            "reason": result.reason,
            "message": result.message,
            "firstTimestamp": moment,
            "lastTimestamp": moment,
            "count": 1,
            "eventTime": times.format_micros(current_time()),
            "action": "Bind",
            "source": {"component": _COMPONENT},
            "reportingComponent": _COMPONENT,
            "reportingInstance": _COMPONENT,
        }
        try:
            await self.context.create(names.EVENTS, meta["namespace"], event).committed()
        except StatusError as error:
            if error.code != 403:  # the namespace is terminating
                raise

    # Volumes.

    async def _sync_volume(self, name: str) -> None:
        entry = self._volumes.latest("", name)
        if entry is None:
            return
        volume = entry.parse()
        if entry.deleting:
            await self._sync_deleted_volume(volume)
            return
        if self._node and _is_dir(volume) and "nodeAffinity" not in volume["spec"]:
            # It is older than the second node; this change enqueues the volume again.
            await self._set_node(name)
            return
        if not volume_binding.claim_ref(volume).get("uid"):
            await self._set_phase(volume, "Available")
        elif self._has_claim(volume):
            await self._set_phase(volume, "Bound")
        else:
            await self._reclaim(volume)

    async def _sync_deleted_volume(self, volume: Json) -> None:
        """Release a volume whose claim is deleted; while it is bound, its finalizer keeps it."""
        if volume["status"].get("phase") == "Bound" and not self._has_claim(volume):
            await self._set_phase(volume, "Released")

    def _has_claim(self, volume: Json) -> bool:
        about = volume_binding.claim_ref(volume)
        claim = self._claims.latest(about.get("namespace", ""), about.get("name", ""))
        return claim is not None and claim.uid == about.get("uid")

    async def _reclaim(self, volume: Json) -> None:
        """Apply the reclaim policy of a volume whose claim is deleted."""
        spec, name = volume["spec"], volume["metadata"]["name"]
        policy = spec.get("persistentVolumeReclaimPolicy")
        if policy == "Retain":
            await self._set_phase(volume, "Released")
        elif policy == "Delete" and _is_dir(volume):
            call = internal_request(self._volumes.kind, ("", name))
            await self.context.deleter.delete(call, DeleteOptions()).committed()
        else:
            source = ", ".join(sorted(spec.keys() - _NON_SOURCE_FIELDS))
            text = f"cannot {str(policy).lower()} a volume of type {source}: do it manually"
            await self._set_phase(volume, "Failed", text)

    async def _set_node(self, name: str) -> None:
        def on_node(current: Json) -> Json:
            spec = {"nodeAffinity": _on_node(self._node), **current["spec"]}
            return {**current, "spec": spec}

        await self.context.update_unchecked(self._volumes.kind, ("", name), on_node).committed()

    async def _set_phase(self, volume: Json, phase: str, message: str = "") -> None:
        def with_phase(current: Json) -> Json:
            return _with_phase(current, phase, message)

        where = "", volume["metadata"]["name"]
        await self.context.update_unchecked(self._volumes.kind, where, with_phase).committed()


def _is_dir(volume: Json) -> bool:
    return bool((volume["spec"].get("csi") or {}).get("driver") == names.DIR_PROVISIONER)


def _claim_key(namespace: str, name: str) -> str:
    return f"claim/{namespace}/{name}"


def _with_phase(volume: Json, phase: str, message: str = "") -> Json:
    status = volume["status"]
    if status.get("phase") == phase and status.get("message", "") == message:
        return volume
    status = {"phase": phase, "lastPhaseTransitionTime": now()}
    return {**volume, "status": {**status, "message": message} if message else status}


def _claim_reference(claim: Json) -> Json:
    meta = claim["metadata"]
    return {
        "kind": "PersistentVolumeClaim",
        "apiVersion": "v1",
        "namespace": meta["namespace"],
        "name": meta["name"],
        "uid": meta["uid"],
    }


def _dir_volume(claim: Json, provision: Provision, host: str) -> Json:
    """Return the volume for *claim*, for the node with the label *host* if that is not empty."""
    spec, uid = claim["spec"], claim["metadata"]["uid"]
    spec = {
        "accessModes": spec["accessModes"],
        "capacity": {"storage": spec["resources"]["requests"]["storage"]},
        "claimRef": _claim_reference(claim),
        "csi": {"driver": names.DIR_PROVISIONER, "volumeHandle": uid},
        "persistentVolumeReclaimPolicy": provision.reclaim_policy,
        "volumeMode": "Filesystem",
    }
    if chosen := claim["spec"].get("storageClassName"):
        spec["storageClassName"] = chosen
    if host:
        spec["nodeAffinity"] = _on_node(host)
    annotations = {volume_binding.PROVISIONED_BY: names.DIR_PROVISIONER}
    return {"metadata": {"name": f"pvc-{uid}", "annotations": annotations}, "spec": spec}


def _on_node(name: str) -> Json:
    wanted = {"key": volume_binding.HOSTNAME, "operator": "In", "values": [name]}
    return {"required": {"nodeSelectorTerms": [{"matchExpressions": [wanted]}]}}


def _with_volume(current: Json, claim: Json, volume: Json) -> Json:
    meta, spec = dict(current["metadata"]), dict(current["spec"])
    marks = {volume_binding.BIND_COMPLETED: "yes"}
    if spec.get("volumeName") != volume["metadata"]["name"]:
        marks[volume_binding.BOUND_BY_CONTROLLER] = "yes"
    meta["annotations"] = {**(meta.get("annotations") or {}), **marks}
    spec["volumeName"] = volume["metadata"]["name"]
    if "storageClassName" in claim["spec"]:
        spec.setdefault("storageClassName", claim["spec"]["storageClassName"])
    offered = volume["spec"]
    status = {
        "phase": "Bound",
        "accessModes": offered["accessModes"],
        "capacity": offered["capacity"],
    }
    return {**current, "metadata": meta, "spec": spec, "status": status}
