"""Pods, PodGroups and plugin objects equal those that Volcano was recorded to create.

The recordings are scenarios, and those examples of Volcano's users that name plugins, without what
the API server adds. Of texts that are drawn by lot, and long ones, some have the length alone.
"""

import base64
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from support.jobs import encode_templates

from batholith.job_ctrl import podgroups, pods
from batholith.job_ctrl.plugins.registry import Registry
from batholith.model import names
from batholith.model.job import Job
from batholith.model.job_podgroup import desired_spec
from batholith.model.meta import ObjectMeta

CREATED_OBJECTS: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "data" / "job_ctrl" / "created-objects.json").read_text()
)
PRIORITIES = {"high": 1000}
LONG_TEXT_FIELDS = re.compile(r"<(\d+) base64 characters>")
WAIT_CONTAINER = "wait-for-master"
VARIABLES = re.compile(
    r"(?P<env>V[CK]_TASK_INDEX)|(?P<svc>VC_\w+_(?:HOSTS|NUM))|(?P<tensorflow>TF_CONFIG)|"
    r"(?P<mpi>MPI_HOST)|(?P<pytorch>MASTER_ADDR|MASTER_PORT|WORLD_SIZE|RANK)"
)
"""Which plugin has set a variable."""


def created_from_job(scenario: str) -> Job:
    """The Job of a recording, as it was after admission."""
    given = CREATED_OBJECTS[scenario]["Job"]
    job = msgspec.convert({"spec": encode_templates(given["spec"])}, Job)
    meta = msgspec.convert(given["metadata"], ObjectMeta)
    return msgspec.structs.replace(job, metadata=meta)


def unordered(thing: Any) -> Any:
    """Env by plugin, and mounts as a set: Volcano's plugins run in any order."""
    if isinstance(thing, dict):
        return {
            key: by_plugin(value)
            if key == "env"
            else sorted(json.dumps(one, sort_keys=True) for one in value)
            if key == "volumeMounts"
            else unordered(value)
            for key, value in thing.items()
        }
    return [unordered(one) for one in thing] if isinstance(thing, list) else thing


def by_plugin(env: list[dict[str, Any]]) -> dict[str, list[tuple[int | None, dict[str, Any]]]]:
    """Variables in the order in which each plugin sets them; the template's in their position."""
    groups: dict[str, list[tuple[int | None, dict[str, Any]]]] = defaultdict(list)
    for position, one in enumerate(env):
        match = VARIABLES.fullmatch(one["name"])
        plugin = match.lastgroup if match else None
        groups[plugin or "template"].append((None if plugin else position, one))
    return groups


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


def test_quirk_a17_pvc_with_two_mount_paths_is_mounted_at_both() -> None:
    template = {"spec": {"containers": [{"name": "main", "image": "busybox"}]}}
    volumes = [{"mountPath": path, "volumeClaimName": "c"} for path in ("/a", "/b")]
    spec = {"tasks": [{"name": "t", "replicas": 1, "template": template}], "volumes": volumes}
    job = msgspec.convert({"spec": encode_templates(spec)}, Job)
    created = pods.build(job, job.spec.tasks[0], 0)["spec"]
    (volume,) = created["volumes"]
    assert volume["persistentVolumeClaim"] == {"claimName": "c"}
    mounts = created["containers"][0]["volumeMounts"]
    assert mounts == [{"name": volume["name"], "mountPath": path} for path in ("/a", "/b")]


def listed(recorded: Any) -> list[Any]:
    """One object, or a list of them, as a list."""
    return recorded if isinstance(recorded, list) else [recorded]


def plain_waiters(spec: dict[str, Any]) -> dict[str, Any]:
    """The init container that pytorch adds, without our script and what other plugins gave it.

    The script has a separate test, and in Volcano it is random which plugins change its container.
    """
    for container in spec.get("initContainers", []):
        if container["name"] != WAIT_CONTAINER:
            continue
        container["command"] = [*container["command"][:2], "<script>"]
        container.pop("env", None)
        container.pop("volumeMounts", None)
    return spec


