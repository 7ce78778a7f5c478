"""Which job an object belongs to, in the words by which logs can be searched."""

from .meta import ObjectMeta
from .names import JOBS


def owning_job(meta: ObjectMeta) -> str:
    """``namespace/name`` of the Job that controls the object; empty if none does."""
    owner = meta.controller
    if owner is None or (owner.kind, owner.api_version) != (JOBS.kind, JOBS.api_version):
        return ""
    return f"{meta.namespace}/{owner.name}"


def object_fields(kind: str, meta: ObjectMeta) -> dict[str, str]:
    """For a line of the log: the job, if there is one, and the object itself, a *what*."""
    job = owning_job(meta)
    return {"job": job, kind: meta.key} if job else {kind: meta.key}
