"""The chart gives what the kustomize files give, and its values do what they say."""

import os
import subprocess
from pathlib import Path

import pytest
import yaml
from support.manifests import (
    BASE,
    CHART,
    MANIFESTS,
    NAMESPACE,
    OVERLAYS,
    Objects,
    chart,
    helm,
    kustomized,
    needs_helm,
    of_kind,
    pod_spec,
)
from tools.chart import templates

COMPONENTS = ("controllers", "scheduler", "admission", "api")
SAME_AS = {
    "monitoring": ("monitoring.enabled=true",),
    "pod-webhooks": ("admission.pods=true",),
    "scheduling-gates": ("schedulingGates=true",),
    "postgres": ("api.store.secretName=batholith-api-store",),
    "rest-tls": ("api.tls.secretName=batholith-api-tls",),
    "without-webhooks": ("admission.enabled=false", "policies.enabled=true"),
    "single": ("controllers.replicas=1", "scheduler.replicas=1", "admission.replicas=1"),
}
"""The values that give each overlay."""


def _without_namespace(found: Objects) -> Objects:
    """Helm is told the namespace, and makes it itself."""
    return {key: each for key, each in found.items() if key[0] != "Namespace"}


def _component_objects(found: Objects, component: str) -> list[str]:
    label = "app.kubernetes.io/component"
    return [
        f"{key[0]} {key[2]}"
        for key, each in found.items()
        if each["metadata"].get("labels", {}).get(label) == component
    ]


def test_the_templates_are_those_of_the_sources() -> None:
    written = {path.name: path.read_text() for path in (CHART / "templates").glob("*.yaml")}
    assert written == templates(), "run `make chart`"


def test_the_defaults_give_the_base() -> None:
    assert chart() == _without_namespace(kustomized(BASE))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_values_give_each_overlay(overlay: str) -> None:
    wanted = kustomized(MANIFESTS / "overlays" / overlay)
    assert chart(*SAME_AS[overlay]) == _without_namespace(wanted)


@pytest.mark.parametrize("first", ["pod-webhooks", "scheduling-gates"])
def test_components_add_up_in_any_order(first: str, tmp_path: Path) -> None:
    gates = {"pod-webhooks", "scheduling-gates"}
    parts = ("base", *(f"components/{one}" for one in (first, *(gates - {first}))))
    base, *components = (os.path.relpath(MANIFESTS / part, tmp_path.resolve()) for part in parts)
    told = {"resources": [base], "components": components}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(told))
    found = kustomized(tmp_path)
    container = pod_spec(of_kind(found, "Deployment")["batholith-admission"])["containers"][0]
    (enabled,) = (word for word in container["args"] if word.startswith("--enabled-admission="))
    assert {"/pods/validate", "/pods/mutate", "/queues/validate"} <= {*enabled.split(",")}
    if first == "pod-webhooks":
        wanted = chart(*SAME_AS["pod-webhooks"], *SAME_AS["scheduling-gates"])
        assert _without_namespace(found) == wanted


def test_the_rest_api_has_tls_and_postgres_at_a_time(tmp_path: Path) -> None:
    parts = ("base", "components/rest-tls", "components/postgres")
    base, *components = (os.path.relpath(MANIFESTS / part, tmp_path.resolve()) for part in parts)
    for order in (components, components[::-1]):
        folder = tmp_path / order[0].rpartition("/")[2]
        folder.mkdir()
        told = {
            "resources": [f"../{base}"],
            "components": [f"../{component}" for component in order],
        }
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(told))
        found = kustomized(folder)
        wanted = chart(*SAME_AS["rest-tls"], *SAME_AS["postgres"])
        assert _without_namespace(found) == wanted


def test_traffic_goes_out_to_the_ports_of_the_api_server() -> None:
    found = of_kind(chart("apiServerPorts={8443,16443}"), "NetworkPolicy")["batholith"]
    ports = [each["port"] for each in found["spec"]["egress"][0]["ports"]]
    assert ports == [8443, 16443]


def test_the_base_is_what_the_folder_itself_gives() -> None:
    assert kustomized(MANIFESTS) == kustomized(BASE)


