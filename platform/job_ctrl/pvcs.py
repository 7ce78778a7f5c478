"""The claims behind a job's volumes: those that it brings are made, those that it names awaited.

A claim that the job brings without a name gets one that follows from the job's uid, so that a
controller that dies between making it and writing its name into the job finds it again.
"""

from contextlib import suppress
from hashlib import sha256

import msgspec

from ..kube.client.client import Client, PatchType
from ..kube.errors import AlreadyExistsError, InvalidError, NotFoundError
from ..machinery.controller import RequeueError
from ..model import names
from ..model.job import Job, VolumeSpec
from ..model.validation import dns1123_subdomain_error
from .core_types import DataObject
from .defaults import DefaultedJob
from .podgroups import owner_reference


class VolumeClaimNotFoundError(Exception):
    """The job names a claim that is not there (yet), or that can never be."""

    def __init__(self, claim_name: str, *, problem: str = "") -> None:
        waits = "is not there; the job waits for it"
        invalid = f"cannot be there, as its name is invalid: {problem}"
        super().__init__(f"PersistentVolumeClaim {claim_name} {invalid if problem else waits}")
        self.claim_name = claim_name


class VolumeClaims:
    """Makes claims and writes their names into the job; never removes one, for it holds data."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def ensure(self, job: Job) -> Job:
        """Make the claims that *job* brings, and see that those that it names are there.

        Returns the job, which names them all now.

        Raises:
            MissingClaimError: one that it names is not there.
            TryAgainError: somebody has changed the job meanwhile.
        """
        made = []
        for index, volume in enumerate(job.spec.volumes):
            if volume.volume_claim_name:
                await self._require(job, volume.volume_claim_name)
            else:
                name = _claim_name(job, index)
                await self._create(job, volume, name)
                made.append({"op": "add", "path": f"/spec/volumes/{index}/volumeClaimName",
                             "value": name})  # fmt: skip
        return await self._write_names(job, made) if made else job

    async def _require(self, job: Job, claim_name: str) -> None:
        claims, space = names.PERSISTENTVOLUMECLAIMS, job.metadata.namespace
        if problem := dns1123_subdomain_error(claim_name):
            raise VolumeClaimNotFoundError(claim_name, problem=problem)
        try:
            await self._client.get(claims, claim_name, namespace=space, view=DataObject)
        except NotFoundError as error:
            raise VolumeClaimNotFoundError(claim_name) from error

    async def _create(self, job: Job, volume: VolumeSpec, name: str) -> None:
        if volume.volume_claim is None:
            return
        meta = {
            "name": name,
            "namespace": job.metadata.namespace,
            "ownerReferences": [msgspec.to_builtins(owner_reference(job))],
        }
        body = {"metadata": meta, "spec": volume.volume_claim}
        with suppress(AlreadyExistsError):  # by ourselves, before we were interrupted
            await self._client.create(
                names.PERSISTENTVOLUMECLAIMS, body, namespace=job.metadata.namespace
            )

    async def _write_names(self, job: Job, operations: list[dict[str, str]]) -> Job:
        meta = job.metadata
        same = {"op": "test", "path": "/metadata/uid", "value": meta.uid}
        try:
            return await self._client.patch(
                names.JOBS,
                meta.name,
                [same, *operations],
                namespace=meta.namespace,
                kind=PatchType.JSON,
                view=DefaultedJob,
            )
        except (NotFoundError, InvalidError) as error:
            raise RequeueError("the job has changed meanwhile") from error


def _claim_name(job: Job, index: int) -> str:
    drawn = sha256(f"{job.metadata.uid}/{index}".encode()).hexdigest()[:12]
    return f"{job.metadata.name}-pvc-{drawn}"
