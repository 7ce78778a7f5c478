"""The page for authors of scheduler plugins, and the page of the configuration, followed."""

import logging
import re
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from support.packages import install
from support.scheduler import SchedulerWorld, node, pod, podgroup

from batholith.scheduler import conf
from batholith.scheduler.plugins.entry_points import ACTIONS_GROUP, PLUGINS_GROUP
from batholith.scheduler.plugins.registry import PLUGINS, WITHOUT_EFFECT

DOCS = Path(__file__).parents[2] / "docs"
CONFIGURATION = (DOCS / "scheduler-configuration.md").read_text()
PLUGIN_PAGE = (DOCS / "scheduler-plugins.md").read_text()


def block(language: str, page: str = PLUGIN_PAGE) -> str:
    """The first block of a page in a language."""
    found = re.search(rf"^```{language}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


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
