"""The page for authors of scheduler plugins, and the page of the configuration, followed."""

import logging
import re
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from support.components import component
from support.packages import install
from support.polling import wait_for
from support.scheduled_gangs import GangServer
from support.scheduler import SchedulerWorld, node, pod, podgroup

from batholith.model.names import GROUP_NAME, PODGROUPS, PODS
from batholith.scheduler import conf, plugin_api
from batholith.scheduler.plugins.entry_points import ACTIONS_GROUP, PLUGINS_GROUP
from batholith.scheduler.plugins.extension_points import METHODS
from batholith.scheduler.plugins.registry import PLUGINS, WITHOUT_EFFECT
from batholith.testing import RequestMatcher

DOCS = Path(__file__).parents[2] / "docs"
CONFIGURATION = (DOCS / "scheduler-configuration.md").read_text()
PLUGIN_PAGE = (DOCS / "scheduler-plugins.md").read_text()


def block(language: str, page: str = PLUGIN_PAGE) -> str:
    """The first block of a page in a language."""
    found = re.search(rf"^```{language}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


LICENCES = re.findall(r"^```python\n(.*?)^```$", PLUGIN_PAGE, re.DOTALL | re.MULTILINE)[1]
PRODUCT = "acme.example/product"


def install_licences(packages: Path, *, total: int) -> str:
    """Install the example with all hooks; return a configuration with it."""
    packages.mkdir()
    (packages / "in-use").mkdir()
    (name, target) = "licences", "acme_licences:Licences"
    points = tomllib.loads(block("toml"))["project"]["entry-points"][PLUGINS_GROUP]
    assert points[name] == target
    modules = {"acme_licences": LICENCES}
    install(packages, "acme", modules=modules, entry_points={name: target}, group=PLUGINS_GROUP)
    arguments = {
        "licences.directory": str(packages / "in-use"),
        "licences.total": total,
        "licences.interval": 0.01,
    }
    configuration = yaml.safe_load(conf.DEFAULT)
    configuration["tiers"][1]["plugins"].append({"name": name, "arguments": arguments})
    return yaml.safe_dump(configuration)


def licensed_gang(server: GangServer, name: str, members: int) -> None:
    """A gang each of whose pods needs a licence."""
    server.gang(name, 0, minimum=members)
    for number in range(members):
        licensed_pod(server, name, number)


def licensed_pod(server: GangServer, gang: str, number: int) -> None:
    meta = {"labels": {PRODUCT: "solver"}, "annotations": {GROUP_NAME: gang}}
    container = {"name": "c", "resources": {"requests": {"cpu": "1"}}}
    spec = {"schedulerName": "volcano", "containers": [container]}
    server.put(PODS, f"{gang}-{number}", metadata=meta, spec=spec, status={"phase": "Pending"})


def names_in_use(packages: Path) -> set[str]:
    return {path.name for path in (packages / "in-use").iterdir()}


def names_of(server: GangServer, gang: str) -> set[str]:
    return {
        f"pod-{each['metadata']['uid']}"
        for each in server.objects(PODS).values()
        if each["metadata"]["annotations"][GROUP_NAME] == gang
    }


async def test_the_licences_of_the_page_are_taken_and_returned_by_pods_and_other_systems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "packages"
    monkeypatch.delitem(sys.modules, "acme_licences", raising=False)
    monkeypatch.syspath_prepend(str(packages))
    text = install_licences(packages, total=2)
    (packages / "in-use" / "other").touch()
    async with GangServer() as server:
        server.prepare()
        server.node("a", 9)
        async with server.scheduler(conf=text) as run:
            licensed_gang(server, "g", 2)
            await wait_for(lambda: any("1 free" in each for each in run.events("Unschedulable")))
            server.gang("unlicensed", 2)
            await server.wait_bound("unlicensed", 2)
            assert names_in_use(packages) == {"other"}
            (packages / "in-use" / "other").unlink()
            await server.wait_bound("g", 2)
            assert names_in_use(packages) == names_of(server, "g")
            licensed_gang(server, "h", 1)
            await wait_for(lambda: "0 free" in str(server.objects(PODGROUPS)["d/h"]))
            server.remove(PODS, "g-0")
            await server.wait_bound("h", 1)
            await wait_for(
                lambda: names_in_use(packages) == names_of(server, "g") | names_of(server, "h")
            )


@pytest.mark.process
async def test_a_scheduler_that_is_killed_after_the_preparation_takes_no_licence_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "packages"
    file = tmp_path / "conf"
    file.write_text(install_licences(packages, total=2))
    async with GangServer() as server:
        server.prepare()
        server.node("a", 9)
        licensed_gang(server, "g", 2)
        flags = ("--kubeconfig", str(server.kubeconfig), "--leader-elect=false")
        arguments = ("scheduler", f"--scheduler-conf={file}", *flags)
        held = server.faults.hold(RequestMatcher("create", "pods/binding", count=None))
        async with component(*arguments, PYTHONPATH=str(packages)) as first:
            await held.wait_held()
            assert names_in_use(packages) == names_of(server, "g")
            await first.stop(9)
        assert server.nodes_of("g") == []
        server.faults.clear()
        held.release()
        # Its licence is free once the next scheduler has seen that the pod is deleted.
        server.remove(PODS, "g-1")
        licensed_pod(server, "g", 1)
        async with component(*arguments, PYTHONPATH=str(packages)):
            await server.wait_bound("g", 2)
            assert names_in_use(packages) == names_of(server, "g")


def test_the_page_has_each_method_of_the_extension_points() -> None:
    written = {name for name in METHODS if re.search(rf"`{name}[(`]", PLUGIN_PAGE)}
    assert written == METHODS.keys()


def test_the_page_has_the_public_names_and_no_attribute_that_does_not_exist() -> None:
    promise = PLUGIN_PAGE.partition("## What is promised")[2]
    assert {name for name in plugin_api.__all__ if f"`{name}`" not in promise} == set()
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", promise, re.MULTILINE)
    assert len(rows) > 10
    for name, attributes in rows:
        there = _attributes(name)
        assert set(re.findall(r"`(\w+)`", attributes)) <= there, name


def _attributes(name: str) -> set[str]:
    """The attributes of an object of a public type."""
    public = getattr(plugin_api, name)
    found = {*dir(public), *getattr(public, "__annotations__", ())}
    world = SchedulerWorld()
    world.upsert(node("a"), podgroup("g", 1), pod("g-0", "g"))
    gang = world.cluster.gangs["ns/g"]
    (task,) = gang.tasks.values()
    queues = world.cluster.queues.by_name.values()
    for each in (world.cluster, world.cluster.node_matrix, gang, task, *queues):
        if isinstance(each, public):
            found |= set(dir(each))
    return found


def test_the_plugin_and_the_action_of_the_page_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    project = tomllib.loads(block("toml"))["project"]
    points, name = project["entry-points"], project["name"]
    modules = {"acme_scheduling": block("python")}
    monkeypatch.delitem(sys.modules, "acme_scheduling", raising=False)
    for group in (PLUGINS_GROUP, ACTIONS_GROUP):
        directory = tmp_path / group
        directory.mkdir()
        monkeypatch.syspath_prepend(str(directory))
        distribution = f"{name}-{group.removeprefix('batholith.scheduler_')}"
        install(directory, distribution, modules=modules, entry_points=points[group], group=group)
    caplog.set_level(logging.DEBUG)
    world = SchedulerWorld(block("yaml"))
    world.upsert(node("a", labels={"acme.example/broken": "yes"}), node("b"))
    world.upsert(podgroup("g", 1), pod("g-0", "g"), podgroup("big", 9), pod("big-0", "big"))
    assert world.schedule() == {"g-0": "b"}
    (record,) = (each for each in caplog.records if each.message == "gangs wait")
    assert vars(record)["count"] == 1


def test_the_page_shows_the_default_configuration() -> None:
    assert yaml.safe_load(block("yaml", CONFIGURATION)) == yaml.safe_load(conf.DEFAULT)


def test_the_page_has_each_plugin_flag_and_tolerated_argument() -> None:
    plugins = {name for name in PLUGINS if name != "numaaware"}
    arguments = {name for each in WITHOUT_EFFECT.values() for name in each}
    missing = {
        name
        for name in {*plugins, *arguments, *conf.FLAGS, conf.HIERARCHY}
        if f"`{name}`" not in CONFIGURATION
    }
    assert not missing


def test_the_configuration_for_several_teams_is_valid() -> None:
    (text,) = re.findall(r"```yaml\n(actions.*?)```", (DOCS / "tenancy.md").read_text(), re.DOTALL)
    assert [name for name, _ in conf.load(text).actions] == [
        "enqueue",
        "allocate",
        "reclaim",
        "backfill",
    ]
