"""Makes, updates and removes what plugins need beside the pods."""

import asyncio

import msgspec

from ..kube.client.client import Client
from ..kube.errors import AlreadyExistsError, ConflictError, NotFoundError
from ..machinery.controller import RequeueError
from ..model.job import Job
from ..model.meta import ObjectMeta, preconditions
from ..model.names import JOB_NAME, Resource
from .core_types import DataObject
from .plugins.base import DesiredObject, JsonObject
from .plugins.registry import JobPlugins
from .podgroups import owner_reference

KnownUids = dict[tuple[Resource, str], str]
"""Uids of objects of the job's own, by kind and name."""


class PluginObjects:
    """Writes objects; what is not the job's own is never changed and never removed."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def ensure(self, job: Job, plugins: JobPlugins, known_uids: KnownUids) -> None:
        """Make what *team* wants and is not there, and note in *seen* what is.

        Raises:
            AlreadyExistsError: an object of that name is somebody else's.
            PluginError: a plugin is missing, or fails.
            TryAgainError: an object came or went while we looked.
        """
        for wanted in plugins.desired_objects(job):
            known_uids[wanted.resource, wanted.name] = await self._ensure(job, wanted)

    async def delete(self, job: Job, plugins: JobPlugins, known_uids: KnownUids) -> None:
        """Remove what *team* wanted, as far as it is the job's own.

        Raises:
            PluginError: a plugin fails to name its objects; those of the others are gone.
        """
        for resource, name in plugins.objects_to_delete(job):
            uid = known_uids.pop((resource, name), "") or await self._find_uid(job, resource, name)
            if uid:
                await self._delete(job, resource, name, uid=uid)

    async def _ensure(self, job: Job, desired: DesiredObject) -> str:
        """Make or update one object; its uid."""
        namespace = job.metadata.namespace
        try:
            there = await self._client.get(
                desired.resource, desired.name, namespace=namespace, view=DataObject
            )
        except NotFoundError:
            return await self._create(job, desired)
        if not _is_owned(there.metadata, job):
            raise _name_conflict(desired)
        changed = {
            key: value for key, value in desired.synced_data.items() if there.data.get(key) != value
        }
        if changed:
            patch = {"metadata": preconditions(there.metadata), "data": changed}
            try:
                await self._client.patch(desired.resource, desired.name, patch, namespace=namespace)
            except ConflictError as error:
                raise RequeueError(f"{desired.name} has changed meanwhile") from error
        return there.metadata.uid

    async def _create(self, job: Job, desired: DesiredObject) -> str:
        body = _with_owner(await asyncio.to_thread(desired.build), desired, job)
        try:
            made = await self._client.create(
                desired.resource, body, namespace=job.metadata.namespace, view=DataObject
            )
        except AlreadyExistsError as error:
            raise RequeueError(f"{desired.resource.kind} {desired.name} has just come") from error
        return made.metadata.uid

    async def _find_uid(self, job: Job, resource: Resource, name: str) -> str:
        """The uid of the job's own object of that name, or nothing."""
        try:
            there = await self._client.get(
                resource, name, namespace=job.metadata.namespace, view=DataObject
            )
        except NotFoundError:
            return ""
        return there.metadata.uid if _is_owned(there.metadata, job) else ""

    async def _delete(self, job: Job, resource: Resource, name: str, *, uid: str) -> None:
        try:
            await self._client.delete(resource, name, namespace=job.metadata.namespace, uid=uid)
        except NotFoundError:
            pass  # that one is gone already
        except ConflictError as error:  # perhaps that one is, and another has its name; perhaps not
            raise RequeueError(f"{name} could not be deleted just now") from error


def _is_owned(meta: ObjectMeta, job: Job) -> bool:
    return any(owner.uid == job.metadata.uid for owner in meta.owner_references)


def _with_owner(body: JsonObject, desired: DesiredObject, job: Job) -> JsonObject:
    """The object with the job as its owner, whether or not the plugin has thought of that.

    A label tells it from all that does not belong to jobs.
    """
    given = body.get("metadata") or {}
    labels = {**(given.get("labels") or {}), JOB_NAME: job.metadata.name}
    owners = [msgspec.to_builtins(owner_reference(job))]
    own = {"name": desired.name, "labels": labels, "ownerReferences": owners}
    return {**body, "metadata": {**given, **own}}


def _name_conflict(desired: DesiredObject) -> AlreadyExistsError:
    kind, name = desired.resource.kind, desired.name
    return AlreadyExistsError(
        f"{kind} {name} is there and does not belong to the job", status=409, reason="AlreadyExists"
    )
