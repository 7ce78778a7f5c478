"""Training jobs as manifests: valid ones of each kind, and invalid ones."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from batholith.training_ctrl.frameworks import FRAMEWORKS
from batholith.training_ctrl.frameworks.base import Framework

Json = dict[str, Any]

BY_KIND: Mapping[str, Framework[Any]] = {each.kind.name: each for each in FRAMEWORKS}
REQUIRED = {"MPIJob": ("Launcher",), "XGBoostJob": ("Master",)}
"""Replica types that a kind requires besides a worker."""


def template(kind: str, **fields: Any) -> Json:
    """A pod template with the main container."""
    main = {"name": BY_KIND[kind].kind.main_container, "image": "example.com/train"} | fields
    return {"spec": {"containers": [main]}}


def replicas(kind: str, count: int | None = 1, **fields: Any) -> Json:
    """The value of a replica type."""
    created: Json = {} if count is None else {"replicas": count}
    return created | {"template": template(kind)} | fields


def training_job(kind: str, types: Json | None = None, *, name: str = "j", **spec: Any) -> Json:
    """A job of *types*, by default what the kind requires and a worker."""
    if types is None:
        types = {each: replicas(kind) for each in (*REQUIRED.get(kind, ()), "Worker")}
    resource = BY_KIND[kind].kind.resource
    return {
        "apiVersion": resource.api_version,
        "kind": kind,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {BY_KIND[kind].kind.replica_field: types} | spec,
    }


@dataclass(frozen=True, slots=True)
class InvalidJob:
    """A job that is invalid for one reason."""

    label: str
    kind: str
    job: Json
    error: str
    """Message of admission."""
    schema_first: bool = False
    """Whether the definition rejects the job before admission sees it."""


def invalid_jobs() -> list[InvalidJob]:
    """One or more for each rule and kind."""
    found = []
    for kind, framework in BY_KIND.items():
        for rule in (_names, _run_policies, _replica_types, _containers):
            found += [
                InvalidJob(f"{kind}: {label}", kind, job, error, first)
                for label, job, error, first in rule(kind, framework.kind.replica_field)
            ]
    for kind, of_kind in _OF_KINDS.items():
        found += [
            InvalidJob(f"{kind}: {label}", kind, job, error, first)
            for label, job, error, first in of_kind(kind)
        ]
    return found


Found = list[tuple[str, Json, str, bool]]


def _names(kind: str, field: str) -> Found:
    del field
    long = "a" * 55
    found: Found = [
        (
            "the name of a pod is too long",
            training_job(kind, _with(kind, Worker=replicas(kind, 11)), name=long),
            f'metadata.name: Invalid value: "{long}": the name of its pod {long}-worker-10 must be'
            " no more than 63 bytes",
            False,
        )
    ]
    if kind != "MPIJob":
        found += [
            (
                f"the name {name} is no DNS label",
                training_job(kind, name=name),
                f'metadata.name: Invalid value: "{name}": a DNS-1035 label must consist of',
                False,
            )
            for name in ("1j", "a.b")
        ]
    return found


def _with(kind: str, **types: Json) -> Json:
    required = {each: replicas(kind) for each in REQUIRED.get(kind, ())}
    return required | types


def _run_policies(kind: str, field: str) -> Found:
    del field
    policy = "spec.runPolicy"
    gang = f"{policy}.schedulingPolicy"
    rows: list[tuple[str, Json, str, bool]] = [
        (
            "another manager",
            {"managedBy": "me"},
            f'{policy}.managedBy: Unsupported value: "me": supported values:'
            ' "kubeflow.org/training-operator", "kueue.x-k8s.io/multikueue"',
            True,
        ),
        (
            "an empty manager",
            {"managedBy": ""},
            f'{policy}.managedBy: Unsupported value: "": supported values:',
            True,
        ),
        (
            "an unknown clean-up policy",
            {"cleanPodPolicy": "Some"},
            f'{policy}.cleanPodPolicy: Unsupported value: "Some": supported values: "None",'
            ' "Running", "All"',
            True,
        ),
        (
            "a resource that is no quantity",
            {"schedulingPolicy": {"minResources": {"cpu": "x"}}},
            f'{gang}.minResources[cpu]: Invalid value: "x": ',
            True,
        ),
        (
            "a negative resource",
            {"schedulingPolicy": {"minResources": {"cpu": "-1"}}},
            f'{gang}.minResources[cpu]: Invalid value: "-1": must not be negative',
            False,
        ),
        (
            "a queue that is no name",
            {"schedulingPolicy": {"queue": "A B"}},
            f'{gang}.queue: Invalid value: "A B": a lowercase RFC 1123 subdomain must',
            False,
        ),
    ]
    rows += [
        (f"negative {name}", {name: -1}, _below(f"{policy}.{name}", 0), True)
        for name in ("ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit")
    ]
    rows += [
        (f"negative {name}", {"schedulingPolicy": {name: -1}}, _below(f"{gang}.{name}", 0), True)
        for name in ("minAvailable", "scheduleTimeoutSeconds")
    ]
    return [
        (label, training_job(kind, runPolicy=value), error, first)
        for label, value, error, first in rows
    ]


def _below(path: str, minimum: int, value: int = -1) -> str:
    return f"{path}: Invalid value: {value}: must be greater than or equal to {minimum}"


def _replica_types(kind: str, field: str) -> Found:
    path = f"spec.{field}"
    types = BY_KIND[kind].kind.replica_types
    return [
        (
            "no replica type",
            training_job(kind, {}),
            f"{path}: Required value: must have at least one replica type",
            False,
        ),
        (
            "an unknown replica type",
            training_job(kind, _with(kind, Worker=replicas(kind), Helper=replicas(kind))),
            f'{path}[Helper]: Unsupported value: "Helper": supported values: '
            + ", ".join(f'"{each}"' for each in types),
            False,
        ),
        (
            "two spellings of one replica type",
            training_job(kind, _with(kind, Worker=replicas(kind), WORKER=replicas(kind))),
            f'{path}[WORKER]: Duplicate value: "Worker"',
            False,
        ),
        (
            "a negative number of replicas",
            training_job(kind, _with(kind, Worker=replicas(kind, -1))),
            f"{path}[Worker].replicas: Invalid value: -1: must be between 0 and 2147483647",
            True,
        ),
        (
            "an unknown restart policy",
            training_job(kind, _with(kind, Worker=replicas(kind, restartPolicy="Maybe"))),
            f'{path}[Worker].restartPolicy: Unsupported value: "Maybe": supported values:'
            ' "Always", "OnFailure", "Never", "ExitCode"',
            True,
        ),
    ]


def _containers(kind: str, field: str) -> Found:
    path = f"spec.{field}[Worker].template.spec.containers"

    def with_template(value: Json) -> Json:
        return training_job(kind, _with(kind, Worker=replicas(kind) | {"template": value}))

    found: Found = [
        (
            "no template",
            with_template({}),
            f"{path}: Required value: must have at least one container",
            False,
        ),
        (
            "no container",
            with_template({"spec": {"containers": []}}),
            f"{path}: Required value: must have at least one container",
            False,
        ),
        (
            "a container without image",
            with_template(template(kind, image="")),
            f"{path}[0].image: Required value",
            False,
        ),
        (
            "a container without name",
            with_template({"spec": {"containers": [{"name": "", "image": "x"}]}}),
            f"{path}[0].name: Required value",
            False,
        ),
    ]
    if kind != "MPIJob":
        main = BY_KIND[kind].kind.main_container
        found.append(
            (
                "no main container",
                with_template(template(kind, name="other")),
                f"{path}: Required value: must have a container with the name {main}",
                False,
            )
        )
    return found


def _of_tensorflow(kind: str) -> Found:
    one = replicas(kind)
    return [
        (
            "Chief and Master",
            training_job(kind, {"Chief": one, "master": one, "Worker": one}),
            "spec.tfReplicaSpecs: Forbidden: must not have both Chief and Master",
            False,
        ),
        (
            "an unknown success policy",
            training_job(kind, successPolicy="Some"),
            'spec.successPolicy: Unsupported value: "Some": supported values: "", "AllWorkers"',
            True,
        ),
    ]


def _of_pytorch(kind: str) -> Found:
    master = "spec.pytorchReplicaSpecs[Master].replicas: Forbidden: must be 1"
    found: Found = [
        (
            f"{count} masters",
            training_job(kind, {"Master": replicas(kind, count)}),
            master,
            False,
        )
        for count in (None, 0, 2)
    ]
    found += [
        (
            "no workers",
            training_job(kind, {"Worker": replicas(kind, 0)}),
            "spec.pytorchReplicaSpecs[Worker].replicas: Forbidden: must be at least 1",
            False,
        ),
        (
            "both numbers of processes",
            training_job(kind, nprocPerNode="2", elasticPolicy={"nProcPerNode": 2}),
            "spec.elasticPolicy.nProcPerNode: Forbidden: must not be set together with"
            " spec.nprocPerNode",
            False,
        ),
        (
            "no process",
            training_job(kind, elasticPolicy={"nProcPerNode": 0}),
            _below("spec.elasticPolicy.nProcPerNode", 1, 0),
            True,
        ),
        (
            "a port beyond the last",
            training_job(kind, elasticPolicy={"rdzvPort": 65536}),
            "spec.elasticPolicy.rdzvPort: Invalid value: 65536: must be between 1 and 65535",
            True,
        ),
    ]
    for text in ("0", "-1", "+00"):
        found.append(
            (
                f"{text} processes",
                training_job(kind, nprocPerNode=text),
                f'spec.nprocPerNode: Invalid value: "{text}": a number must be at least 1',
                False,
            )
        )
    return found + _of_elastic(kind)


def _of_elastic(kind: str) -> Found:
    policy = "spec.elasticPolicy"
    field = BY_KIND[kind].kind.replica_field
    found: Found = [
        (
            "an elastic policy without workers",
            training_job(kind, {"Master": replicas(kind)}, elasticPolicy={"minReplicas": 1}),
            f"spec.{field}[Worker]: Required value: must be set if elasticPolicy is",
            False,
        ),
        (
            "a range upside down",
            training_job(kind, elasticPolicy={"minReplicas": 3, "maxReplicas": 2}),
            f"{policy}.minReplicas: Invalid value: 3: must be less than or equal to maxReplicas, 2",
            False,
        ),
    ]
    for name, minimum in (("minReplicas", 1), ("maxReplicas", 1), ("maxRestarts", 0)):
        found.append(
            (
                f"negative {name}",
                training_job(kind, elasticPolicy={name: -1}),
                _below(f"{policy}.{name}", minimum),
                True,
            )
        )
    return found


def _of_mpi(kind: str) -> Found:
    one = replicas(kind)
    return [
        (
            "no launcher",
            training_job(kind, {"Worker": one}),
            "spec.mpiReplicaSpecs[Launcher]: Required value",
            False,
        ),
        (
            "two launchers",
            training_job(kind, {"Launcher": replicas(kind, 2), "Worker": one}),
            "spec.mpiReplicaSpecs[Launcher].replicas: Forbidden: must be 1",
            False,
        ),
        (
            "no slots",
            training_job(kind, slotsPerWorker=0),
            _below("spec.slotsPerWorker", 1, 0),
            True,
        ),
        (
            "an unknown clean-up policy in the older form",
            training_job(kind, cleanPodPolicy="Some"),
            'spec.cleanPodPolicy: Unsupported value: "Some": supported values: "None", "Running",'
            ' "All"',
            True,
        ),
        (
            "a name too long for the launcher",
            training_job(kind, {"Launcher": one}, name="a" * 55),
            f"the name of its pod {'a' * 55}-launcher must be no more than 63 bytes",
            False,
        ),
    ]


def _of_xgboost(kind: str) -> Found:
    master = "spec.xgbReplicaSpecs[Master]"
    found: Found = [
        ("no master", training_job(kind, {"Worker": replicas(kind)}), master, False),
    ]
    for count in (None, 0, 2):
        job = training_job(kind, {"Master": replicas(kind, count)})
        found.append((f"{count} masters", job, f"{master}.replicas: Forbidden: must be 1", False))
    return found


_OF_KINDS: Mapping[str, Callable[[str], Found]] = {
    "TFJob": _of_tensorflow,
    "PyTorchJob": _of_pytorch,
    "MPIJob": _of_mpi,
    "XGBoostJob": _of_xgboost,
    "PaddleJob": _of_elastic,
}

INVALID_JOBS = invalid_jobs()


def valid_jobs() -> list[Json]:
    """Valid jobs of all kinds: small ones, and ones with all fields."""
    return [training_job(kind) for kind in BY_KIND] + [_complete(kind) for kind in BY_KIND]


def _complete(kind: str) -> Json:
    types = BY_KIND[kind].kind.replica_types
    if kind == "TFJob":
        types = tuple(each for each in types if each != "Master")
    specs = {
        each: replicas(kind, 1 if each in ("Master", "Launcher") else 3, restartPolicy="ExitCode")
        for each in types
    }
    run_policy = {
        "cleanPodPolicy": "All",
        "ttlSecondsAfterFinished": 0,
        "activeDeadlineSeconds": 60,
        "backoffLimit": 3,
        "suspend": True,
        "managedBy": "kubeflow.org/training-operator",
        "schedulingPolicy": {
            "minAvailable": 2,
            "queue": "default",
            "minResources": {"cpu": 1, "memory": "1Gi"},
            "priorityClass": "high",
            "scheduleTimeoutSeconds": 30,
        },
    }
    return training_job(kind, specs, name="complete", runPolicy=run_policy, **_FIELDS.get(kind, {}))


_METRICS = [
    {
        "type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}},
    }
]
_RANGE = {"minReplicas": 1, "maxReplicas": 4, "maxRestarts": 10, "metrics": _METRICS}
_FIELDS: Mapping[str, Json] = {
    "TFJob": {"successPolicy": "AllWorkers", "enableDynamicWorker": True},
    "PyTorchJob": {
        "nprocPerNode": "2",
        "elasticPolicy": _RANGE
        | {
            "rdzvBackend": "etcd-v2",
            "rdzvHost": "etcd",
            "rdzvPort": 2379,
            "rdzvId": "x",
            "rdzvConf": [{"key": "timeout", "value": "60"}],
            "standalone": False,
        },
    },
    "MPIJob": {"slotsPerWorker": 2, "cleanPodPolicy": "All", "mainContainer": "mpi"},
    "PaddleJob": {"elasticPolicy": _RANGE},
}
