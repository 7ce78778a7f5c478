"""PyTorch: PyTorchJob."""

import re

import msgspec

from ...model.base import ApiStruct
from ...model.field_errors import ErrorList
from ...model.names import TRAINING_GROUP, Resource
from ...model.training.elastic import (
    RANGE_SCHEMA,
    WORKER,
    ElasticRange,
    default_range,
    validate_range,
)
from ...model.training.kinds import TrainingKind
from ...model.training.types import ReplicaSpec, RestartPolicy, TrainingJob, TrainingSpec
from .base import Framework

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

    kind = TrainingKind(
        resource=Resource(TRAINING_GROUP, "v1", "pytorchjobs", "PyTorchJob"),
        description="A training job of PyTorch, optionally with an elastic number of workers.",
        framework="pytorch",
        replica_field="pytorchReplicaSpecs",
        replica_types=("Master", WORKER),
        main_container="pytorch",
        port_name="pytorchjob-port",
        port=23456,
        restart_policy=RestartPolicy.ON_FAILURE,
        scalable=True,
    )
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


FRAMEWORK = PyTorch()
