"""The manifest of a job that runs again: the same under a new name. Pure."""

import copy
import re
import secrets
from collections.abc import Mapping
from typing import Any

from ..model.names import BATCH_JOBS, JOB_ID, OPERATION, SUBMITTED_BY
from ..model.recorded import RECORDED
from .history import JobHistory
from .jobs import KINDS

_NUMBER = re.compile(r"-[0-9]{9}$")
_MAX_NAME = 52
"""Characters of a name without its number, so that pods of Volcano jobs may have names, too."""
_OF_OTHERS = (SUBMITTED_BY, OPERATION, RECORDED, "kubectl.kubernetes.io/last-applied-configuration")
"""Annotations of the object that was created, and not of its manifest."""
_OF_BATCH_JOBS = (
    "batch.kubernetes.io/controller-uid",
    "batch.kubernetes.io/job-name",
    "controller-uid",
    "job-name",
)
"""Labels that the API server adds to the template of a Job of batch/v1."""
PACKED_VOLUME = "workdir-packed"
"""Volume of pods with the packed working directory of `batholith submit`, which is removed after
the job: ConfigMaps, or a directory of a claim."""
_NUMBER_VARIABLES = ("SLURM_JOB_ID", "SLURM_JOBID")
_HOST_VARIABLES = ("SLURM_JOB_NODELIST", "SLURM_NODELIST")


def renewed(manifest: Mapping[str, Any], *, number: int) -> dict[str, Any]:
    """Return *manifest*, as an API server returns it, so that it creates another job.

    The name is that of the job, with *number* instead of the number at its end. Variables of
    ``batholith submit`` that contain name and number are changed likewise.

    Raises:
        ValueError: its working directory is packed, and deleted with the first job.
    """
    if any(_is_packed(task) for task in manifest["spec"].get("tasks") or ()):
        raise ValueError(
            f"the working directory of {manifest['metadata']['name']} is deleted with it: submit"
            " it again from there"
        )
    metadata = manifest["metadata"]
    old = metadata["name"]
    new = f"{_NUMBER.sub('', old)[:_MAX_NAME].rstrip('-.')}-{number}"
    labels = dict(metadata.get("labels") or {})
    annotations = {
        name: value
        for name, value in (metadata.get("annotations") or {}).items()
        if name not in _OF_OTHERS
    }
    spec = copy.deepcopy(manifest["spec"])
    if JOB_ID in labels:
        labels[JOB_ID] = str(number)
        _renew_variables(spec, old, new, number)
    if manifest["apiVersion"] == BATCH_JOBS.api_version and not spec.get("manualSelector"):
        spec.pop("selector", None)
        template_labels = spec["template"].get("metadata", {}).get("labels") or {}
        for name in _OF_BATCH_JOBS:
            template_labels.pop(name, None)
    for volume in spec.get("volumes") or ():
        if volume.get("volumeClaim"):  # the claim that was created for the first job
            volume.pop("volumeClaimName", None)
    found = {"name": new, "namespace": metadata["namespace"], "labels": labels}
    return {
        "apiVersion": manifest["apiVersion"],
        "kind": manifest["kind"],
        "metadata": {**found, "annotations": annotations},
        "spec": spec,
    }


def recorded_manifest(recorded: JobHistory) -> dict[str, Any]:
    """Return the manifest of a deleted job: without annotations, which the history does not have.

    Raises:
        ValueError: its spec is too large for the history.
    """
    if recorded.spec is None:
        raise ValueError(
            f"{recorded.kind}/{recorded.name} was deleted, and its spec of {recorded.spec_bytes}"
            " bytes is too large for the history"
        )
    api_version, kind = next(key for key, found in KINDS.items() if found == recorded.kind)
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": recorded.name,
            "namespace": recorded.namespace,
            "labels": recorded.labels,
        },
        "spec": recorded.spec,
    }


def new_number() -> int:
    """Return a number of nine digits that no other job has, with high probability."""
    return 100_000_000 + secrets.randbelow(900_000_000)


def _is_packed(task: Mapping[str, Any]) -> bool:
    volumes = task["template"]["spec"].get("volumes") or ()
    return any(volume.get("name") == PACKED_VOLUME for volume in volumes)


def _renew_variables(spec: dict[str, Any], old: str, new: str, number: int) -> None:
    for task in spec.get("tasks") or ():
        for container in task["template"]["spec"]["containers"]:
            for variable in container.get("env") or ():
                if variable["name"] in _NUMBER_VARIABLES:
                    variable["value"] = str(number)
                elif variable["name"] in _HOST_VARIABLES and "value" in variable:
                    variable["value"] = variable["value"].replace(old, new)
