"""Plugin arguments, order, and plugins of other packages."""

from collections.abc import Sequence
from typing import Any

import pytest
from support_jobs import job, task

from batholith.job_ctrl import pods
from batholith.job_ctrl.plugins import arguments
from batholith.job_ctrl.plugins.registry import BUILT_IN, Registry, UnknownPluginError
from batholith.model.job import Job

DEFAULTS: dict[str, arguments.Value] = {"name": "", "port": 22, "on": False}


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["--name=x", "-port=0x10", "--on"], ("x", 16, True)),
        (["--name", "x", "--port", "010"], ("x", 8, False)),
        (["--on=F", "--on=true", "--port=1_000"], ("", 1000, True)),
        (["--name=a=b"], ("a=b", 22, False)),
    ],
)
def test_arguments_are_read_as_go_reads_flags(words: list[str], values: tuple[Any, ...]) -> None:
    read = arguments.read(words, DEFAULTS)
    assert tuple(read.values.values()) == values
    assert read.complaints == ()


@pytest.mark.parametrize(
    "wrong", [["--no-such"], ["--no-such", "3"], ["--port=x"], ["--on=maybe"], ["word"], ["-"]]
)
def test_an_argument_that_makes_no_sense_hides_no_other(wrong: list[str]) -> None:
    read = arguments.read([*wrong, "--name=x"], DEFAULTS)
    assert read.values == {"name": "x", "port": 22, "on": False}
    assert len(read.complaints) == 1


def test_a_flag_at_the_end_may_lack_its_value() -> None:
    assert len(arguments.read(["--port"], DEFAULTS).complaints) == 1


class Sidecar:
    """A plugin of somebody else's."""

    def __init__(self, given: Sequence[str]) -> None:
        self.image = given[0]

    def on_pod_create(self, pod: pods.Pod, job: Job) -> None:
        pod["spec"].setdefault("initContainers", []).append({"name": "side", "image": self.image})


def test_a_container_that_another_plugin_adds_is_served_too() -> None:
    of = job(task("my-task", 1), plugins={"env": [], "sidecar": ["img"], "svc": []})
    pod = pods.build(of, of.spec.tasks[0], 0)
    Registry({**BUILT_IN, "sidecar": Sidecar}).team(of).shape(pod, of)
    (side,) = pod["spec"]["initContainers"]
    names = ["VC_MY_TASK_HOSTS", "VC_MY_TASK_NUM", "VK_TASK_INDEX", "VC_TASK_INDEX"]
    assert [variable["name"] for variable in side["env"]] == names
    assert side["volumeMounts"] == [{"name": "j-svc", "mountPath": "/etc/volcano"}]


def test_the_template_is_not_changed_by_the_pods_made_of_it() -> None:
    of = job(task(replicas=2), plugins={"env": []})
    team = Registry.load().team(of)
    made = [pods.build(of, of.spec.tasks[0], index) for index in (0, 1)]
    for pod in made:
        team.shape(pod, of)
    assert [len(pod["spec"]["containers"][0]["env"]) for pod in made] == [2, 2]


def test_a_plugin_that_there_is_not() -> None:
    with pytest.raises(UnknownPluginError, match="nosuch"):
        Registry().team(job(plugins={"nosuch": []}))


def test_given_keys_are_used_as_they_are_and_no_others_are_made() -> None:
    of = job(plugins={"ssh": ["--ssh-private-key=mine", "--ssh-public-key=yours"]})
    (secret,) = Registry().team(of).wanted(of)
    data = secret.build()["data"]
    assert (data["id_rsa"], data["id_rsa.pub"]) == ("bWluZQ==", "eW91cnM=")
    assert secret.follow == {"config": data["config"]}


def test_what_a_team_removes_is_what_it_made() -> None:
    of = job(plugins={"ssh": [], "svc": [], "env": []})
    team = Registry().team(of)
    made = [(wanted.resource, wanted.name) for wanted in team.wanted(of)]
    assert list(team.unwanted(of)) == made
    assert len(made) == 4
    assert list(team.complaints()) == []
