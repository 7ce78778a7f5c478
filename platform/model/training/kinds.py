"""What distinguishes the kinds of training jobs, as data."""

from dataclasses import dataclass

from ..names import TRAINING_GROUP, Resource
from .types import RestartPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingKind:
    """One kind of training jobs."""

    resource: Resource
    description: str
    """Text for ``kubectl explain``."""
    framework: str
    """Value of the metrics label ``framework``."""
    replica_field: str
    """Field of the replica types in ``spec``, e.g. ``tfReplicaSpecs``."""
    replica_types: tuple[str, ...]
    """Replica types in the order in which they are reconciled."""
    main_container: str
    port_name: str
    port: int
    adds_port: bool = True
    """Whether the port is added to the main container if it is missing."""
    restart_policy: RestartPolicy
    """Default of the replica types."""
    needs_main_container: bool = True
    """Whether each template must have the main container."""
    has_services: bool = True
    """Whether each pod has a Service of its name, which must be a DNS label."""
    scalable: bool = False
    """Whether the kind has ``/scale``, for the workers."""

    @property
    def name(self) -> str:
        """Return the kind's name, e.g. ``TFJob``."""
        return self.resource.kind

    @property
    def controller_name(self) -> str:
        """Return the value of the label of the operator's name, e.g. ``tfjob-controller``."""
        return f"{self.name.lower()}-controller"

    @property
    def webhook_path(self) -> str:
        """Return the path of the validating webhook."""
        return f"/validate-kubeflow-org-v1-{self.name.lower()}"

    @property
    def webhook_name(self) -> str:
        """Return the name of the validating webhook."""
        return f"validator.{self.name.lower()}.training-operator.kubeflow.org"

    def canonical_type(self, text: str) -> str | None:
        """Return the replica type whose letters *text* has, upper or lower; ``None`` if unknown."""
        lowered = text.lower()
        return next((each for each in self.replica_types if each.lower() == lowered), None)


JAX = TrainingKind(
    resource=Resource(TRAINING_GROUP, "v1", "jaxjobs", "JAXJob"),
    description="A training job of JAX.",
    framework="jax",
    replica_field="jaxReplicaSpecs",
    replica_types=("Worker",),
    main_container="jax",
    port_name="jaxjob-port",
    port=6666,
    restart_policy=RestartPolicy.NEVER,
    scalable=True,
)
MPI = TrainingKind(
    resource=Resource(TRAINING_GROUP, "v1", "mpijobs", "MPIJob"),
    description="A training job whose launcher starts processes in the workers by MPI.",
    framework="mpi",
    replica_field="mpiReplicaSpecs",
    replica_types=("Launcher", "Worker"),
    main_container="mpi",
    port_name="mpi-port",
    port=9999,
    adds_port=False,
    restart_policy=RestartPolicy.NEVER,
    needs_main_container=False,
    has_services=False,
)
PADDLE = TrainingKind(
    resource=Resource(TRAINING_GROUP, "v1", "paddlejobs", "PaddleJob"),
    description="A training job of PaddlePaddle.",
    framework="paddle",
    replica_field="paddleReplicaSpecs",
    replica_types=("Master", "Worker"),
    main_container="paddle",
    port_name="master",
    port=36543,
    restart_policy=RestartPolicy.ON_FAILURE,
    scalable=True,
)
PYTORCH = TrainingKind(
    resource=Resource(TRAINING_GROUP, "v1", "pytorchjobs", "PyTorchJob"),
    description="A training job of PyTorch, optionally with an elastic number of workers.",
    framework="pytorch",
    replica_field="pytorchReplicaSpecs",
    replica_types=("Master", "Worker"),
    main_container="pytorch",
    port_name="pytorchjob-port",
    port=23456,
    restart_policy=RestartPolicy.ON_FAILURE,
    scalable=True,
)
TENSORFLOW = TrainingKind(
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
XGBOOST = TrainingKind(
    resource=Resource(TRAINING_GROUP, "v1", "xgboostjobs", "XGBoostJob"),
    description="A training job of XGBoost.",
    framework="xgboost",
    replica_field="xgbReplicaSpecs",
    replica_types=("Master", "Worker"),
    main_container="xgboost",
    port_name="xgboostjob-port",
    port=9999,
    restart_policy=RestartPolicy.NEVER,
)
TRAINING_KINDS = (JAX, MPI, PADDLE, PYTORCH, TENSORFLOW, XGBOOST)
"""The kinds that ship with Batholith."""
