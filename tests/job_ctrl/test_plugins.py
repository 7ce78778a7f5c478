"""Plugin arguments, order, and plugins of other packages.

Quirks are numbered as in the list of what the reference's plugins get wrong.
"""

import asyncio
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from support.jobs import job, task

from batholith.job_ctrl import pods
from batholith.job_ctrl.plugins import arguments
from batholith.job_ctrl.plugins.base import DesiredObject
from batholith.job_ctrl.plugins.errors import PluginError
from batholith.job_ctrl.plugins.registry import BUILT_IN, Registry
from batholith.job_ctrl.pods import Pod
from batholith.model.job import Job
from batholith.model.names import CONFIGMAPS, Resource

DEFAULTS: dict[str, arguments.Value] = {"name": "", "port": 22, "on": False}


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        (["--name=x", "-port=0x10", "--on"], ("x", 16, True)),
        (["--name", "x", "--port", "010"], ("x", 8, False)),
        (["--on=F", "--on=true", "--port=1_000"], ("", 1000, True)),
        (["--name=a=b"], ("a=b", 22, False)),
    ],
)
def test_arguments_are_read_as_go_reads_flags(texts: list[str], values: tuple[Any, ...]) -> None:
    read = arguments.parse(texts, DEFAULTS)
    assert tuple(read.values.values()) == values
    assert read.warnings == ()


@pytest.mark.parametrize(
    "wrong", [["--no-such"], ["--no-such", "3"], ["--port=x"], ["--on=maybe"], ["text"], ["-"]]
)
def test_quirks_19_and_a8_invalid_argument_hides_no_other(wrong: list[str]) -> None:
    read = arguments.parse([*wrong, "--name=x"], DEFAULTS)
    assert read.values == {"name": "x", "port": 22, "on": False}
    assert len(read.warnings) == 1


def test_a_flag_at_the_end_may_lack_its_value() -> None:
    assert len(arguments.parse(["--port"], DEFAULTS).warnings) == 1


class SidecarPlugin:
    """A plugin of another package."""

    def __init__(self, given: Sequence[str]) -> None:
        self.image = given[0]

    def on_pod_create(self, pod: pods.Pod, job: Job) -> None:
        pod["spec"].setdefault("initContainers", []).append({"name": "side", "image": self.image})


def test_quirk_1_a_container_that_another_plugin_adds_is_served_too() -> None:
    of = job(task("my-task", 1), plugins={"env": [], "sidecar": ["img"], "svc": []})
    pod = pods.build(of, of.spec.tasks[0], 0)
    Registry({**BUILT_IN, "sidecar": SidecarPlugin}).for_job(of).mutate_pod(pod, of)
    (side,) = pod["spec"]["initContainers"]
    names = ["VC_MY_TASK_HOSTS", "VC_MY_TASK_NUM", "VK_TASK_INDEX", "VC_TASK_INDEX"]
    assert [variable["name"] for variable in side["env"]] == names
    assert side["volumeMounts"] == [{"name": "j-svc", "mountPath": "/etc/volcano"}]


def test_template_is_not_changed_by_its_pods() -> None:
    of = job(task(replicas=2), plugins={"env": []})
    job_plugins = Registry.load().for_job(of)
    created = [pods.build(of, of.spec.tasks[0], index) for index in (0, 1)]
    for pod in created:
        job_plugins.mutate_pod(pod, of)
    assert [len(pod["spec"]["containers"][0]["env"]) for pod in created] == [2, 2]


def test_given_ssh_keys_are_used_and_none_are_generated() -> None:
    of = job(plugins={"ssh": ["--ssh-private-key=mine", "--ssh-public-key=yours"]})
    (secret,) = Registry().for_job(of).desired_objects(of)
    data = secret.build()["data"]
    assert (data["id_rsa"], data["id_rsa.pub"]) == ("bWluZQ==", "eW91cnM=")
    assert secret.synced_data == {"config": data["config"]}


def test_plugins_delete_the_objects_that_they_provide() -> None:
    of = job(plugins={"ssh": [], "svc": [], "env": []})
    job_plugins = Registry().for_job(of)
    created = [(wanted.resource, wanted.name) for wanted in job_plugins.desired_objects(of)]
    assert list(job_plugins.objects_to_delete(of)) == created
    assert len(created) == 4
    assert list(job_plugins.warnings(of)) == []


def mutated_pod(job: Job, task_name: str, index: int = 0) -> pods.Pod:
    """A pod of *of*, mutated by its plugins."""
    (chosen,) = (one for one in job.spec.tasks if one.name == task_name)
    pod = pods.build(job, chosen, index)
    Registry().for_job(job).mutate_pod(pod, job)
    return pod


def variables(pod: pods.Pod) -> dict[str, str]:
    """The variables of the first container that are written out."""
    return {
        one["name"]: one["value"] for one in pod["spec"]["containers"][0]["env"] if "value" in one
    }


