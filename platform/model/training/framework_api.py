"""The API side of a framework: defaults and validation of its jobs, without I/O.

Admission calls it for each write, and the training controller for each job that it reconciles.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Generic

import msgspec

from ..field_errors import ErrorList
from .defaults import canonical_replica_specs, default_replica_spec
from .kinds import TrainingKind
from .types import CleanPodPolicy, S, TrainingJob
from .validation import (
    validate_immutable,
    validate_name,
    validate_replica_specs,
    validate_run_policy,
)


class FrameworkApi(Generic[S]):
    """Defaults and validation of one kind of training jobs."""

    kind: ClassVar[TrainingKind]
    job_type: Any
    """Type of the kind's jobs, e.g. ``TrainingJob[PyTorchSpec]``."""
    spec_schema: ClassVar[Mapping[str, Any]] = {}
    """OpenAPI schema of the fields that only this kind has; ``make crds`` reads it."""

    def decode(self, data: bytes) -> TrainingJob[S]:
        """Decode a job.

        Raises:
            msgspec.ValidationError: a field has another type.
        """
        job: TrainingJob[S] = msgspec.json.decode(data, type=self.job_type)
        return job

    def pod_name(self, job: str, replica_type: str, index: int) -> str:
        """Return the name of a pod, and of its Service, of the job named *job*."""
        return f"{job}-{replica_type.lower()}-{index}".replace("/", "-")

    def default(self, job: TrainingJob[S]) -> TrainingJob[S]:
        """Return *job* with defaults; the same object if nothing was missing.

        Raises:
            msgspec.ValidationError: a field of a template has another type.
        """
        given = job.spec.replica_specs
        specs = {
            name: default_replica_spec(self.kind, spec, replicas=self.default_replicas(name))
            for name, spec in canonical_replica_specs(self.kind, given).items()
        }
        spec = job.spec
        unchanged = list(specs) == list(given) and all(specs[name] is given[name] for name in given)
        if not unchanged:
            spec = msgspec.structs.replace(spec, replica_specs=specs)
        spec = self.default_spec(spec)
        if not spec.run_policy.clean_pod_policy:
            policy = msgspec.structs.replace(spec.run_policy, clean_pod_policy=CleanPodPolicy.NONE)
            spec = msgspec.structs.replace(spec, run_policy=policy)
        return job if spec is job.spec else msgspec.structs.replace(job, spec=spec)

    def validate(self, job: TrainingJob[S]) -> list[str]:
        """Return the errors of *job*, each with the path of its field; call it before defaults."""
        errors = ErrorList()
        spec, name = job.spec, job.metadata.name
        for detail in validate_name(self.kind, name, spec.replica_specs, self.pod_name):
            errors.invalid("metadata.name", name, detail)
        validate_run_policy(spec.run_policy, errors)
        validate_replica_specs(self.kind, spec.replica_specs, errors)
        specs = canonical_replica_specs(self.kind, spec.replica_specs)
        self.validate_spec(msgspec.structs.replace(spec, replica_specs=specs), errors)
        return errors.errors

    def validate_update(self, new: TrainingJob[S], old: TrainingJob[S]) -> list[str]:
        """Return the immutable fields that differ, as errors."""
        errors = ErrorList()
        validate_immutable(new.spec.run_policy, old.spec.run_policy, errors)
        return errors.errors

    def warnings(self, job: TrainingJob[S]) -> list[str]:
        """Return warnings for the user who writes *job*."""
        return []

    def default_replicas(self, replica_type: str) -> int:
        """Return the default number of replicas."""
        return 1

    def default_spec(self, spec: S) -> S:
        """Return *spec*, whose replica types have defaults, with the defaults of this kind."""
        return spec

    def validate_spec(self, spec: S, errors: ErrorList) -> None:
        """Add the errors of this kind's rules; the replica types of *spec* are canonical."""
