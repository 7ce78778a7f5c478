"""The files and commands of docs/install.md work."""

import os
import re
from pathlib import Path

import pytest
import yaml
from support.manifests import MANIFESTS, Json, Objects, helm, kustomized, of_kind, pod_spec

from batholith.cli.preflight_checks import CLUSTER_SCOPED, INSTALLED

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "install.md").read_text()


@pytest.mark.process
def test_example_kustomization_renders_all_with_its_image(tmp_path: Path) -> None:
    whole, patches = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    relative = os.path.relpath(ROOT, tmp_path)  # kustomize takes no absolute paths
    (tmp_path / "kustomization.yaml").write_text(whole.replace("../batholith", relative) + patches)
    found = kustomized(tmp_path)
    images = {
        pod_spec(each)["containers"][0]["image"] for each in of_kind(found, "Deployment").values()
    }
    assert images == {"registry.example.com/batholith:0.1.0"}
    assert of_kind(found, "ServiceMonitor")
    egress = of_kind(found, "NetworkPolicy")["batholith"]["spec"]["egress"]
    assert [each["port"] for each in egress[0]["ports"]] == [443, 16443]


def _roles(found: Objects) -> dict[str, Json]:
    return of_kind(found, "ClusterRole")


def _is_of_component(role: Json) -> bool:
    return "app.kubernetes.io/component" in role["metadata"]["labels"]


def test_tables_match_the_manifests() -> None:
    found = kustomized()
    more = [kustomized(MANIFESTS / "overlays" / name) for name in ("batch-jobs", "training-jobs")]
    deployments = of_kind(found, "Deployment")
    roles = {name: role for each in (found, *more) for name, role in _roles(each).items()}
    rows = re.findall(r"^\| `([\w-]+)` \|", PAGE, flags=re.MULTILINE)
    components = [directory.name for directory in (MANIFESTS / "components").iterdir()]
    for_people = {name for name, role in roles.items() if not _is_of_component(role)}
    assert sorted(rows) == sorted([*components, *deployments, *for_people])
    replicas = dict(re.findall(r"^\| `(batholith-\w+)` \| (\d)", PAGE, flags=re.MULTILINE))
    assert replicas == {name: str(it["spec"]["replicas"]) for name, it in deployments.items()}


def test_named_values_exist() -> None:
    given = yaml.safe_load((MANIFESTS / "chart" / "values.yaml").read_text())
    named = re.findall(
        r"(?:--set\s+|`)((?:image|api|admission|controllers)\.[\w.]+|networkPolicies|schedulingGates)",
        PAGE,
    )
    assert len(named) >= 4
    for path in named:
        value = given
        for key in path.split("."):
            value = value[key]


@pytest.mark.process
def test_helm_accepts_the_values_of_the_command() -> None:
    output = helm("template", "batholith", str(MANIFESTS / "chart"),
                  "--set=image.repository=registry.example.com/batholith")  # fmt: skip
    assert "image: registry.example.com/batholith:0.1.0" in output


@pytest.mark.process
def test_preflight_asks_for_the_permission_to_create_each_installed_kind() -> None:
    plurals = {plural for _, plural in INSTALLED}
    groups = {group for group, _ in INSTALLED}
    for overlay in ("history", "without-webhooks"):
        for found in kustomized(MANIFESTS / "overlays" / overlay).values():
            kind = found["kind"].lower()
            plural = kind[:-1] + "ies" if kind.endswith("y") else kind + "s"
            assert plural in plurals
            assert (plural in CLUSTER_SCOPED) == ("namespace" not in found["metadata"])
            assert found["apiVersion"].rpartition("/")[0] in groups
