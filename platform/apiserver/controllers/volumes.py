"""The volume controller: binds claims to volumes, and makes folder volumes for those without.

A binding is written to the volume first and to the claim last; a crash in between leaves a volume
that names its claim, from which the next start goes on. Folders are kept by the agents, by the
claim's uid, so that binding moves no files.
"""

import hashlib
from datetime import UTC, datetime
from typing import Any

from ...model import names, times
from ..errors.status import StatusError
from ..storage.object_store import Shelf
from ..storage.stored_objects import DELETED, Entry, Event
from ..verbs.options import DeleteOptions
from ..verbs.writes import now
from . import volume_binding
from .base import Keeper, Tools, call_for
from .volume_binding import Bind, Provision, Wait

Json = dict[str, Any]

_OURSELVES = "persistentvolume-controller"
_SOURCES_APART = frozenset(
    {
        "accessModes", "capacity", "claimRef", "mountOptions", "nodeAffinity",
        "persistentVolumeReclaimPolicy", "storageClassName", "volumeAttributesClassName",
        "volumeMode",
    }
)  # fmt: skip


class VolumeController(Keeper):
    """Binds claims and volumes; a key is ``claim/<namespace>/<name>`` or ``volume/<name>``."""

    name = "volumes"

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._claims = tools.shelf(names.PERSISTENTVOLUMECLAIMS)
        self._volumes = tools.shelf(names.PERSISTENTVOLUMES)
        self._classes = tools.shelf(names.STORAGECLASSES)
        self._waiting: set[str] = set()
        """Keys of claims that a new volume or class may help."""
        self._held: dict[str, str] = {}
        """Names of volumes by the uids of the claims that they name."""

    def observe(self, shelf: Shelf, event: Event) -> None:
        """Queue what changed, and what may wait for it."""
        entry = event.entry
        if shelf is self._claims:
            self.queue.add(_claim_key(entry.namespace, entry.name))
            if held := self._held.get(entry.uid):
                self.queue.add(f"volume/{held}")
        elif shelf is self._volumes:
            self._note(entry, gone=event.type == DELETED)
            self._queue_waiting()
        elif shelf is self._classes:
            self._queue_waiting()

    def start(self) -> None:
        """Queue everything."""
        for entry in self._volumes.entries():
            self._note(entry)
        for entry in self._claims.entries():
            self.queue.add(_claim_key(entry.namespace, entry.name))

    def _note(self, entry: Entry, *, gone: bool = False) -> None:
        about = volume_binding.reference_of(entry.parse())
        if uid := about.get("uid"):
            self._held[uid] = entry.name
            if gone:
                del self._held[uid]
        if about:
            self.queue.add(_claim_key(about.get("namespace", ""), about.get("name", "")))
        self.queue.add(f"volume/{entry.name}")

    def _queue_waiting(self) -> None:
        for key in self._waiting:
            self.queue.add(key)

    async def reconcile(self, key: str) -> float | None:
        """Bind a claim, or give a volume its phase."""
        kind, _, rest = key.partition("/")
        if kind == "volume":
            await self._settle_volume(rest)
        else:
            namespace, _, name = rest.partition("/")
            self._waiting.discard(key)
            await self._settle_claim(key, self._claims.latest(namespace, name))
        return None

    # Claims.

    async def _settle_claim(self, key: str, entry: Entry | None) -> None:
        if entry is None or entry.deleting:
            return
        claim = entry.parse()
        phase = claim["status"].get("phase")
        done = volume_binding.COMPLETED in (claim["metadata"].get("annotations") or {})
        if done:
            if self._volumes.latest("", claim["spec"].get("volumeName", "")) is None:
                await self._lose(claim)
            return
        classes = {each.name: each.parse() for each in self._classes.heads()}
        if phase == "Bound":  # by an agent of an older version, which made a folder for any claim
            await self._provision(claim, Provision())
            return
        if "storageClassName" not in claim["spec"]:
            claim["spec"]["storageClassName"] = volume_binding.default_class(classes.values())
        volumes = {each.name: each.parse() for each in self._volumes.heads()}
        verdict = volume_binding.decide(claim, volumes, classes)
        if isinstance(verdict, Bind):
            await self._bind(claim, verdict.volume)
        elif isinstance(verdict, Provision):
            await self._provision(claim, verdict)
        else:
            self._waiting.add(key)
            await self._tell(claim, verdict)

    async def _provision(self, claim: Json, how: Provision) -> None:
        made = _folder_volume(claim, how)
        name = made["metadata"]["name"]
        if self._volumes.latest("", name) is None:
            await self.tools.create(names.PERSISTENTVOLUMES, "", made).settled()
        found = self._volumes.latest("", name)
        if found is not None:
            await self._bind(claim, found.parse())

    async def _bind(self, claim: Json, volume: Json) -> None:
        """Write the binding to both, the claim last."""
        name = volume["metadata"]["name"]

        def taken(current: Json) -> Json:
            spec = {**current["spec"], "claimRef": _reference(claim)}
            return _in_phase({**current, "spec": spec}, "Bound")

        def bound(current: Json) -> Json:
            if current["metadata"]["uid"] != claim["metadata"]["uid"]:
                return current
            return _bound(current, claim, volume)

        await self.tools.change(self._volumes.kind, ("", name), taken).settled()
        meta = claim["metadata"]
        where = meta["namespace"], meta["name"]
        if self._claims.latest(*where) is not None:
            await self.tools.change(self._claims.kind, where, bound).settled()

    async def _lose(self, claim: Json) -> None:
        def lost(current: Json) -> Json:
            return {**current, "status": {**current["status"], "phase": "Lost"}}

        if claim["status"].get("phase") != "Lost":
            meta = claim["metadata"]
            where = meta["namespace"], meta["name"]
            await self.tools.change(self._claims.kind, where, lost).settled()
            await self._tell(claim, Wait("ClaimLost", "Bound claim has lost its PersistentVolume."))

    async def _tell(self, claim: Json, verdict: Wait) -> None:
        """Say in an event why a claim waits, each reason once an hour."""
        meta, moment = claim["metadata"], now()
        said = f"{meta['uid']} {verdict.reason} {verdict.message}"
        name = f"{meta['name'][:200]}.{hashlib.sha256(said.encode()).hexdigest()[:16]}"
        if self.tools.shelf(names.EVENTS).latest(meta["namespace"], name) is not None:
            return
        event = {
            "metadata": {"name": name},
            "involvedObject": _reference(claim),
            "type": "Normal" if verdict.reason == "ExternalProvisioning" else "Warning",
            "reason": verdict.reason,
            "message": verdict.message,
            "firstTimestamp": moment,
            "lastTimestamp": moment,
            "count": 1,
            "eventTime": times.format_micros(datetime.now(UTC)),
            "action": "Bind",
            "source": {"component": _OURSELVES},
            "reportingComponent": _OURSELVES,
            "reportingInstance": _OURSELVES,
        }
        try:
            await self.tools.create(names.EVENTS, meta["namespace"], event).settled()
        except StatusError as error:
            if error.code != 403:  # the namespace is ending
                raise

    # Volumes.

    async def _settle_volume(self, name: str) -> None:
        entry = self._volumes.latest("", name)
        if entry is None or entry.deleting:
            return
        volume = entry.parse()
        about = volume_binding.reference_of(volume)
        if not about.get("uid"):
            await self._show(volume, "Available")
            return
        claim = self._claims.latest(about.get("namespace", ""), about.get("name", ""))
        if claim is not None and claim.uid == about["uid"]:
            await self._show(volume, "Bound")
            return
        await self._reclaim(volume)

    async def _reclaim(self, volume: Json) -> None:
        """Do with a volume whose claim is gone what its policy says."""
        spec, name = volume["spec"], volume["metadata"]["name"]
        policy = spec.get("persistentVolumeReclaimPolicy")
        if policy == "Retain":
            await self._show(volume, "Released")
        elif policy == "Delete" and (spec.get("csi") or {}).get("driver") == names.FOLDER_DRIVER:
            call = call_for(self._volumes.kind, ("", name))
            await self.tools.deleter.delete(call, DeleteOptions()).settled()
        else:
            source = ", ".join(sorted(spec.keys() - _SOURCES_APART))
            text = f"cannot {str(policy).lower()} a volume of type {source}: do it by hand"
            await self._show(volume, "Failed", text)

    async def _show(self, volume: Json, phase: str, message: str = "") -> None:
        def shown(current: Json) -> Json:
            return _in_phase(current, phase, message)

        where = "", volume["metadata"]["name"]
        await self.tools.change(self._volumes.kind, where, shown).settled()


