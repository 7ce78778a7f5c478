"""What the pods of each framework get: environment, names, labels, Services."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.training_harness import KINDS, replica
from support.training_jobs import BY_KIND, built, environment, typed

from batholith.training_ctrl.frameworks.base import PodSettings, PortNotFoundError
from batholith.training_ctrl.pods import build_service

TF, PYTORCH, XGB, PADDLE, JAX = "TFJob", "PyTorchJob", "XGBoostJob", "PaddleJob", "JAXJob"


def members(job: Any) -> list[tuple[str, int]]:
    return [
        (name, index)
        for name, spec in job.spec.replica_specs.items()
        for index in range(spec.replicas)
    ]


def environments(job: Any) -> list[dict[str, str]]:
    return [environment(built(job, name, index)) for name, index in members(job)]


# Names, labels and Services.


def test_name_labels_and_owner_of_a_pod() -> None:
    job = typed(PYTORCH, Master=replica(PYTORCH), Worker=replica(PYTORCH, 2, policy="ExitCode"))
    pod = built(job, "Worker", 1)
    prefix = "training.kubeflow.org/"
    assert pod["metadata"]["name"] == "j-worker-1"
    assert pod["metadata"]["labels"] == {
        f"{prefix}operator-name": "pytorchjob-controller",
        f"{prefix}job-name": "j",
        f"{prefix}replica-type": "worker",
        f"{prefix}replica-index": "1",
    }
    assert pod["spec"]["restartPolicy"] == "Never"
    (owner,) = pod["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == (PYTORCH, "j")
    assert owner["controller"] and owner["blockOwnerDeletion"]
    assert built(job, "Master", 0)["metadata"]["labels"][f"{prefix}job-role"] == "master"


@pytest.mark.parametrize(
    ("kind", "types", "master"),
    [
        (TF, ("PS", "Worker"), ("Worker", 0)),
        (TF, ("Chief", "Worker"), ("Chief", 0)),
        (TF, ("Master", "PS", "Worker"), ("Master", 0)),
        (PYTORCH, ("Master", "Worker"), ("Master", 0)),
        (PYTORCH, ("Worker",), ("Worker", 0)),
        (XGB, ("Master", "Worker"), ("Master", 0)),
        (JAX, ("Worker",), ("Worker", 0)),
        ("MPIJob", ("Launcher", "Worker"), ("Launcher", 0)),
    ],
)
def test_master_of_each_kind(kind: str, types: tuple[str, ...], master: tuple[str, int]) -> None:
    job = typed(kind, **{name: replica(kind, 1) for name in types})
    marked = [
        each
        for each in members(job)
        if "training.kubeflow.org/job-role" in built(job, *each)["metadata"]["labels"]
    ]
    assert marked == [master]


def test_service_has_the_ports_of_the_main_container() -> None:
    body = replica(PYTORCH)
    container = body["template"]["spec"]["containers"][0]
    container["ports"] = [{"containerPort": 80}, {"name": "metrics", "containerPort": 90}]
    service = build_service(BY_KIND[PYTORCH], typed(PYTORCH, Master=body), "Master", 0)
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == service["metadata"]["labels"]
    assert service["spec"]["ports"] == [
        {"name": "port-0", "port": 80},
        {"name": "metrics", "port": 90},
        {"name": "pytorchjob-port", "port": 23456},
    ]


def test_service_has_a_number_once_that_the_container_declares_several_times() -> None:
    body = replica(PYTORCH)
    container = body["template"]["spec"]["containers"][0]
    container["ports"] = [
        {"name": "rendezvous", "containerPort": 23456},
        {"name": "dns", "containerPort": 53},
        {"name": "dns-udp", "containerPort": 53, "protocol": "UDP"},
    ]
    job = typed(PYTORCH, Master=body, Worker=replica(PYTORCH))
    service = build_service(BY_KIND[PYTORCH], job, "Master", 0)
    assert service["spec"]["ports"] == [
        {"name": "rendezvous", "port": 23456},
        {"name": "dns", "port": 53},
    ]
    assert environment(built(job, "Worker", 0))["MASTER_PORT"] == "23456"


# TF_CONFIG.


def config(job: Any, replica_type: str, index: int) -> Any:
    return json.loads(environment(built(job, replica_type, index))["TF_CONFIG"])


TF_TYPES = st.fixed_dictionaries(
    {},
    optional={
        "Chief": st.just(1),
        "PS": st.integers(1, 3),
        "Worker": st.integers(1, 4),
        "Evaluator": st.integers(1, 2),
    },
).filter(lambda types: sum(types.values()) > 1)


@given(TF_TYPES)
def test_tf_config_lists_every_pod_once(types: dict[str, int]) -> None:
    """INV-TJ-9: and each pod finds its own address."""
    job = typed(TF, **{name: replica(TF, number) for name, number in types.items()})
    expected = {
        name.lower(): [f"j-{name.lower()}-{index}.d.svc:2222" for index in range(number)]
        for name, number in types.items()
    }
    for replica_type, index in members(job):
        found = config(job, replica_type, index)
        assert found == config(job, replica_type, index)
        assert found["cluster"] == expected
        assert list(found["cluster"]) == sorted(expected)
        assert found["task"] == {"type": replica_type.lower(), "index": index}
        host = f"j-{replica_type.lower()}-{index}.d.svc:2222"
        assert found["cluster"][found["task"]["type"]][index] == host


def test_tf_config_as_text() -> None:
    job = typed(TF, PS=replica(TF), Worker=replica(TF, 2), Chief=replica(TF))
    assert environment(built(job, "Worker", 1))["TF_CONFIG"] == (
        '{"cluster":{"chief":["j-chief-0.d.svc:2222"],"ps":["j-ps-0.d.svc:2222"],'
        '"worker":["j-worker-0.d.svc:2222","j-worker-1.d.svc:2222"]},'
        '"task":{"type":"worker","index":1},"environment":"cloud"}'
    )


def test_single_pod_and_other_containers_get_no_tf_config() -> None:
    assert "TF_CONFIG" not in environment(built(typed(TF, Worker=replica(TF)), "Worker", 0))
    body = replica(TF, 2)
    body["template"]["spec"]["containers"].insert(0, {"name": "side", "image": "i"})
    pod = built(typed(TF, Worker=body), "Worker", 0)
    assert "TF_CONFIG" not in environment(pod, 0)
    assert "TF_CONFIG" in environment(pod, 1)


def test_cluster_domain_and_ports_in_tf_config() -> None:
    body = replica(TF, 2)
    port = {"name": "tfjob-port", "containerPort": 7}
    body["template"]["spec"]["containers"][0]["ports"] = [port]
    pod = built(typed(TF, Worker=body), "Worker", 0, settings=PodSettings(cluster_domain="c.io"))
    workers = json.loads(environment(pod)["TF_CONFIG"])["cluster"]["worker"]
    assert workers == ["j-worker-0.d.svc.c.io:7", "j-worker-1.d.svc.c.io:7"]


def test_dynamic_workers_know_only_themselves() -> None:
    spec = {"PS": replica(TF), "Worker": replica(TF, 3), "Chief": replica(TF)}
    job = typed(TF, enableDynamicWorker=True, **spec)
    ps = ["j-ps-0.d.svc:2222"]
    assert config(job, "Worker", 1) == {
        "cluster": {"worker": {"1": "j-worker-1.d.svc:2222"}, "ps": ps},
        "task": {"type": "worker", "index": 1},
    }
    assert config(job, "PS", 0)["cluster"] == {"worker": {}, "ps": ps}
    assert config(job, "Chief", 0)["cluster"] == {"worker": {}, "ps": []}
    alone = typed(TF, enableDynamicWorker=True, Worker=replica(TF, 2))
    assert config(alone, "Worker", 0)["cluster"]["ps"] == []


# PyTorch.


@given(st.integers(0, 5), st.sampled_from(["auto", "2", "gpu"]))
def test_ranks_are_distinct(workers: int, processes: str) -> None:
    """INV-TJ-10: of PyTorch and XGBoost."""
    for kind in (PYTORCH, XGB):
        fields = {"nprocPerNode": processes} if kind == PYTORCH else {}
        types = {"Worker": replica(kind, workers)} if workers else {}
        job = typed(kind, Master=replica(kind), **types, **fields)
        found = environments(job)
        assert [int(each["RANK"]) for each in found] == list(range(workers + 1))
        factor = 2 if (kind, processes) == (PYTORCH, "2") else 1
        assert {each["WORLD_SIZE"] for each in found} == {str((workers + 1) * factor)}


def test_order_of_pytorch_variables() -> None:
    job = typed(PYTORCH, Master=replica(PYTORCH), Worker=replica(PYTORCH, 2))
    assert list(environment(built(job, "Worker", 1)).items()) == [
        ("PYTHONUNBUFFERED", "1"),
        ("MASTER_PORT", "23456"),
        ("PET_MASTER_PORT", "23456"),
        ("MASTER_ADDR", "j-master-0"),
        ("PET_MASTER_ADDR", "j-master-0"),
        ("WORLD_SIZE", "3"),
        ("RANK", "2"),
        ("PET_NODE_RANK", "2"),
        ("PET_NPROC_PER_NODE", "auto"),
        ("PET_NNODES", "3"),
    ]


def test_variables_of_an_elastic_job() -> None:
    policy = {
        "minReplicas": 1,
        "maxReplicas": 4,
        "maxRestarts": 3,
        "rdzvId": "r",
        "rdzvConf": [{"key": "a", "value": "1"}, {"key": "b", "value": "2"}],
        "standalone": True,
    }
    job = typed(PYTORCH, elasticPolicy=policy, Worker=replica(PYTORCH, 2))
    assert list(environment(built(job, "Worker", 1)).items()) == [
        ("PYTHONUNBUFFERED", "1"),
        ("PET_NPROC_PER_NODE", "auto"),
        ("PET_RDZV_ENDPOINT", "j-worker-0:23456"),
        ("PET_RDZV_BACKEND", "c10d"),
        ("PET_NNODES", "1:4"),
        ("PET_MAX_RESTARTS", "3"),
        ("PET_RDZV_ID", "r"),
        ("PET_RDZV_CONF", "a=1,b=2"),
        ("PET_STANDALONE", ""),
    ]
    given_host = {**policy, "rdzvHost": "h", "rdzvPort": 5, "rdzvBackend": "etcd"}
    job = typed(PYTORCH, elasticPolicy=given_host, Worker=replica(PYTORCH, 2))
    env = environment(built(job, "Worker", 0))
    assert (env["PET_RDZV_ENDPOINT"], env["PET_RDZV_BACKEND"]) == ("h:5", "etcd")


def test_workers_wait_for_the_address_of_the_master() -> None:
    job = typed(PYTORCH, Master=replica(PYTORCH), Worker=replica(PYTORCH))
    (init,) = built(job, "Worker", 0)["spec"]["initContainers"]
    assert (init["name"], init["image"]) == ("init-pytorch", "alpine:3.10")
    assert "tries=100\n" in init["command"][-1] and "j-master-0" in init["command"][-1]
    assert "initContainers" not in built(job, "Master", 0)["spec"]
    without = PodSettings(pytorch_init_image="")
    assert "initContainers" not in built(job, "Worker", 0, settings=without)["spec"]
    text = "- name: wait\n  image: '{{.InitContainerImage}}'\n  args: ['{{.MasterAddr}}']\n"
    (init,) = built(job, "Worker", 0, settings=PodSettings(pytorch_init_template=text))["spec"][
        "initContainers"
    ]
    assert init == {"name": "wait", "image": "alpine:3.10", "args": ["j-master-0"]}


def test_missing_port_is_an_error() -> None:
    other = typed(XGB, Master=replica(XGB))
    body = json.loads(bytes(other.spec.replica_specs["Master"].template))
    body["spec"]["containers"][0]["ports"] = []
    spec = msgspec.structs.replace(
        other.spec.replica_specs["Master"], template=msgspec.Raw(json.dumps(body).encode())
    )
    changed = msgspec.structs.replace(
        other, spec=msgspec.structs.replace(other.spec, replica_specs={"Master": spec})
    )
    with pytest.raises(PortNotFoundError, match="port not found"):
        built(changed, "Master", 0)


# The others.


def test_order_of_xgboost_variables() -> None:
    job = typed(XGB, Master=replica(XGB), Worker=replica(XGB, 2))
    assert list(environment(built(job, "Worker", 1)).items()) == [
        ("MASTER_PORT", "9999"),
        ("MASTER_ADDR", "j-master-0"),
        ("WORLD_SIZE", "3"),
        ("RANK", "2"),
        ("PYTHONUNBUFFERED", "1"),
        ("WORKER_PORT", "9999"),
        ("WORKER_ADDRS", "j-worker-0,j-worker-1"),
    ]
    alone = environment(built(typed(XGB, Master=replica(XGB)), "Master", 0))
    assert "WORKER_PORT" not in alone


def test_paddle_variables_in_both_modes() -> None:
    collective = typed(PADDLE, Worker=replica(PADDLE, 2))
    first = built(collective, "Worker", 0)["spec"]["containers"][0]["env"]
    assert first[3:] == [
        {"name": "POD_IP_DUMMY", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "PADDLE_MASTER", "value": "$(POD_IP_DUMMY):36543"},
    ]
    assert list(environment(built(collective, "Worker", 1)).items()) == [
        ("PYTHONUNBUFFERED", "1"),
        ("PADDLE_JOB_ID", "j"),
        ("PADDLE_NNODES", "2"),
        ("PADDLE_MASTER", "j-worker-0:36543"),
    ]
    served = typed(PADDLE, Master=replica(PADDLE), Worker=replica(PADDLE))
    assert environment(built(served, "Master", 0))["PADDLE_SERVER_NUM"] == "1"
    worker = environment(built(served, "Worker", 0))
    assert (worker["PADDLE_TRAINER_NUM"], worker["PADDLE_MASTER"]) == ("1", "j-master-0:36543")


def test_jax_variables() -> None:
    job = typed(JAX, Worker=replica(JAX, 2))
    assert list(environment(built(job, "Worker", 1)).items()) == [
        ("PYTHONUNBUFFERED", "1"),
        ("COORDINATOR_PORT", "6666"),
        ("COORDINATOR_ADDRESS", "j-worker-0"),
        ("NUM_PROCESSES", "2"),
        ("PROCESS_ID", "1"),
    ]


def test_variables_of_the_template_precede() -> None:
    for kind in (PYTORCH, XGB, PADDLE, JAX):
        types = ("Master", "Worker") if kind != JAX else ("Worker",)
        body = {name: replica(kind) for name in types}
        for each in body.values():
            each["template"]["spec"]["containers"][0]["env"] = [{"name": "A", "value": "b"}]
        env = environment(built(typed(kind, **body), "Worker", 0))
        assert next(iter(env.items())) == ("A", "b"), KINDS[kind]