@pytest.mark.parametrize("scenario", CREATED_OBJECTS)
def test_pods_equal_the_recorded_ones(scenario: str) -> None:
    job = created_from_job(scenario)
    job_plugins = Registry().for_job(job)
    by_name = {task.name: task for task in job.spec.tasks}
    assert CREATED_OBJECTS[scenario]["Pod"]
    for recorded in CREATED_OBJECTS[scenario]["Pod"]:
        labels = recorded["metadata"]["labels"]
        index = int(labels["volcano.sh/task-index"])
        pod = pods.build(job, by_name[labels["volcano.sh/task-spec"]], index)
        job_plugins.mutate_pod(pod, job)
        assert pod["metadata"] == recorded["metadata"]
        assert unordered(volumes_by_claim(plain_waiters(pod["spec"]))) == unordered(
            volumes_by_claim(plain_waiters(recorded["spec"]))
        )


@pytest.mark.parametrize("scenario", CREATED_OBJECTS)
def test_podgroups_equal_the_recorded_ones(scenario: str) -> None:
    job, recorded = created_from_job(scenario), CREATED_OBJECTS[scenario]["PodGroup"]
    created = podgroups.build(job, desired_spec(job, priorities=PRIORITIES))
    body = json.loads(msgspec.json.encode(created))
    estimate = body["metadata"].get("annotations", {}).pop(names.RUNNING_ESTIMATE, None)
    assert estimate == job.spec.running_estimate, "what Volcano ignores"
    assert body["metadata"] == recorded["metadata"]
    spec = body["spec"]
    for section in (spec, *spec.get("subGroupPolicy", [])):
        if "networkTopology" in section:  # "hard" is the schema's default
            section["networkTopology"].setdefault("mode", "hard")
    assert spec == recorded["spec"]


@pytest.mark.parametrize("scenario", CREATED_OBJECTS)
def test_plugin_objects_equal_the_recorded_ones(scenario: str) -> None:
    job = created_from_job(scenario)
    created = {
        (wanted.resource.kind, wanted.name): wanted.build()
        for wanted in Registry().for_job(job).desired_objects(job)
    }
    recorded = {
        (kind, one["metadata"]["name"]): one
        for kind in ("ConfigMap", "Secret", "Service", "NetworkPolicy")
        for one in listed(CREATED_OBJECTS[scenario].get(kind, []))
    }
    assert created.keys() == recorded.keys()
    for (kind, name), body in created.items():
        there = recorded[kind, name]
        assert body.keys() == there.keys()
        assert body["metadata"] == there["metadata"]
        if kind == "Secret":
            check_keys(body["data"], there["data"])
        else:
            section = "data" if kind == "ConfigMap" else "spec"
            assert body[section] == there[section]


def check_keys(created: dict[str, str], recorded: dict[str, str]) -> None:
    """The client's configuration is the recorded one; keys are of the same kind, and fit."""
    assert created.keys() == recorded.keys()
    for file, text in recorded.items():
        long = LONG_TEXT_FIELDS.fullmatch(text)
        if long is None:
            assert created[file] == text
        elif file == "id_rsa":  # the encodings of its numbers may be some bytes shorter
            assert abs(len(created[file]) - int(long[1])) <= 32
        else:
            assert len(created[file]) == int(long[1])
    assert created["id_rsa.pub"] == created["authorized_keys"]
    private = base64.b64decode(created["id_rsa"])
    assert private.startswith(b"-----BEGIN RSA PRIVATE KEY-----\n")
    key = serialization.load_pem_private_key(private, password=None)
    assert isinstance(key, rsa.RSAPrivateKey) and key.key_size == 2048
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    assert base64.b64decode(created["id_rsa.pub"]) == public + b"\n"
