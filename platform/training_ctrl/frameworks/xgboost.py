"""XGBoost: XGBoostJob."""

import msgspec

from ...model.field_errors import ErrorList
from ...model.names import TRAINING_GROUP, Resource
from ...model.training.kinds import TrainingKind
from ...model.training.types import ReplicaSpec, RestartPolicy, TrainingJob, TrainingSpec
from .base import Framework

MASTER = "Master"


class XGBoostSpec(TrainingSpec, frozen=True):
    """``spec`` of an XGBoostJob."""

    replica_specs: dict[str, ReplicaSpec] = msgspec.field(default={}, name="xgbReplicaSpecs")


class XGBoost(Framework[XGBoostSpec]):
    """XGBoostJob: the workers connect to the master."""

    kind = TrainingKind(
        resource=Resource(TRAINING_GROUP, "v1", "xgboostjobs", "XGBoostJob"),
        description="A training job of XGBoost.",
        framework="xgboost",
        replica_field="xgbReplicaSpecs",
        replica_types=(MASTER, "Worker"),
        main_container="xgboost",
        port_name="xgboostjob-port",
        port=9999,
        restart_policy=RestartPolicy.NEVER,
    )
    job_type = TrainingJob[XGBoostSpec]

    def validate_spec(self, spec: XGBoostSpec, errors: ErrorList) -> None:
        """Require one master."""
        path = f"spec.{self.kind.replica_field}[{MASTER}]"
        master = spec.replica_specs.get(MASTER)
        if master is None:
            errors.required(path)
        elif master.replicas != 1:
            errors.add(f"{path}.replicas", "Forbidden: must be 1")


FRAMEWORK = XGBoost()
