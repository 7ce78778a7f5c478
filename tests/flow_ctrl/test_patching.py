"""Patches of flows on the spec of their template."""

from typing import Any

import pytest

from batholith.flow_ctrl.patching import PatchError, apply_patch

Json = dict[str, Any]

CONTAINER: Json = {
    "name": "main",
    "image": "busybox:1.36",
    "command": ["python", "train.py"],
    "env": [{"name": "EPOCHS", "value": "3"}, {"name": "SEED", "value": "1"}],
    "ports": [{"containerPort": 80, "protocol": "TCP"}],
}
SPEC: Json = {
    "minAvailable": 1,
    "queue": "research",
    "maxRetry": 5,
    "plugins": {"env": [], "ssh": ["--no-root"]},
    "policies": [{"event": "PodFailed", "action": "RestartJob"}],
    "tasks": [
        {"name": "ps", "replicas": 1, "template": {"spec": {"containers": [CONTAINER]}}},
        {"name": "worker", "replicas": 2, "template": {"spec": {"containers": [CONTAINER]}}},
    ],
}


def pod_spec(job: Json, task: int = 0) -> Json:
    spec: Json = job["tasks"][task]["template"]["spec"]
    return spec


def of_task(name: str, **spec: Any) -> Json:
    return {"tasks": [{"name": name, "template": {"spec": spec}}]}


def test_quirk_f1_what_a_patch_does_not_name_stays() -> None:
    assert apply_patch(SPEC, {}) == SPEC
    assert apply_patch(SPEC, {"maxRetry": 7}) == SPEC | {"maxRetry": 7}


def test_the_template_is_not_changed() -> None:
    before = repr(SPEC)
    apply_patch(SPEC, of_task("ps", containers=[{"name": "main", "image": "other"}]))
    assert repr(SPEC) == before


def test_tasks_and_containers_are_merged_by_name_and_their_lists_by_their_keys() -> None:
    change = {"name": "main", "image": "cuda", "env": [{"name": "EPOCHS", "value": "9"}]}
    patched = apply_patch(SPEC, of_task("worker", containers=[change]))
    assert pod_spec(patched, 0) == pod_spec(SPEC, 0)
    assert pod_spec(patched, 1)["containers"] == [
        {
            **CONTAINER,
            "image": "cuda",
            "env": [{"name": "EPOCHS", "value": "9"}, {"name": "SEED", "value": "1"}],
        }
    ]
    assert patched["tasks"][1]["replicas"] == 2


def test_new_items_are_appended() -> None:
    sidecar = {"name": "sidecar", "image": "busybox"}
    patched = apply_patch(SPEC, of_task("ps", containers=[sidecar], volumes=[{"name": "data"}]))
    assert pod_spec(patched)["containers"] == [CONTAINER, sidecar]
    assert pod_spec(patched)["volumes"] == [{"name": "data"}]
    more = {"name": "evaluator", "replicas": 1}
    assert apply_patch(SPEC, {"tasks": [more]})["tasks"] == [*SPEC["tasks"], more]


def test_lists_without_keys_are_replaced_and_maps_are_merged() -> None:
    policies = [{"event": "PodEvicted", "action": "AbortJob"}]
    patched = apply_patch(SPEC, {"policies": policies, "plugins": {"ssh": [], "svc": []}})
    assert patched["policies"] == policies
    assert patched["plugins"] == {"env": [], "ssh": [], "svc": []}
    command = {"name": "main", "command": ["sh"]}
    patched = apply_patch(SPEC, of_task("ps", containers=[command]))
    assert pod_spec(patched)["containers"][0]["command"] == ["sh"]


def test_a_key_with_a_default_may_be_missing() -> None:
    port = {"containerPort": 80, "name": "http"}
    patched = apply_patch(SPEC, of_task("ps", containers=[{"name": "main", "ports": [port]}]))
    assert pod_spec(patched)["containers"][0]["ports"] == [
        {"containerPort": 80, "protocol": "TCP", "name": "http"}
    ]


def test_volumes_of_the_job_are_merged_by_mount_path() -> None:
    spec = SPEC | {"volumes": [{"mountPath": "/data", "volumeClaimName": "old"}]}
    patched = apply_patch(spec, {"volumes": [{"mountPath": "/data", "volumeClaimName": "new"}]})
    assert patched["volumes"] == [{"mountPath": "/data", "volumeClaimName": "new"}]


def test_the_only_task_needs_no_name_and_unnamed_tasks_have_their_default_names() -> None:
    """The documentation of Volcano has a patch whose task has no name."""
    single = SPEC | {"tasks": SPEC["tasks"][:1]}
    patched = apply_patch(single, {"tasks": [{"replicas": 3}]})
    assert [(each["name"], each["replicas"]) for each in patched["tasks"]] == [("ps", 3)]
    unnamed = SPEC | {"tasks": [{"replicas": 1}, {"replicas": 2}]}
    patched = apply_patch(unnamed, {"tasks": [{"name": "default1", "replicas": 5}]})
    assert [each["replicas"] for each in patched["tasks"]] == [1, 5]


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ({"tasks": [{"replicas": 3}]}, "tasks: an item has no name"),
        ({"volumes": [{"volumeClaimName": "c"}]}, "volumes: an item has no mountPath"),
        (
            of_task("ps", containers=[{"name": "main"}, {"image": "x"}]),
            "tasks.template.spec.containers: an item has no name",
        ),
    ],
)
def test_an_item_without_its_key_is_an_error(patch: Json, message: str) -> None:
    with pytest.raises(PatchError, match=message):
        apply_patch(SPEC, patch)


# Patches of JobFlows that Volcano's definition has defaulted


DEFAULTED = {"queue": "default", "maxRetry": 3}


def test_defaults_of_volcanos_definition_do_not_override() -> None:
    assert apply_patch(SPEC, DEFAULTED) == SPEC
    patched = apply_patch(SPEC, DEFAULTED | {"minAvailable": 2})
    assert patched == SPEC | {"minAvailable": 2}


def test_other_values_override_beside_defaults() -> None:
    assert apply_patch(SPEC, DEFAULTED | {"queue": "fast"}) == SPEC | {"queue": "fast"}
    assert apply_patch(SPEC, DEFAULTED | {"maxRetry": 1}) == SPEC | {"maxRetry": 1}


def test_without_the_other_field_a_default_is_explicit() -> None:
    """Batholith's definition sets neither, so both are written by the user or not there."""
    assert apply_patch(SPEC, {"queue": "default"}) == SPEC | {"queue": "default"}
    assert apply_patch(SPEC, {"maxRetry": 3}) == SPEC | {"maxRetry": 3}


def test_defaults_inside_the_patch_do_not_override_either() -> None:
    topology = {"mode": "soft", "highestTierAllowed": 1}
    spec = SPEC | {"networkTopology": topology}
    given = {"networkTopology": {"mode": "hard", "highestTierAllowed": 2}}
    merged = apply_patch(spec, DEFAULTED | given)["networkTopology"]
    assert merged == {"mode": "soft", "highestTierAllowed": 2}
    assert apply_patch(spec, given)["networkTopology"] == given["networkTopology"]
