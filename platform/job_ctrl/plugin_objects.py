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
from .plugins.base import Made, Wanted
from .plugins.registry import Team
from .podgroups import owner

Seen = dict[tuple[Resource, str], str]
"""Uids of objects of the job's own, by kind and name."""


class PluginObjects:
    """Writes objects; what is not the job's own is never changed and never removed."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def ensure(self, job: Job, team: Team, seen: Seen) -> None:
        """Make what *team* wants and is not there, and note in *seen* what is.

        Raises:
            AlreadyExistsError: an object of that name is somebody else's.
            PluginError: a plugin is missing, or fails.
            TryAgainError: an object came or went while we looked.
        """
        for wanted in team.wanted(job):
            seen[wanted.resource, wanted.name] = await self._ensure(job, wanted)

    async def remove(self, job: Job, team: Team, seen: Seen) -> None:
        """Remove what *team* wanted, as far as it is the job's own.

        Raises:
            PluginError: a plugin fails to name its objects; those of the others are gone.
        """
        for resource, name in team.unwanted(job):
            uid = seen.pop((resource, name), "") or await self._find(job, resource, name)
            if uid:
                await self._delete(job, resource, name, uid=uid)

    async def _ensure(self, job: Job, wanted: Wanted) -> str:
        """Make or update one object; its uid."""
        namespace = job.metadata.namespace
        try:
            there = await self._client.get(
                wanted.resource, wanted.name, namespace=namespace, view=DataObject
            )
        except NotFoundError:
            return await self._create(job, wanted)
        if not _owned(there.metadata, job):
            raise _taken(wanted)
        changed = {
            key: value for key, value in wanted.follow.items() if there.data.get(key) != value
        }
        if changed:
            patch = {"metadata": preconditions(there.metadata), "data": changed}
            try:
                await self._client.patch(wanted.resource, wanted.name, patch, namespace=namespace)
            except ConflictError as error:
                raise RequeueError(f"{wanted.name} has changed meanwhile") from error
        return there.metadata.uid

    async def _create(self, job: Job, wanted: Wanted) -> str:
        body = _belonging(await asyncio.to_thread(wanted.build), wanted, job)
        try:
            made = await self._client.create(
                wanted.resource, body, namespace=job.metadata.namespace, view=DataObject
            )
        except AlreadyExistsError as error:
            raise RequeueError(f"{wanted.resource.kind} {wanted.name} has just come") from error
        return made.metadata.uid

    async def _find(self, job: Job, resource: Resource, name: str) -> str:
        """The uid of the job's own object of that name, or nothing."""
        try:
            there = await self._client.get(
                resource, name, namespace=job.metadata.namespace, view=DataObject
            )
        except NotFoundError:
            return ""
        return there.metadata.uid if _owned(there.metadata, job) else ""

    async def _delete(self, job: Job, resource: Resource, name: str, *, uid: str) -> None:
        try:
            await self._client.delete(resource, name, namespace=job.metadata.namespace, uid=uid)
        except NotFoundError:
            pass  # that one is gone already
        except ConflictError as error:  # perhaps that one is, and another has its name; perhaps not
            raise RequeueError(f"{name} could not be deleted just now") from error


def _owned(meta: ObjectMeta, job: Job) -> bool:
    return any(owner.uid == job.metadata.uid for owner in meta.owner_references)


def _belonging(body: Made, wanted: Wanted, job: Job) -> Made:
    """The object with the job as its owner, whether or not the plugin has thought of that.

    A label tells it from all that does not belong to jobs.
    """
    given = body.get("metadata") or {}
    labels = {**(given.get("labels") or {}), JOB_NAME: job.metadata.name}
    owners = [msgspec.to_builtins(owner(job))]
    own = {"name": wanted.name, "labels": labels, "ownerReferences": owners}
    return {**body, "metadata": {**given, **own}}


def _taken(wanted: Wanted) -> AlreadyExistsError:
    kind, name = wanted.resource.kind, wanted.name
    return AlreadyExistsError(
        f"{kind} {name} is there and does not belong to the job", status=409, reason="AlreadyExists"
    )
