"""XGBoost: XGBoostJob."""

from collections.abc import Iterable, Iterator

import msgspec

from ...model.field_errors import ErrorList
from ...model.training import kinds
from ...model.training.types import ReplicaSpec, RestartPolicy, TrainingJob, TrainingSpec
from ..observation import Evaluation, Failed, Observation, Restarting, Running, Succeeded
from .base import MASTER, WORKER, Framework, Json, Member, add_env, replicas, total_replicas


class XGBoostSpec(TrainingSpec, frozen=True):
    """``spec`` of an XGBoostJob."""

    replica_specs: dict[str, ReplicaSpec] = msgspec.field(default={}, name="xgbReplicaSpecs")


class XGBoost(Framework[XGBoostSpec]):
    """XGBoostJob: the workers connect to the master."""

    kind = kinds.XGBOOST
    job_type = TrainingJob[XGBoostSpec]

    def validate_spec(self, spec: XGBoostSpec, errors: ErrorList) -> None:
        """Require one master."""
        path = f"spec.{self.kind.replica_field}[{MASTER}]"
        master = spec.replica_specs.get(MASTER)
        if master is None:
            errors.required(path)
        elif master.replicas != 1:
            errors.add(f"{path}.replicas", "Forbidden: must be 1")

    def shape_pod(self, pod: Json, member: Member[XGBoostSpec]) -> None:
        """Add the variables of Rabit."""
        add_env(pod, self.environment(member))

    def environment(self, member: Member[XGBoostSpec]) -> Iterator[tuple[str, object]]:
        """Yield the variables of one pod.

        Raises:
            PortNotFoundError: a template lacks the port.
        """
        job, name, total = member.job, member.job.metadata.name, total_replicas(member.job)
        first = 0 if member.replica_type == MASTER else replicas(job.spec.replica_specs[MASTER])
        yield "MASTER_PORT", self.port(job, MASTER)
        yield "MASTER_ADDR", self.pod_name(name, MASTER, 0)
        yield "WORLD_SIZE", total
        yield "RANK", member.index + first
        yield "PYTHONUNBUFFERED", 1
        if total > 1:
            yield "WORKER_PORT", self.port(job, WORKER)
            workers = (self.pod_name(name, WORKER, index) for index in range(total - 1))
            yield "WORKER_ADDRS", ",".join(workers)

    def evaluate(self, seen: Observation[XGBoostSpec]) -> Iterable[Evaluation]:
        """The master decides; failures of any replica type count."""
        running = Running(self.running_message(seen.job))
        for replica_type, counts in seen.counts.items():
            if replica_type == MASTER:
                if counts.expected == 0:
                    yield running
                    yield Succeeded(self.success_message(seen.job))
                    return
                if counts.active:
                    yield running
            if not counts.failed:
                continue
            yield running
            if seen.job.spec.replica_specs[replica_type].restart_policy == RestartPolicy.NEVER:
                yield Failed(self.failure_message(seen.job, replica_type, counts.failed))
            else:
                yield Restarting(self.restart_message(seen.job, replica_type, counts.failed))


FRAMEWORK = XGBoost()