def _claim_key(namespace: str, name: str) -> str:
    return f"claim/{namespace}/{name}"


def _in_phase(volume: Json, phase: str, message: str = "") -> Json:
    status = volume["status"]
    if status.get("phase") == phase and status.get("message", "") == message:
        return volume
    said = {"phase": phase, "lastPhaseTransitionTime": now()}
    return {**volume, "status": {**said, "message": message} if message else said}


def _reference(claim: Json) -> Json:
    meta = claim["metadata"]
    return {
        "kind": "PersistentVolumeClaim",
        "apiVersion": "v1",
        "namespace": meta["namespace"],
        "name": meta["name"],
        "uid": meta["uid"],
    }


def _folder_volume(claim: Json, how: Provision) -> Json:
    spec, uid = claim["spec"], claim["metadata"]["uid"]
    made = {
        "accessModes": spec["accessModes"],
        "capacity": {"storage": spec["resources"]["requests"]["storage"]},
        "claimRef": _reference(claim),
        "csi": {"driver": names.FOLDER_DRIVER, "volumeHandle": uid},
        "persistentVolumeReclaimPolicy": how.reclaim,
        "volumeMode": "Filesystem",
    }
    if chosen := spec.get("storageClassName"):
        made["storageClassName"] = chosen
    annotations = {volume_binding.PROVISIONED_BY: names.FOLDER_DRIVER}
    return {"metadata": {"name": f"pvc-{uid}", "annotations": annotations}, "spec": made}


def _bound(current: Json, claim: Json, volume: Json) -> Json:
    meta, spec = dict(current["metadata"]), dict(current["spec"])
    marks = {volume_binding.COMPLETED: "yes"}
    if spec.get("volumeName") != volume["metadata"]["name"]:
        marks[volume_binding.BY_US] = "yes"
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