def test_helm_finds_nothing_wrong() -> None:
    said = helm("lint", "--strict", str(CHART))
    assert "0 chart(s) failed" in said
    assert "[WARNING]" not in said
    assert "[ERROR]" not in said


def test_another_namespace_is_followed_everywhere() -> None:
    found = chart(namespace="batch")
    assert NAMESPACE not in yaml.safe_dump_all(
        each for key, each in found.items() if key[0] != "CustomResourceDefinition"
    )
    moved = {(kind, name): space for kind, space, name in found}
    before = {(kind, name): space for kind, space, name in chart()}
    assert moved == {key: "batch" if space else "" for key, space in before.items()}


@pytest.mark.parametrize(
    ("values", "image"),
    [
        (("image.repository=registry.test/b",), "registry.test/b:0.1.0"),
        (("image.tag=2.0",), "batholith:2.0"),
        (("image.tag=2.0", "image.digest=sha256:ab"), "batholith@sha256:ab"),
    ],
)
def test_the_image_is_one_for_all(values: tuple[str, ...], image: str) -> None:
    deployments = of_kind(chart(*values), "Deployment").values()
    assert {pod_spec(each)["containers"][0]["image"] for each in deployments} == {image}


def test_replicas_resources_and_arguments_are_set_by_part() -> None:
    found = chart(
        *(f"{part}.replicas={number}" for number, part in enumerate(COMPONENTS, start=4)),
        *(
            f"{part}.resources.requests.cpu={number}"
            for number, part in enumerate(COMPONENTS, start=4)
        ),
        *(f"{part}.extraArgs[0]=--log-level=DEBUG" for part in COMPONENTS),
        "api.store.secretName=history",
    )
    for number, part in enumerate(COMPONENTS, start=4):
        deployment = of_kind(found, "Deployment")[f"batholith-{part}"]
        container = pod_spec(deployment)["containers"][0]
        assert deployment["spec"]["replicas"] == number
        assert container["resources"]["requests"]["cpu"] == number
        assert container["args"][-1] == "--log-level=DEBUG"


def test_sqlite_takes_one_replica_whatever_is_asked() -> None:
    found = of_kind(chart("api.replicas=5"), "Deployment")["batholith-api"]
    assert found["spec"]["replicas"] == 1


def test_where_pods_may_go_is_set_for_all() -> None:
    found = chart(
        "nodeSelector.pool=system",
        "tolerations[0].operator=Exists",
        "image.pullSecrets[0].name=key",
        "priorityClassName=high",
    )
    for deployment in of_kind(found, "Deployment").values():
        spec = pod_spec(deployment)
        assert spec["nodeSelector"] == {"pool": "system"}
        assert spec["tolerations"] == [{"operator": "Exists"}]
        assert spec["imagePullSecrets"] == [{"name": "key"}]
        assert spec["priorityClassName"] == "high"


@pytest.mark.parametrize("part", COMPONENTS)
def test_a_part_can_be_left_out(part: str) -> None:
    whole, found = chart(), chart(f"{part}.enabled=false")
    assert _component_objects(whole, part)
    assert not _component_objects(found, part)
    gone = whole.keys() - found.keys()
    assert sorted(_component_objects(whole, part)) == sorted(
        f"{kind} {name}" for kind, _, name in gone
    )


@pytest.mark.parametrize(
    ("value", "kinds"),
    [("networkPolicies", {"NetworkPolicy"}), ("userRoles", {"ClusterRole"})],
)
def test_policies_and_roles_can_be_left_out(value: str, kinds: set[str]) -> None:
    gone = chart().keys() - chart(f"{value}=false").keys()
    assert {kind for kind, _, _ in gone} == kinds
    assert not {name for _, _, name in gone} & {f"batholith-{part}" for part in COMPONENTS[:2]}


def test_an_unknown_value_is_refused() -> None:
    said = subprocess.run(
        [needs_helm(), "template", "b", str(CHART), "--set=controllers.replica=2"],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert said.returncode != 0
    assert "replica" in said.stderr
