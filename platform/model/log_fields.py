"""Log fields that identify an object and the job that controls it."""

from .meta import ObjectMeta
from .names import JOBS


def owning_job(meta: ObjectMeta) -> str:
    """Return ``namespace/name`` of the Job that controls the object, or ``""``."""
    owner = meta.controller
    if owner is None or (owner.kind, owner.api_version) != (JOBS.kind, JOBS.api_version):
        return ""
    return f"{meta.namespace}/{owner.name}"


def object_fields(kind: str, meta: ObjectMeta) -> dict[str, str]:
    """Return the log fields of an object: its key under *kind*, and its job, if any."""
    job = owning_job(meta)
    return {"job": job, kind: meta.key} if job else {kind: meta.key}
