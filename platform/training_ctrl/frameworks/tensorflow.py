"""TensorFlow: TFJob."""

import msgspec

from ...model.field_errors import ErrorList
from ...model.names import TRAINING_GROUP, Resource
from ...model.training.kinds import TrainingKind
from ...model.training.types import ReplicaSpec, RestartPolicy, TrainingJob, TrainingSpec
from .base import Framework

ALL_WORKERS = "AllWorkers"
"""``successPolicy`` of a job that succeeds when all its workers have."""


class TensorFlowSpec(TrainingSpec, frozen=True):
    """``spec`` of a TFJob."""

    replica_specs: dict[str, ReplicaSpec] = msgspec.field(default={}, name="tfReplicaSpecs")
    success_policy: str = ""
    enable_dynamic_worker: bool = False


class TensorFlow(Framework[TensorFlowSpec]):
    """TFJob: the pods learn the addresses of all others from ``TF_CONFIG``."""

    kind = TrainingKind(
        resource=Resource(TRAINING_GROUP, "v1", "tfjobs", "TFJob"),
        description="A training job of TensorFlow.",
        framework="tensorflow",
        replica_field="tfReplicaSpecs",
        replica_types=("Chief", "Master", "PS", "Worker", "Evaluator"),
        main_container="tensorflow",
        port_name="tfjob-port",
        port=2222,
        restart_policy=RestartPolicy.NEVER,
    )
    job_type = TrainingJob[TensorFlowSpec]
    spec_schema = {
        "successPolicy": {
            "description": (
                "When a job without Chief and Master succeeds: by default when worker 0 has,"
                " AllWorkers: when all workers have."
            ),
            "type": "string",
            "enum": ["", ALL_WORKERS],
        },
        "enableDynamicWorker": {
            "description": "Whether the number of workers may change while the job runs.",
            "type": "boolean",
        },
    }

    def validate_spec(self, spec: TensorFlowSpec, errors: ErrorList) -> None:
        """Allow one of Chief and Master, and only known success policies."""
        if "Chief" in spec.replica_specs and "Master" in spec.replica_specs:
            path = f"spec.{self.kind.replica_field}"
            errors.add(path, "Forbidden: must not have both Chief and Master")
        errors.not_supported("spec.successPolicy", spec.success_policy, ("", ALL_WORKERS))


FRAMEWORK = TensorFlow()
