"""PersistentVolumeClaims of a job's volumes: created from a spec, or required by name.

A created claim has a name derived from the job's uid, so that a controller that stops between
creating the claim and writing its name into the job finds it again.
"""

from contextlib import suppress
from hashlib import sha256

import msgspec

from ...kube.client.client import Client, PatchType
from ...kube.errors import AlreadyExistsError, InvalidError, NotFoundError
from ...machinery.controller import RequeueError
from ...model import names
from ...model.job import Job, VolumeSpec
from ...model.job_defaults import DefaultedJob
from ...model.validation import dns1123_subdomain_error
from ..podgroups import owner_reference
from ..tracker.core_types import DataObject


class VolumeClaimNotFoundError(Exception):
    """The job names a PersistentVolumeClaim that does not exist or has an invalid name."""

    def __init__(self, claim_name: str, *, problem: str = "") -> None:
        reason = f"not found: invalid name: {problem}" if problem else "not found"
        super().__init__(f'PersistentVolumeClaim "{claim_name}" {reason}')
        self.claim_name = claim_name


class VolumeClaims:
    """Creates claims and writes their names into the job; never deletes one: it holds data."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def ensure(self, job: Job) -> DefaultedJob | None:
        """Create the claims that *job* specifies, and check that those that it names exist.

        Returns the job after its claims' names were written; ``None`` if it had all of them.

        Raises:
            VolumeClaimNotFoundError: a named claim does not exist.
            RequeueError: the job was modified concurrently.
        """
        operations = []
        for index, volume in enumerate(job.spec.volumes):
            if volume.volume_claim_name:
                await self._require(job, volume.volume_claim_name)
            else:
                name = _claim_name(job, index)
                await self._create(job, volume, name)
                operations.append({"op": "add", "path": f"/spec/volumes/{index}/volumeClaimName",
                             "value": name})  # fmt: skip
        return await self._write_names(job, operations) if operations else None

    async def _require(self, job: Job, claim_name: str) -> None:
        claims, namespace = names.PERSISTENTVOLUMECLAIMS, job.metadata.namespace
        if problem := dns1123_subdomain_error(claim_name):
            raise VolumeClaimNotFoundError(claim_name, problem=problem)
        try:
            await self._client.get(claims, claim_name, namespace=namespace, view=DataObject)
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
        with suppress(AlreadyExistsError):  # created by an interrupted sync
            await self._client.create(
                names.PERSISTENTVOLUMECLAIMS, body, namespace=job.metadata.namespace
            )

    async def _write_names(self, job: Job, operations: list[dict[str, str]]) -> DefaultedJob:
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
            raise RequeueError("job was modified concurrently") from error


def _claim_name(job: Job, index: int) -> str:
    digest = sha256(f"{job.metadata.uid}/{index}".encode()).hexdigest()[:12]
    return f"{job.metadata.name}-pvc-{digest}"
