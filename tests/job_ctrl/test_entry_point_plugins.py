"""Plugins of other packages: how they are found, and that their faults are theirs alone."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.jobs import job, task
from support.packages import install

from batholith.job_ctrl import pods
from batholith.job_ctrl.plugins import entry_points
from batholith.job_ctrl.plugins.base import DesiredObject
from batholith.job_ctrl.plugins.errors import PluginError, UnknownPluginError
from batholith.job_ctrl.plugins.registry import BUILT_IN, JobPlugins, Registry
from batholith.model.job import Job
from batholith.model.names import CONFIGMAPS, SECRETS, Resource

MARKER = """
class Mark:
    def __init__(self, given):
        self.arguments = given

    def on_pod_create(self, pod, job):
        pod["metadata"]["annotations"]["mark"] = " ".join(self.arguments)
"""
EXITS = "raise SystemExit('nothing here')"


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of installed packages, one with plugins that cannot be loaded."""
    monkeypatch.syspath_prepend(tmp_path)
    points = {
        "mark": "marks:Mark",
        "missing": "marks:Missing",
        "exits": "exits:X",
        "number": "marks:N",
    }
    modules = {"marks": MARKER + "\nN = 1\n", "exits": EXITS}
    install(
        tmp_path, "acme-plugins", modules=modules, entry_points=points, group=entry_points.GROUP
    )
    return tmp_path


def mutated_pod(plugins: JobPlugins, job: Job) -> pods.Pod:
    pod = pods.build(job, job.spec.tasks[0], 0)
    plugins.mutate_pod(pod, job)
    return pod


def test_an_installed_plugin_serves_the_jobs_that_name_it(packages: Path) -> None:
    of = job(task(), plugins={"mark": ["a", "b"], "env": []})
    pod = mutated_pod(Registry.load().for_job(of), of)
    assert pod["metadata"]["annotations"]["mark"] == "a b"
    assert entry_points.names() >= {"mark", "missing", "exits"}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("missing", "marks:Missing of acme-plugins 1.0: AttributeError"),
        ("exits", "exits:X of acme-plugins 1.0: SystemExit: nothing here"),
        ("number", "marks:N of acme-plugins 1.0: TypeError: it is neither a class"),
    ],
)
def test_a_plugin_that_cannot_be_loaded_is_named_to_its_jobs_alone(
    packages: Path, caplog: pytest.LogCaptureFixture, name: str, why: str
) -> None:
    with caplog.at_level(logging.ERROR):
        registry = Registry.load()
    assert [record for record in caplog.records if vars(record).get("plugin") == name]
    mutated_pod(registry.for_job(job()), job())
    of = job(plugins={name: [], "mark": []})
    with pytest.raises(PluginError) as caught:
        mutated_pod(registry.for_job(of), of)
    assert f"job plugin {name!r} failed in {why}" in str(caught.value)


def test_job_with_a_missing_plugin_gets_no_pods_but_may_end() -> None:
    of = job(plugins={"nosuch": [], "ssh": []})
    job_plugins = Registry().for_job(of)
    for _ in range(2):
        with pytest.raises(UnknownPluginError, match="'nosuch' is not installed; known are array"):
            mutated_pod(job_plugins, of)
    with pytest.raises(UnknownPluginError):
        list(job_plugins.desired_objects(of))
    assert list(job_plugins.objects_to_delete(of)) == [(SECRETS, "j-ssh")]
    assert list(job_plugins.warnings(of)) == []


class FailingPlugin:
    """Fails in the hook that its argument names."""

    def __init__(self, given: Sequence[str]) -> None:
        (self.fails_in,) = given
        self._fail_if("its constructor")

    def _fail_if(self, where: str) -> None:
        if where == self.fails_in:
            raise ValueError("oh")

    def on_pod_create(self, pod: pods.Pod, job: Job) -> None:
        self._fail_if("on_pod_create")

    def on_job_add(self, job: Job) -> Sequence[DesiredObject]:
        self._fail_if("on_job_add")
        return [DesiredObject(resource=CONFIGMAPS, name="c", build=self._build)]

    def _build(self) -> dict[str, Any]:
        self._fail_if("build of ConfigMap c")
        return {}

    def on_job_delete(self, job: Job) -> Sequence[tuple[Resource, str]]:
        self._fail_if("on_job_delete")
        return [(CONFIGMAPS, "c")]

    def validate_job(self, job: Job) -> Sequence[str]:
        self._fail_if("validate_job")
        return []


def run_all_hooks(plugins: JobPlugins, job: Job) -> list[str]:
    """Call all hooks; return the warnings."""
    mutated_pod(plugins, job)
    for wanted in plugins.desired_objects(job):
        wanted.build()
    list(plugins.objects_to_delete(job))
    return list(plugins.warnings(job))


@pytest.mark.parametrize(
    "where",
    ["its constructor", "on_pod_create", "on_job_add", "build of ConfigMap c", "on_job_delete"],
)
def test_a_plugin_that_fails_is_named_with_what_it_was_about(where: str) -> None:
    of = job(plugins={"clumsy": [where], "env": []})
    job_plugins = Registry({**BUILT_IN, "clumsy": FailingPlugin}).for_job(of)
    with pytest.raises(PluginError) as caught:
        run_all_hooks(job_plugins, of)
    assert str(caught.value) == f"job plugin 'clumsy' failed in {where}: ValueError: oh"


def test_failure_of_validate_job_is_a_warning() -> None:
    of = job(plugins={"clumsy": ["validate_job"]})
    (message,) = run_all_hooks(Registry({"clumsy": FailingPlugin}).for_job(of), of)
    assert message == "job plugin 'clumsy' failed in validate_job: ValueError: oh"


def test_failure_of_on_job_delete_keeps_no_objects_of_other_plugins() -> None:
    of = job(plugins={"clumsy": ["on_job_delete"], "ssh": []})
    found = []
    with pytest.raises(PluginError, match="on_job_delete"):
        for one in (
            Registry({**BUILT_IN, "clumsy": FailingPlugin}).for_job(of).objects_to_delete(of)
        ):
            found.append(one)  # noqa: PERF402 - objects before the error count
    assert found == [(SECRETS, "j-ssh")]


def test_an_object_that_is_none_is_not_sent_to_the_server() -> None:
    class Empty:
        def on_job_add(self, job: Job) -> Sequence[DesiredObject]:
            nothing: Any = None
            return [DesiredObject(resource=CONFIGMAPS, name="c", build=lambda: nothing)]

    of = job(plugins={"empty": []})
    (wanted,) = Registry({"empty": lambda given: Empty()}).for_job(of).desired_objects(of)
    with pytest.raises(PluginError, match="build of ConfigMap c: TypeError: it is no object"):
        wanted.build()


def test_what_has_no_hook_is_no_plugin() -> None:
    of = job(plugins={"dict": []})
    with pytest.raises(PluginError, match=r"it has none of on_pod_create, on_job_add"):
        mutated_pod(Registry({"dict": lambda given: {}}).for_job(of), of)
