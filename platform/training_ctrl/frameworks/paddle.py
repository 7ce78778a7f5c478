"""PaddlePaddle: PaddleJob."""

from collections.abc import Iterator

import msgspec

from ...model.field_errors import ErrorList
from ...model.training import kinds
from ...model.training.elastic import (
    RANGE_SCHEMA,
    WORKER,
    ElasticRange,
    default_range,
    validate_range,
)
from ...model.training.templates import main_container
from ...model.training.types import ReplicaSpec, TrainingJob, TrainingSpec
from .base import MASTER, Framework, Json, Member, add_env, total_replicas

_POD_IP = "POD_IP_DUMMY"


class PaddleSpec(TrainingSpec, frozen=True):
    """``spec`` of a PaddleJob."""

    replica_specs: dict[str, ReplicaSpec] = msgspec.field(default={}, name="paddleReplicaSpecs")
    elastic_policy: ElasticRange | None = None


class Paddle(Framework[PaddleSpec]):
    """PaddleJob: collective without a master, else with the master as parameter server."""

    kind = kinds.PADDLE
    job_type = TrainingJob[PaddleSpec]
    spec_schema = {
        "elasticPolicy": {
            "description": "Settings of a job whose number of workers may change.",
            "type": "object",
            "properties": RANGE_SCHEMA,
        }
    }

    def default_spec(self, spec: PaddleSpec) -> PaddleSpec:
        """Default the elastic range."""
        policy = spec.elastic_policy
        if policy is not None and (ranged := default_range(policy, spec)) is not policy:
            return msgspec.structs.replace(spec, elastic_policy=ranged)
        return spec

    def validate_spec(self, spec: PaddleSpec, errors: ErrorList) -> None:
        """Validate the elastic range."""
        if spec.elastic_policy is not None:
            validate_range(
                spec.elastic_policy,
                workers=WORKER in spec.replica_specs,
                replica_field=self.kind.replica_field,
                errors=errors,
            )

    def shape_pod(self, pod: Json, member: Member[PaddleSpec]) -> None:
        """Add the variables of ``paddle.distributed``."""
        add_env(pod, self.environment(member))

    def environment(self, member: Member[PaddleSpec]) -> Iterator[tuple[str, object]]:
        """Yield the variables of one pod."""
        job = member.job
        has_master = MASTER in job.spec.replica_specs
        meeting_point = MASTER if has_master else WORKER
        yield "PYTHONUNBUFFERED", 1
        yield "PADDLE_JOB_ID", job.metadata.name
        yield "PADDLE_NNODES", total_replicas(job)
        port = self._port(job, meeting_point)
        if (member.replica_type, member.index) == (meeting_point, 0):
            yield _POD_IP, {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
            yield "PADDLE_MASTER", f"$({_POD_IP}):{port}"
        else:
            yield "PADDLE_MASTER", f"{self.pod_name(job.metadata.name, meeting_point, 0)}:{port}"
        if has_master:
            role = "SERVER" if member.replica_type == MASTER else "TRAINER"
            yield f"PADDLE_{role}_NUM", 1

    def _port(self, job: TrainingJob[PaddleSpec], replica_type: str) -> int:
        container = main_container(
            job.spec.replica_specs[replica_type].template, self.kind.main_container
        )
        port = container.port(self.kind.port_name) if container is not None else None
        return port or self.kind.port


FRAMEWORK = Paddle()
