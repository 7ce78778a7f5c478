"""Pods, PodGroups and plugin objects equal what Volcano was recorded to make."""

import base64
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support_jobs import encode_templates

from batholith.job_ctrl import podgroups, pods
from batholith.job_ctrl.plugins.registry import Registry
from batholith.model.job import Job
from batholith.model.meta import ObjectMeta

MADE: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "data" / "job_ctrl" / "made.json").read_text()
)
PRIORITIES = {"high": 1000}


def recorded_job(scenario: str) -> Job:
    """The Job of a recording, as it was after admission."""
    given = MADE[scenario]["Job"]
    job = msgspec.convert({"spec": encode_templates(given["spec"])}, Job)
    meta = msgspec.convert(given["metadata"], ObjectMeta)
    return msgspec.structs.replace(job, metadata=meta)


def unordered(thing: Any) -> Any:
    """Lists of env, volumes and mounts as sets: Volcano's plugins come in any order."""
    if isinstance(thing, dict):
        return {
            key: sorted(json.dumps(one, sort_keys=True) for one in value)
            if key in ("env", "volumeMounts")
            else unordered(value)
            for key, value in thing.items()
        }
    return [unordered(one) for one in thing] if isinstance(thing, list) else thing


def volumes_by_claim(spec: dict[str, Any]) -> dict[str, Any]:
    """Volumes of claims have a name that is drawn by lot there; call them by their claim."""
    text = json.dumps(spec)
    for volume in spec.get("volumes", []):
        claim = volume.get("persistentVolumeClaim")
        if claim:
            text = text.replace(volume["name"], f"claim-{claim['claimName']}")
    loaded: dict[str, Any] = json.loads(text)
    loaded.get("volumes", []).sort(key=lambda volume: volume["name"])
    return loaded


def test_quirk_a17_a_claim_that_is_named_twice_is_mounted_at_both_places() -> None:
    template = {"spec": {"containers": [{"name": "main", "image": "busybox"}]}}
    volumes = [{"mountPath": path, "volumeClaimName": "c"} for path in ("/a", "/b")]
    spec = {"tasks": [{"name": "t", "replicas": 1, "template": template}], "volumes": volumes}
    job = msgspec.convert({"spec": encode_templates(spec)}, Job)
    made = pods.build(job, job.spec.tasks[0], 0)["spec"]
    (volume,) = made["volumes"]
    assert volume["persistentVolumeClaim"] == {"claimName": "c"}
    mounts = made["containers"][0]["volumeMounts"]
    assert mounts == [{"name": volume["name"], "mountPath": path} for path in ("/a", "/b")]


def listed(recorded: Any) -> list[Any]:
    """One object, or a list of them, as a list."""
    return recorded if isinstance(recorded, list) else [recorded]


def plain_waiters(spec: dict[str, Any]) -> dict[str, Any]:
    """Init containers that plugins add, without our script and what other plugins gave them.

    What the script does has a test of its own, and there it is chance which plugins serve it.
    """
    for container in spec.get("initContainers", []):
        container["command"] = [*container["command"][:2], "<script>"]
        container.pop("env", None)
        container.pop("volumeMounts", None)
    return spec


@pytest.mark.parametrize("scenario", MADE)
def test_pods_are_made_as_recorded(scenario: str) -> None:
    job = recorded_job(scenario)
    team = Registry().team(job)
    by_name = {task.name: task for task in job.spec.tasks}
    assert MADE[scenario]["Pod"]
    for recorded in MADE[scenario]["Pod"]:
        labels = recorded["metadata"]["labels"]
        index = int(labels["volcano.sh/task-index"])
        pod = pods.build(job, by_name[labels["volcano.sh/task-spec"]], index)
        team.shape(pod, job)
        assert pod["metadata"] == recorded["metadata"]
        assert unordered(volumes_by_claim(plain_waiters(pod["spec"]))) == unordered(
            volumes_by_claim(plain_waiters(recorded["spec"]))
        )


@pytest.mark.parametrize("scenario", MADE)
def test_podgroups_are_made_as_recorded(scenario: str) -> None:
    job, recorded = recorded_job(scenario), MADE[scenario]["PodGroup"]
    made = podgroups.build(job, podgroups.wanted(job, priorities=PRIORITIES))
    body = json.loads(msgspec.json.encode(made))
    assert body["metadata"] == recorded["metadata"]
    spec = body["spec"]
    for part in (spec, *spec.get("subGroupPolicy", [])):
        if "networkTopology" in part:  # "hard" is the schema's default
            part["networkTopology"].setdefault("mode", "hard")
    assert spec == recorded["spec"]


@pytest.mark.parametrize("scenario", MADE)
def test_plugin_objects_are_made_as_recorded(scenario: str) -> None:
    job = recorded_job(scenario)
    made = {
        (wanted.resource.kind, wanted.name): wanted.build()
        for wanted in Registry().team(job).wanted(job)
    }
    recorded = {
        (kind, one["metadata"]["name"]): one
        for kind in ("ConfigMap", "Secret", "Service", "NetworkPolicy")
        for one in listed(MADE[scenario].get(kind, []))
    }
    assert made.keys() == recorded.keys()
    for (kind, name), body in made.items():
        there = recorded[kind, name]
        assert body["metadata"] == there["metadata"]
        if kind == "Secret":
            assert body["data"]["config"] == there["data"]["config"]
            assert body["data"].keys() == there["data"].keys()
            private = base64.b64decode(body["data"]["id_rsa"]).decode()
            assert private.startswith("-----BEGIN RSA PRIVATE KEY-----")
            assert base64.b64decode(body["data"]["id_rsa.pub"]).startswith(b"ssh-rsa ")
            assert body["data"]["id_rsa.pub"] == body["data"]["authorized_keys"]
        else:
            part = "data" if kind == "ConfigMap" else "spec"
            assert body[part] == there[part]