def test_quirks_1_and_2_no_two_pods_of_a_pytorch_job_have_the_same_rank() -> None:
    of = job(task("master", 2), task("worker", 3), plugins={"pytorch": [], "hcclrank": []})
    created = [
        mutated_pod(of, one.name, index) for one in of.spec.tasks for index in range(one.replicas)
    ]
    assert [variables(pod)["RANK"] for pod in created] == ["0", "1", "2", "3", "4"]
    assert {variables(pod)["WORLD_SIZE"] for pod in created} == {"5"}
    assert [pod["metadata"]["annotations"]["hccl/rankIndex"] for pod in created] == list("01234")


def test_quirk_18_hcclrank_uses_the_first_literal_rank() -> None:
    hidden = {"name": "RANK", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    env = [hidden, {"name": "RANK", "value": "7"}]
    spec = {"containers": [{"name": "main", "image": "i", "env": env}]}
    of = job(task("other", 1, template={"spec": spec}), plugins={"hcclrank": []})
    assert mutated_pod(of, "other")["metadata"]["annotations"]["hccl/rankIndex"] == "7"


@pytest.mark.process
async def test_a_worker_waits_until_the_master_listens() -> None:
    of = job(
        task("master", 1),
        task("worker", 1),
        plugins={"pytorch": ["--wait-master-enabled", "--wait-master-timeout=0", "--port=1"]},
    )
    (waiter,) = mutated_pod(of, "worker")["spec"]["initContainers"]
    assert "initContainers" not in mutated_pod(of, "master")["spec"]
    script = waiter["command"][2].replace("j-master-0.j", "127.0.0.1")

    async def wait(shell: str, port: int) -> tuple[int | None, str]:
        text = script.replace("127.0.0.1 1", f"127.0.0.1 {port}").replace("1/1", f"1/{port}")
        process = await asyncio.create_subprocess_exec(
            shell, "-c", text, stdout=asyncio.subprocess.PIPE
        )
        message, _ = await process.communicate()
        return process.returncode, message.decode()

    for shell in ("sh", "bash"):
        code, message = await wait(shell, 1)
        assert code == 1 and "did not answer within 0 s" in message
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        for shell in ("sh", "bash"):
            code, message = await wait(shell, server.sockets[0].getsockname()[1])
            assert code == 0 and "answers" in message.splitlines()[-1]


def test_a_lone_tensorflow_pod_needs_no_cluster() -> None:
    of = job(task("worker", 1), plugins={"tensorflow": []})
    assert "env" not in mutated_pod(of, "worker")["spec"]["containers"][0]


def test_an_mpi_master_without_workers_is_left_as_it_is() -> None:
    of = job(task("master", 1), plugins={"mpi": []})
    assert "ports" not in mutated_pod(of, "master")["spec"]["containers"][0]


@pytest.mark.parametrize(
    ("tasks", "plugins", "texts"),
    [
        (["head", "worker"], {"ray": []}, ["'head'", "'worker'"]),
        (["worker"], {"ray": ["--workerContainer=main"]}, ["no task is named 'head'"]),
        (["head"], {"ray": ["--headContainer=main"]}, []),
        (["worker"], {"pytorch": []}, ["no task is named 'master'"]),
    ],
)
def test_quirks_15_and_16_a_job_that_a_plugin_does_not_fit_is_complained_of(
    tasks: list[str], plugins: dict[str, list[str]], texts: list[str]
) -> None:
    of = job(*(task(name, 1) for name in tasks), plugins=plugins)
    warnings = list(Registry().for_job(of).warnings(of))
    assert len(warnings) == len(texts)
    for warning, text in zip(warnings, texts, strict=True):
        assert text in warning


def test_quirk_1_the_waiting_container_has_what_svc_gives_whatever_the_order() -> None:
    for given in (["pytorch", "svc"], ["svc", "pytorch"]):
        plugins = {name: ["--wait-master-enabled"] if name == "pytorch" else [] for name in given}
        of = job(task("master", 1), task("worker", 1), plugins=plugins)
        (waiter,) = mutated_pod(of, "worker")["spec"]["initContainers"]
        assert [one["name"] for one in waiter["volumeMounts"]] == ["j-svc"]


def test_quirk_5_public_key_alone_is_ignored_and_a_pair_is_generated() -> None:
    of = job(plugins={"ssh": ["--ssh-public-key=mine"]})
    (secret,) = Registry().for_job(of).desired_objects(of)
    data = secret.build()["data"]
    assert data["id_rsa.pub"] == data["authorized_keys"] != "bWluZQ=="
    assert any("private" in message for message in Registry().for_job(of).warnings(of))


def test_quirk_8_a_job_that_is_to_be_reached_from_outside_gets_no_policy_against_it() -> None:
    of = job(plugins={"svc": ["--disable-network-policy"]})
    kinds = [wanted.resource.kind for wanted in Registry().for_job(of).desired_objects(of)]
    assert sorted(kinds) == ["ConfigMap", "Service"]


def test_quirk_12_long_lists_of_hosts_can_be_kept_out_of_the_environment() -> None:
    of = job(task("t", 3), plugins={"svc": ["--inject-hosts-env=false"]})
    (container,) = mutated_pod(of, "t")["spec"]["containers"]
    assert not container.get("env")
    assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/etc/volcano"]


def test_quirk_10_a_subdomain_of_the_template_s_own_is_complained_of() -> None:
    template = {"spec": {"subdomain": "elsewhere", "containers": [{"name": "c"}]}}
    of = job(task("t", 1, template=template), plugins={"svc": []})
    (message,) = Registry().for_job(of).warnings(of)
    assert "'elsewhere'" in message


def test_quirk_11_a_host_name_in_the_template_is_listed_once() -> None:
    template = {"spec": {"hostname": "h", "containers": [{"name": "c"}]}}
    of = job(task("worker", 3, template=template), task("ps", 1), plugins={"tensorflow": []})
    config = json.loads(variables(mutated_pod(of, "ps"))["TF_CONFIG"])
    assert config["cluster"]["worker"] == ["h.j:2222"]


def test_quirk_13_documented_name_of_rays_client_port_is_accepted() -> None:
    of = job(task("head", 1), plugins={"ray": ["--clientServerPort=7", "--headContainer=main"]})
    assert list(Registry().for_job(of).warnings(of)) == []
    (service,) = Registry().for_job(of).desired_objects(of)
    assert service.build()["spec"]["ports"][2]["port"] == 7


@pytest.mark.parametrize("port", [("redis", 6379), ("gcs", 7)])
def test_quirk_14_the_service_finds_a_port_that_the_container_calls_otherwise(
    port: tuple[str, int],
) -> None:
    ports = [{"name": port[0], "containerPort": port[1]}]
    template = {"spec": {"containers": [{"name": "head", "image": "i", "ports": ports}]}}
    of = job(task("head", 1, template=template), plugins={"ray": []})
    container = mutated_pod(of, "head")["spec"]["containers"][0]
    (service,) = Registry().for_job(of).desired_objects(of)
    names = {port["name"]: port["containerPort"] for port in container["ports"]}
    for each in service.build()["spec"]["ports"]:
        target = each["targetPort"]
        assert names.get(target, target) == each["port"]


@pytest.mark.parametrize("number", [23456, 9])
def test_a_port_is_not_declared_again_by_its_number_or_its_name(number: int) -> None:
    ports = [{"name": "pytorchjob-port", "containerPort": number}]
    template = {"spec": {"containers": [{"name": "c", "image": "i", "ports": ports}]}}
    of = job(task("master", 1, template=template), plugins={"pytorch": []})
    pod = mutated_pod(of, "master")
    assert pod["spec"]["containers"][0]["ports"] == ports
    assert variables(pod)["MASTER_PORT"] == "23456"


def test_quirk_20_the_files_of_hosts_keep_the_case_of_their_task() -> None:
    of = job(task("my-Task", 1), plugins={"svc": []})
    config = next(one for one in Registry().for_job(of).desired_objects(of) if one.name == "j-svc")
    assert set(config.synced_data) == {"my_Task.host", "VC_MY_TASK_HOSTS", "VC_MY_TASK_NUM"}


class FaultyPlugin:
    """A plugin that cancels itself, and wants what cannot be."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._name = arguments[0]

    def on_pod_create(self, pod: Pod, job: Job) -> None:
        raise asyncio.CancelledError

    def on_job_add(self, job: Job) -> Iterator[DesiredObject]:
        yield DesiredObject(resource=CONFIGMAPS, name=self._name, build=dict)

    def on_job_delete(self, job: Job) -> Iterator[tuple[Resource, str]]:
        yield CONFIGMAPS, self._name
        yield CONFIGMAPS, "well"


@pytest.mark.parametrize("name", ["", "..", "a/b", "x%2f"])
def test_a_plugin_that_cancels_itself_or_names_what_cannot_be_is_blamed(name: str) -> None:
    registry = Registry({"wayward": FaultyPlugin})
    of = job(task(), plugins={"wayward": [name]})
    job_plugins = registry.for_job(of)
    with pytest.raises(PluginError, match=r"wayward.*CancelledError"):
        job_plugins.mutate_pod({}, of)
    with pytest.raises(PluginError, match="'wayward' returned an object with an invalid name"):
        list(job_plugins.desired_objects(of))
    assert list(job_plugins.objects_to_delete(of)) == [(CONFIGMAPS, "well")]
