"""The Job of a flow, from its template."""

import hashlib
from typing import Any

import msgspec

from ..model.flow import Flow, JobFlow, JobTemplate
from ..model.meta import OwnerReference
from ..model.names import CREATED_BY_JOB_FLOW, CREATED_BY_JOB_TEMPLATE, JOBFLOWS, JOBS
from .core_types import JobSpec, Task, named_tasks
from .patching import PatchError, apply_patch

Json = dict[str, Any]

_MAX_LABEL_LENGTH = 63
_DIGEST_LENGTH = 10


def build_job(jobflow: JobFlow, flow: Flow, template: JobTemplate) -> Json:
    """Return the Job to create.

    Raises:
        PatchError: the patch of the flow cannot be applied.
    """
    meta = jobflow.metadata
    created_by = {CREATED_BY_JOB_FLOW: meta.name, CREATED_BY_JOB_TEMPLATE: template.metadata.name}
    owner = OwnerReference(
        api_version=JOBFLOWS.api_version,
        kind=JOBFLOWS.kind,
        name=meta.name,
        uid=meta.uid,
        controller=True,
        block_owner_deletion=True,
    )
    return {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.kind,
        "metadata": {
            "name": jobflow.job_name(flow.name),
            "namespace": meta.namespace,
            "labels": {key: label_value(meta.namespace, name) for key, name in created_by.items()},
            "annotations": {key: f"{meta.namespace}.{name}" for key, name in created_by.items()},
            "ownerReferences": [owner],
        },
        "spec": _spec(flow, template),
    }


def _spec(flow: Flow, template: JobTemplate) -> Json:
    spec: Json = msgspec.json.decode(template.spec)
    if flow.patch is None:
        return spec
    patch = msgspec.json.decode(flow.patch.job_spec)
    if not isinstance(patch, dict):
        raise PatchError("jobSpec is not an object")
    return apply_patch(spec, patch)


def label_value(namespace: str, name: str) -> str:
    """Return ``<namespace>.<name>``, with a digest instead of its end if it is too long."""
    value = f"{namespace}.{name}"
    if len(value) <= _MAX_LABEL_LENGTH:
        return value
    digest = hashlib.sha256(value.encode()).hexdigest()[:_DIGEST_LENGTH]
    kept = value[: _MAX_LABEL_LENGTH - _DIGEST_LENGTH - 1].rstrip("-._")
    return f"{kept}-{digest}"


def template_tasks(template: JobTemplate) -> dict[str, Task]:
    """Return the tasks of a template by name; none if its spec cannot be decoded."""
    try:
        return named_tasks(msgspec.json.decode(template.spec, type=JobSpec).tasks)
    except msgspec.ValidationError:
        return {}
