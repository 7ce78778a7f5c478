"""TensorFlow: TFJob."""

import json
from collections.abc import Iterable
from typing import Any

import msgspec

from ...model.field_errors import ErrorList
from ...model.pod import PodPhase
from ...model.training import kinds
from ...model.training.templates import main_container
from ...model.training.types import ReplicaSpec, RestartPolicy, TrainingJob, TrainingSpec
from ..core_types import Pod
from ..observation import Evaluation, Failed, Observation, Restarting, Running, Succeeded
from ..replica_pods import exit_code
from .base import WORKER, Framework, Json, Member, append_env, containers, replicas, total_replicas

_PS = "PS"
_LEADERS = ("Chief", "Master")
_EVALUATION_ORDER = ("Chief", "Evaluator", "Master", _PS, WORKER)
"""Order in which the replica types are evaluated."""

ALL_WORKERS = "AllWorkers"
"""``successPolicy`` of a job that succeeds when all its workers have."""


class TensorFlowSpec(TrainingSpec, frozen=True):
    """``spec`` of a TFJob."""

    replica_specs: dict[str, ReplicaSpec] = msgspec.field(default={}, name="tfReplicaSpecs")
    success_policy: str = ""
    enable_dynamic_worker: bool = False


class TensorFlow(Framework[TensorFlowSpec]):
    """TFJob: the pods learn the addresses of all others from ``TF_CONFIG``."""

    kind = kinds.TENSORFLOW
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

    def shape_pod(self, pod: Json, member: Member[TensorFlowSpec]) -> None:
        """Add ``TF_CONFIG`` to the main container, unless the pod is the only one."""
        if total_replicas(member.job) == 1:
            return
        config = json.dumps(self.config(member), separators=(",", ":"))
        for container in containers(pod):
            if container.get("name") == self.kind.main_container:
                append_env(container, [("TF_CONFIG", config)])
                return

    def config(self, member: Member[TensorFlowSpec]) -> dict[str, Any]:
        """Return the content of ``TF_CONFIG`` for one pod."""
        task = {"type": member.replica_type.lower(), "index": member.index}
        if member.job.spec.enable_dynamic_worker:
            return {"cluster": self._dynamic_cluster(member), "task": task}
        cluster = {
            name.lower(): self._addresses(member, name) for name in member.job.spec.replica_specs
        }
        return {"cluster": dict(sorted(cluster.items())), "task": task, "environment": "cloud"}

    def _dynamic_cluster(self, member: Member[TensorFlowSpec]) -> dict[str, Any]:
        """Return the addresses that do not change when the number of workers does."""
        own = member.index
        if member.replica_type == WORKER:
            has_ps = _PS in member.job.spec.replica_specs
            ps = self._addresses(member, _PS) if has_ps else []
            return {"worker": {str(own): self._address(member, WORKER, own)}, "ps": ps}
        if member.replica_type == _PS:
            return {"worker": {}, "ps": [self._address(member, _PS, own)]}
        return {"worker": {}, "ps": []}

    def _addresses(self, member: Member[TensorFlowSpec], replica_type: str) -> list[str]:
        number = replicas(member.job.spec.replica_specs[replica_type])
        return [self._address(member, replica_type, index) for index in range(number)]

    def _address(self, member: Member[TensorFlowSpec], replica_type: str, index: int) -> str:
        meta = member.job.metadata
        host = f"{self.pod_name(meta.name, replica_type, index)}.{meta.namespace}.svc"
        domain = member.settings.cluster_domain
        container = main_container(
            member.job.spec.replica_specs[replica_type].template, self.kind.main_container
        )
        port = container.port(self.kind.port_name) if container is not None else None
        return f"{host}{'.' if domain else ''}{domain}:{port or self.kind.port}"

    def is_master(self, job: TrainingJob[TensorFlowSpec], replica_type: str, index: int) -> bool:
        """Return whether the pod is a Chief or Master; without these, whether it is worker 0."""
        if any(leader in job.spec.replica_specs for leader in _LEADERS):
            return replica_type in _LEADERS
        return replica_type == WORKER and index == 0

    def evaluate(self, seen: Observation[TensorFlowSpec]) -> Iterable[Evaluation]:
        """Chief or Master decide; without these, the workers by the success policy."""
        has_leader = any(leader in seen.counts for leader in _LEADERS)
        for replica_type in filter(seen.counts.__contains__, _EVALUATION_ORDER):
            counts = seen.counts[replica_type]
            if replica_type in (_LEADERS if has_leader else (WORKER,)):
                if counts.expected == 0 or (not has_leader and self._first_worker_suffices(seen)):
                    yield Succeeded(self.success_message(seen.job))
                    return
                if counts.active:
                    yield Running(self.running_message(seen.job))
            if counts.failed:
                yield from self._failures(seen, replica_type)

    def _failures(
        self, seen: Observation[TensorFlowSpec], replica_type: str
    ) -> Iterable[Evaluation]:
        number = seen.counts[replica_type].failed
        restarts = seen.job.spec.replica_specs[replica_type].restart_policy != RestartPolicy.NEVER
        if seen.restarting and restarts:
            yield Restarting(self.restart_message(seen.job, replica_type, number))
        elif not (seen.job.spec.enable_dynamic_worker and replica_type == WORKER):
            yield Failed(self.failure_message(seen.job, replica_type, number))

    def _first_worker_suffices(self, seen: Observation[TensorFlowSpec]) -> bool:
        pod: Pod | None = seen.pods.get(WORKER, {}).get(0)
        if pod is None or seen.job.spec.success_policy == ALL_WORKERS:
            return False
        return pod.phase == PodPhase.SUCCEEDED and exit_code(pod, self.kind.main_container) == 0

    def running_message(self, job: TrainingJob[TensorFlowSpec]) -> str:
        """Return the message of the condition Running."""
        return f"TFJob {job.metadata.key} is running."

    def success_message(self, job: TrainingJob[TensorFlowSpec]) -> str:
        """Return the message of the condition Succeeded."""
        return f"TFJob {job.metadata.key} successfully completed."

    def failure_message(
        self, job: TrainingJob[TensorFlowSpec], replica_type: str, number: int
    ) -> str:
        """Return the message of the condition Failed."""
        return (
            f"TFJob {job.metadata.key} has failed because {number} {replica_type} "
            "replica(s) failed."
        )


FRAMEWORK = TensorFlow()
