"""Plugins that use the names of earlier versions work unchanged."""

from collections.abc import Sequence

import pytest
from support.jobs import job, task

from batholith.job_ctrl import pods
from batholith.job_ctrl.plugins import arguments, base, pod_mutations, shaping
from batholith.job_ctrl.plugins.registry import Registry
from batholith.model.job import Job
from batholith.model.names import CONFIGMAPS


class OldPlugin:
    """A plugin as the documentation of earlier versions taught it."""

    def __init__(self, given: Sequence[str]) -> None:
        read = arguments.read(given, {"on": False})
        self.complaints = read.complaints
        self._on = read.switch("on")

    def on_pod_create(self, pod: pods.Pod, job: Job) -> None:
        value = f"{shaping.role(pod)}-{shaping.index(pod)} {self._on}"
        shaping.add_env(pod, [{"name": "OLD", "value": value}])

    def on_job_add(self, job: Job) -> Sequence[base.Wanted]:
        data = {"key": "value"}
        return [
            base.Wanted(resource=CONFIGMAPS, name="c", build=lambda: {"data": data}, follow=data)
        ]

    def complaints_about(self, job: Job) -> Sequence[str]:
        return [f"{job.metadata.name} has too few tasks"]


class OnlyValidates:
    def complaints_about(self, job: Job) -> Sequence[str]:
        raise ValueError("oh")


class BothNames:
    """A plugin that supports earlier and current versions."""

    warnings = complaints = ("invalid argument",)

    def validate_job(self, job: Job) -> Sequence[str]:
        return ["too few tasks"]

    complaints_about = validate_job


def test_plugin_with_old_names_is_called_at_each_extension_point() -> None:
    of = job(plugins={"old": ["--on", "--what"]})
    plugins = Registry({"old": OldPlugin}).for_job(of)
    pod = pods.build(of, of.spec.tasks[0], 1)
    plugins.mutate_pod(pod, of)
    assert pod["spec"]["containers"][0]["env"] == [{"name": "OLD", "value": "t-1 True"}]
    (desired,) = plugins.desired_objects(of)
    assert desired.build() == {"data": {"key": "value"}}
    assert desired.synced_data == desired.follow == {"key": "value"}
    assert list(plugins.warnings(of)) == [
        "'--what': there is no such flag",
        "j has too few tasks",
    ]


def test_failure_of_the_old_validation_hook_is_reported_with_its_name() -> None:
    of = job(plugins={"old": []})
    plugins = Registry({"old": lambda _: OnlyValidates()}).for_job(of)
    assert list(plugins.warnings(of)) == [
        "job plugin 'old' failed in complaints_about: ValueError: oh"
    ]


def test_plugin_with_both_names_warns_once() -> None:
    of = job(plugins={"both": []})
    plugins = Registry({"both": lambda _: BothNames()}).for_job(of)
    assert list(plugins.warnings(of)) == ["invalid argument", "too few tasks"]


def test_old_and_new_keyword_of_a_desired_object_exclude_each_other() -> None:
    with pytest.raises(TypeError, match="the same argument"):
        base.DesiredObject(
            resource=CONFIGMAPS, name="c", build=dict, synced_data={"a": "b"}, follow={}
        )


def test_old_names_are_the_same_objects() -> None:
    assert base.Made is base.JsonObject
    assert base.Wanted is base.DesiredObject
    assert base.ShapesPods is base.PodMutator
    assert base.BringsObjects is base.ObjectProvider
    assert base.TakesObjectsAway is base.ObjectRemover
    assert arguments.read is arguments.parse
    assert shaping.hosts is pod_mutations.hostnames
    assert shaping.domain is pod_mutations.fqdn
    assert shaping.task_named is pod_mutations.find_task
    for name in ("add_env", "add_mount", "add_port", "append_env", "containers", "subdomain"):
        assert getattr(shaping, name) is getattr(pod_mutations, name)


def test_old_protocols_describe_old_plugins() -> None:
    of = job(task())
    plugin = OldPlugin([])
    assert isinstance(plugin, base.HasComplaints)
    assert isinstance(plugin, base.ChecksJobs)
    assert not isinstance(plugin, base.HasWarnings | base.JobValidator)
    assert plugin.complaints_about(of)
