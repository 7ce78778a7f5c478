"""PyTorch: PyTorchJob."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ...model.base import ApiStruct
from ...model.field_errors import ErrorList
from ...model.names import Resource
from ...model.training import kinds
from ...model.training.elastic import (
    RANGE_SCHEMA,
    WORKER,
    ElasticRange,
    default_range,
    validate_range,
)
from ...model.training.types import ReplicaSpec, TrainingJob, TrainingSpec
from ..core_types import Pod
from ..dependents import DesiredObject
from ..observation import Observation
from ._pytorch_init import init_containers
from .base import (
    MASTER,
    Framework,
    Json,
    Member,
    PodSettings,
    add_env,
    decode_raw,
    total_replicas,
)

HORIZONTAL_POD_AUTOSCALERS = Resource(
    "autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler"
)
_ELASTIC = "spec.elasticPolicy"
_BELOW_ONE = re.compile(r"[+-]?0+|-[0-9]+")


class RendezvousSetting(ApiStruct, frozen=True):
    """``elasticPolicy.rdzvConf[]``."""

    key: str = ""
    value: str = ""


class PyTorchElasticPolicy(ElasticRange, frozen=True):
    """``spec.elasticPolicy`` of a PyTorchJob."""

    rdzv_backend: str | None = None
    rdzv_port: int | None = None
    rdzv_host: str | None = None
    rdzv_id: str | None = None
    rdzv_conf: tuple[RendezvousSetting, ...] = ()
    standalone: bool = False
    n_proc_per_node: int | None = None
    """Deprecated: ``spec.nprocPerNode``."""


class PyTorchSpec(TrainingSpec, frozen=True):
    """``spec`` of a PyTorchJob."""

    replica_specs: dict[str, ReplicaSpec] = msgspec.field(default={}, name="pytorchReplicaSpecs")
    elastic_policy: PyTorchElasticPolicy | None = None
    nproc_per_node: str | None = None


class PyTorch(Framework[PyTorchSpec]):
    """PyTorchJob: the pods meet at the master, or elastic ones at worker 0."""

    kind = kinds.PYTORCH
    job_type = TrainingJob[PyTorchSpec]
    spec_schema = {
        "nprocPerNode": {
            "description": "Processes per pod: auto, cpu, gpu or a number. Defaults to auto.",
            "type": "string",
        },
        "elasticPolicy": {
            "description": "Settings of a job whose number of workers may change.",
            "type": "object",
            "properties": {
                **RANGE_SCHEMA,
                "rdzvBackend": {
                    "description": "Rendezvous backend: c10d, etcd or etcd-v2. Defaults to c10d.",
                    "type": "string",
                },
                "rdzvHost": {
                    "description": "Host of the rendezvous; defaults to worker 0.",
                    "type": "string",
                },
                "rdzvPort": {
                    "description": "Port of the rendezvous; defaults to the workers' port.",
                    "type": "integer",
                    "format": "int32",
                    "minimum": 1,
                    "maximum": 65535,
                },
                "rdzvId": {"description": "ID of the rendezvous.", "type": "string"},
                "rdzvConf": {
                    "description": "Further settings of the rendezvous.",
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"key": {"type": "string"}, "value": {"type": "string"}},
                    },
                },
                "standalone": {
                    "description": "Whether a single pod starts a rendezvous for itself alone.",
                    "type": "boolean",
                },
                "nProcPerNode": {
                    "description": "Deprecated: use spec.nprocPerNode.",
                    "type": "integer",
                    "format": "int32",
                    "minimum": 1,
                },
            },
        },
    }

    def default_spec(self, spec: PyTorchSpec) -> PyTorchSpec:
        """Default the elastic range and the processes per pod."""
        policy = spec.elastic_policy
        if policy is not None and (ranged := default_range(policy, spec)) is not policy:
            spec = msgspec.structs.replace(spec, elastic_policy=ranged)
        deprecated = policy is not None and policy.n_proc_per_node is not None
        if spec.nproc_per_node is None and not deprecated:
            spec = msgspec.structs.replace(spec, nproc_per_node="auto")
        return spec

    def validate_spec(self, spec: PyTorchSpec, errors: ErrorList) -> None:
        """Validate the number of replicas, processes per pod and the elastic policy."""
        field = f"spec.{self.kind.replica_field}"
        master, workers = spec.replica_specs.get("Master"), spec.replica_specs.get(WORKER)
        if master is not None and master.replicas != 1:
            errors.add(f"{field}[Master].replicas", "Forbidden: must be 1")
        if workers is not None and workers.replicas == 0:
            errors.add(f"{field}[{WORKER}].replicas", "Forbidden: must be at least 1")
        processes = spec.nproc_per_node
        if processes is not None and _BELOW_ONE.fullmatch(processes):
            errors.invalid("spec.nprocPerNode", processes, "a number must be at least 1")
        if spec.elastic_policy is not None:
            self._validate_elastic(spec, spec.elastic_policy, errors)

    def _validate_elastic(
        self, spec: PyTorchSpec, policy: PyTorchElasticPolicy, errors: ErrorList
    ) -> None:
        validate_range(
            policy,
            workers=WORKER in spec.replica_specs,
            replica_field=self.kind.replica_field,
            errors=errors,
        )
        errors.out_of_range(f"{_ELASTIC}.rdzvPort", policy.rdzv_port, minimum=1, maximum=65535)
        errors.out_of_range(f"{_ELASTIC}.nProcPerNode", policy.n_proc_per_node, minimum=1)
        if policy.n_proc_per_node is not None and spec.nproc_per_node is not None:
            text = "Forbidden: must not be set together with spec.nprocPerNode"
            errors.add(f"{_ELASTIC}.nProcPerNode", text)

    def warnings(self, job: TrainingJob[PyTorchSpec]) -> list[str]:
        """Warn about the deprecated number of processes."""
        policy = job.spec.elastic_policy
        if policy is None or policy.n_proc_per_node is None:
            return []
        return [f"{_ELASTIC}.nProcPerNode is deprecated, use spec.nprocPerNode instead"]

    watched = (HORIZONTAL_POD_AUTOSCALERS,)

    def shape_pod(self, pod: Json, member: Member[PyTorchSpec]) -> None:
        """Add the variables of ``torch.distributed``; a worker waits for the master's address."""
        add_env(pod, self.environment(member))
        has_master = MASTER in member.job.spec.replica_specs
        if has_master and member.replica_type != MASTER and member.settings.pytorch_init_image:
            address = self.pod_name(member.job.metadata.name, MASTER, 0)
            given = pod["spec"].get("initContainers") or ()
            pod["spec"]["initContainers"] = [*given, *init_containers(address, member.settings)]

    def environment(self, member: Member[PyTorchSpec]) -> Iterator[tuple[str, object]]:
        """Yield the variables of one pod.

        Raises:
            PortNotFoundError: a template lacks the port.
        """
        job, spec = member.job, member.job.spec
        yield "PYTHONUNBUFFERED", 1
        if MASTER in spec.replica_specs:
            yield from self._master_environment(member)
        if spec.nproc_per_node is not None:
            yield "PET_NPROC_PER_NODE", spec.nproc_per_node
        if spec.elastic_policy is not None:
            yield from self._elastic_environment(member, spec.elastic_policy)
        else:
            yield "PET_NNODES", total_replicas(job)

    def _master_environment(self, member: Member[PyTorchSpec]) -> Iterator[tuple[str, object]]:
        job, port = member.job, self.port(member.job, MASTER)
        address = self.pod_name(job.metadata.name, MASTER, 0)
        rank = member.index + (member.replica_type != MASTER)
        yield "MASTER_PORT", port
        yield "PET_MASTER_PORT", port
        yield "MASTER_ADDR", address
        yield "PET_MASTER_ADDR", address
        yield "WORLD_SIZE", total_replicas(job) * _processes(job.spec.nproc_per_node)
        yield "RANK", rank
        yield "PET_NODE_RANK", rank

    def _elastic_environment(
        self, member: Member[PyTorchSpec], policy: PyTorchElasticPolicy
    ) -> Iterator[tuple[str, object]]:
        job = member.job
        host = policy.rdzv_host or self.pod_name(job.metadata.name, WORKER, 0)
        yield "PET_RDZV_ENDPOINT", f"{host}:{policy.rdzv_port or self.port(job, WORKER)}"
        yield "PET_RDZV_BACKEND", policy.rdzv_backend or "c10d"
        yield "PET_NNODES", f"{policy.min_replicas}:{policy.max_replicas}"
        if policy.max_restarts is not None:
            yield "PET_MAX_RESTARTS", policy.max_restarts
        if policy.n_proc_per_node is not None:
            yield "PET_NPROC_PER_NODE", policy.n_proc_per_node
        if policy.rdzv_id is not None:
            yield "PET_RDZV_ID", policy.rdzv_id
        if policy.rdzv_conf:
            settings = (f"{each.key}={each.value}" for each in policy.rdzv_conf)
            yield "PET_RDZV_CONF", ",".join(settings)
        if policy.standalone:
            yield "PET_STANDALONE", ""

    def succeeds_early(self, seen: Observation[PyTorchSpec], replica_type: str) -> bool:
        """Return whether a worker of an elastic job has succeeded."""
        return seen.job.spec.elastic_policy is not None and seen.counts[replica_type].succeeded > 0

    def objects(
        self,
        job: TrainingJob[PyTorchSpec],
        pods: Mapping[str, Mapping[int, Pod]],
        settings: PodSettings,
    ) -> Sequence[DesiredObject]:
        """Return the autoscaler of an elastic job with metrics."""
        policy = job.spec.elastic_policy
        if policy is None or not policy.metrics or job.spec.run_policy.suspend:
            return ()
        target = {
            "apiVersion": self.kind.resource.api_version,
            "kind": self.kind.name,
            "name": job.metadata.name,
        }
        spec: dict[str, Any] = {
            "scaleTargetRef": target,
            "minReplicas": policy.min_replicas,
            "maxReplicas": policy.max_replicas,
            "metrics": [decode_raw(each) for each in policy.metrics],
        }
        name = job.metadata.name
        return (
            DesiredObject(resource=HORIZONTAL_POD_AUTOSCALERS, name=name, content={"spec": spec}),
        )

    def obsolete_objects(self, job: TrainingJob[PyTorchSpec]) -> Sequence[DesiredObject]:
        """Return the autoscaler of a job that is suspended, or without metrics."""
        if self.objects(job, {}, PodSettings()):
            return ()
        return (DesiredObject(resource=HORIZONTAL_POD_AUTOSCALERS, name=job.metadata.name),)


def _processes(text: str | None) -> int:
    """Return the number of processes per pod as far as it is known: 1 for ``auto`` and the like."""
    return int(text) if text is not None and re.fullmatch(r"[+-]?[0-9]+", text) else 1


FRAMEWORK = PyTorch()
