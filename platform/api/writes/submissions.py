"""Complete the submission of a job that was created suspended, as the caller."""

from base64 import b64encode
from typing import Any

from ...kube.client.client import Client
from ...kube.errors import AlreadyExistsError, NotFoundError
from ...model.base import ApiStruct
from ...model.meta import MetadataOnly, ObjectMeta
from ...model.names import CONFIGMAPS, JOBS, SUBMISSION
from ...model.workdirs import CHUNK_KEY, chunks, configmap_names
from ...wire.jobs import JobSummary
from ..jobs.kinds import JobKind
from ..problems import ProblemError
from .jobs import not_found
from .manifests import Json


class _Stored(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    binary_data: dict[str, str] = {}


async def complete(
    client: Client,
    kind: JobKind,
    name: str,
    archive: bytes,
    *,
    namespace: str,
    uid: str,
    hold: bool,
) -> JobSummary:
    """Store the working directory of a job in ConfigMaps which it owns, and let it begin.

    It remains suspended with *hold*. A repetition after a lost response changes nothing.

    Raises:
        ProblemError: 404, or 409 if the job has another uid or has begun without this directory,
            or if a ConfigMap of that name has other contents.
    """
    try:
        meta = (await client.get(JOBS, name, namespace=namespace, view=MetadataOnly)).metadata
        if uid not in ("", meta.uid):
            raise ProblemError(409, f"{kind.label} {name!r} has the uid {meta.uid!r}, not {uid!r}")
        is_incomplete = SUBMISSION in meta.labels
        for body in _configmaps(meta, archive):
            if is_incomplete:
                await _create(client, namespace, body)
            else:
                await _check(client, namespace, body)
        if is_incomplete:
            patch = {
                "metadata": {"uid": meta.uid, "labels": {SUBMISSION: None}},
                "spec": {"suspend": True if hold else None},
            }
            await client.patch(JOBS, name, patch, namespace=namespace)
        return kind.summarize(await client.get(JOBS, name, namespace=namespace, view=kind.view))
    except NotFoundError:
        raise not_found(kind, namespace, name) from None


def _configmaps(meta: ObjectMeta, archive: bytes) -> list[Json]:
    owner = {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.kind,
        "name": meta.name,
        "uid": meta.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }
    names = configmap_names(meta.name, archive)
    return [
        {
            "metadata": {"name": name, "ownerReferences": [owner]},
            "immutable": True,
            "binaryData": {CHUNK_KEY: b64encode(chunk).decode()},
        }
        for name, chunk in zip(names, chunks(archive), strict=True)
    ]


async def _create(client: Client, namespace: str, body: Json) -> None:
    try:
        await client.create(CONFIGMAPS, body, namespace=namespace)
    except AlreadyExistsError:
        await _check(client, namespace, body)


async def _check(client: Client, namespace: str, body: Json) -> None:
    """Raise a problem unless the ConfigMap exists as *body* has it."""
    name, expected = body["metadata"]["name"], body["metadata"]["ownerReferences"][0]
    found: Any = None
    try:
        found = await client.get(CONFIGMAPS, name, namespace=namespace, view=_Stored)
    except NotFoundError:
        text = f"job {expected['name']!r} has begun without the ConfigMap {name!r}"
        raise ProblemError(409, text) from None
    owners = [each.uid for each in found.metadata.owner_references]
    if owners != [expected["uid"]] or found.binary_data != body["binaryData"]:
        raise ProblemError(409, f"there is another ConfigMap {name!r}")
