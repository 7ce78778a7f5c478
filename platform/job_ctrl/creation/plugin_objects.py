"""Create, update and delete the objects that plugins provide in addition to the pods."""

import asyncio

import msgspec

from ...kube.client.client import Client
from ...kube.errors import AlreadyExistsError, ConflictError, NotFoundError
from ...machinery.controller import RequeueError, requeue_on_conflict
from ...model.job import Job
from ...model.meta import ObjectMeta, preconditions
from ...model.names import (
    CONFIGMAPS,
    JOB_NAME,
    NETWORKPOLICIES,
    SECRETS,
    SERVICES,
    Resource,
)
from ..plugins.base import DesiredObject, JsonObject
from ..plugins.registry import JobPlugins
from ..podgroups import owner_reference
from ..tracker.core_types import DataObject

PLUGIN_KINDS = (SERVICES, NETWORKPOLICIES, CONFIGMAPS, SECRETS)
"""Kinds of the objects of built-in plugins; the controller may create them."""

WATCHED_PLUGIN_KINDS = tuple(kind for kind in PLUGIN_KINDS if kind is not SECRETS)
"""Kinds whose deleted objects are created again at once. Watching Secrets would require the right
to read all of them; a deleted Secret is created again when a pod has to be created."""

KnownUids = dict[tuple[Resource, str], str]
"""Uids of the job's objects by kind and name."""


class PluginObjects:
    """Writes the objects of a job; objects of other owners are never changed or deleted."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def ensure(self, job: Job, plugins: JobPlugins, known_uids: KnownUids) -> None:
        """Create or update the desired objects, and add their uids to *known_uids*.

        Raises:
            AlreadyExistsError: an object of that name has another owner.
            PluginError: a plugin is missing or fails.
            RequeueError: an object was created or modified concurrently.
        """
        for desired in plugins.desired_objects(job):
            known_uids[desired.resource, desired.name] = await self._ensure(job, desired)

    async def delete(self, job: Job, plugins: JobPlugins, known_uids: KnownUids) -> None:
        """Delete the objects of *plugins* that the job owns.

        Raises:
            PluginError: a plugin fails to name its objects; those of the others are deleted.
        """
        for resource, name in plugins.objects_to_delete(job):
            uid = known_uids.pop((resource, name), "") or await self._find_uid(job, resource, name)
            if uid:
                await self._delete(job, resource, name, uid=uid)

    async def _ensure(self, job: Job, desired: DesiredObject) -> str:
        """Create or update one object; return its uid."""
        namespace = job.metadata.namespace
        try:
            existing = await self._client.get(
                desired.resource, desired.name, namespace=namespace, view=DataObject
            )
        except NotFoundError:
            return await self._create(job, desired)
        if not _is_owned(existing.metadata, job):
            raise _name_conflict(desired)
        changed = {
            key: value
            for key, value in desired.synced_data.items()
            if existing.data.get(key) != value
        }
        if changed:
            patch = {"metadata": preconditions(existing.metadata), "data": changed}
            with requeue_on_conflict(desired.name):
                await self._client.patch(desired.resource, desired.name, patch, namespace=namespace)
        return existing.metadata.uid

    async def _create(self, job: Job, desired: DesiredObject) -> str:
        body = _with_owner(await asyncio.to_thread(desired.build), desired, job)
        try:
            created = await self._client.create(
                desired.resource, body, namespace=job.metadata.namespace, view=DataObject
            )
        except AlreadyExistsError as error:
            kind = desired.resource.kind
            raise RequeueError(f"{kind} {desired.name} was created concurrently") from error
        return created.metadata.uid

    async def _find_uid(self, job: Job, resource: Resource, name: str) -> str:
        """Return the uid of the job's object of this name; empty if there is none."""
        try:
            existing = await self._client.get(
                resource, name, namespace=job.metadata.namespace, view=DataObject
            )
        except NotFoundError:
            return ""
        return existing.metadata.uid if _is_owned(existing.metadata, job) else ""

    async def _delete(self, job: Job, resource: Resource, name: str, *, uid: str) -> None:
        try:
            await self._client.delete(resource, name, namespace=job.metadata.namespace, uid=uid)
        except NotFoundError:
            pass
        except ConflictError as error:  # modified, or another object has its name
            raise RequeueError(f"cannot delete {name}: conflict") from error


def _is_owned(meta: ObjectMeta, job: Job) -> bool:
    return job.metadata.owns(meta)


def _with_owner(body: JsonObject, desired: DesiredObject, job: Job) -> JsonObject:
    """Return the object with the job as its owner, and the label that the informers select by."""
    given = body.get("metadata") or {}
    labels = {**(given.get("labels") or {}), JOB_NAME: job.metadata.name}
    owners = [msgspec.to_builtins(owner_reference(job))]
    own = {"name": desired.name, "labels": labels, "ownerReferences": owners}
    return {**body, "metadata": {**given, **own}}


def _name_conflict(desired: DesiredObject) -> AlreadyExistsError:
    kind, name = desired.resource.kind, desired.name
    return AlreadyExistsError(
        f'{kind} "{name}" already exists and is not controlled by this job',
        status=409,
        reason="AlreadyExists",
    )
