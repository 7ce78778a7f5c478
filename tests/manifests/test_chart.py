"""The chart renders the objects of the kustomize files, and its values have their effect."""

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
    dumped,
    helm,
    kustomized,
    needs_helm,
    of_kind,
    pod_spec,
)
from tools.chart import templates

from batholith.cli.controller_selection import (
    BATCH_CRON_JOB,
    CONTROLLERS,
    SUSPENSION,
    select,
)
from batholith.model import crds
from batholith.scheduler import conf

pytestmark = pytest.mark.process

COMPONENTS = ("controllers", "scheduler", "admission", "api")
SAME_AS = {
    "batch-jobs": ("controllers.batchJobs=true",),
    "training-jobs": ("controllers.trainingJobs=true",),
    "groupers": ("controllers.groupers={jobset,leaderworkerset,ray,spark,mpijob,argo}",),
    "suspension": ("controllers.suspension={job,jobset,trainjob,rayjob}",),
    "native-gangs": ("controllers.gangProvider=native",),
    "podgroups-of-gangs": ("controllers.podGroups=gangs",),
    "sharded-controllers": ("controllers.shards=12",),
    "monitoring": ("monitoring.enabled=true",),
    "pod-webhooks": ("admission.pods=true",),
    "scheduling-gates": ("schedulingGates=true",),
    "postgres": ("api.store.secretName=batholith-api-store",),
    "rest-tls": ("api.tls.secretName=batholith-api-tls",),
    "history": ("api.history.enabled=true",),
    "notifications": (
        "api.history.enabled=true",
        "api.notifications.secretName=batholith-notify",
    ),
    "web-pages": ("api.extraArgs={--pages}",),
    "rest-impersonation": ("api.impersonation.enabled=true",),
    "without-webhooks": ("admission.enabled=false", "policies.enabled=true"),
    "single": ("controllers.replicas=1", "scheduler.replicas=1", "admission.replicas=1"),
}
"""Values that render each overlay."""


def _without_namespace(found: Objects) -> Objects:
    """Drop the namespace, which Helm creates."""
    return {key: each for key, each in found.items() if key[0] != "Namespace"}


def _component_objects(found: Objects, component: str) -> list[str]:
    label = "app.kubernetes.io/component"
    return [
        f"{key[0]} {key[2]}"
        for key, each in found.items()
        if each["metadata"].get("labels", {}).get(label) == component
    ]


def test_templates_are_generated_from_sources() -> None:
    written = {path.name: path.read_text() for path in (CHART / "templates").glob("*.yaml")}
    del written["training-crds.yaml"]
    assert written == templates(), "run `make chart`"


def test_default_values_render_base() -> None:
    assert chart() == _without_namespace(kustomized(BASE))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_values_render_each_overlay(overlay: str) -> None:
    wanted = kustomized(MANIFESTS / "overlays" / overlay)
    assert chart(*SAME_AS[overlay]) == _without_namespace(wanted)


@pytest.mark.parametrize("first", ["pod-webhooks", "scheduling-gates"])
def test_components_combine_in_any_order(first: str, tmp_path: Path) -> None:
    gates = {"pod-webhooks", "scheduling-gates"}
    paths = ("base", *(f"components/{one}" for one in (first, *(gates - {first}))))
    base, *components = (os.path.relpath(MANIFESTS / path, tmp_path.resolve()) for path in paths)
    kustomization = {"resources": [base], "components": components}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    found = kustomized(tmp_path)
    container = pod_spec(of_kind(found, "Deployment")["batholith-admission"])["containers"][0]
    (enabled,) = (arg for arg in container["args"] if arg.startswith("--enabled-admission="))
    assert {"/pods/validate", "/pods/mutate", "/queues/validate"} <= {*enabled.split(",")}
    if first == "pod-webhooks":
        wanted = chart(*SAME_AS["pod-webhooks"], *SAME_AS["scheduling-gates"])
        assert _without_namespace(found) == wanted


def test_rest_api_combines_tls_and_postgres(tmp_path: Path) -> None:
    paths = ("base", "components/rest-tls", "components/postgres")
    base, *components = (os.path.relpath(MANIFESTS / path, tmp_path.resolve()) for path in paths)
    for order in (components, components[::-1]):
        directory = tmp_path / order[0].rpartition("/")[2]
        directory.mkdir()
        kustomization = {
            "resources": [f"../{base}"],
            "components": [f"../{component}" for component in order],
        }
        (directory / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
        found = kustomized(directory)
        wanted = chart(*SAME_AS["rest-tls"], *SAME_AS["postgres"])
        assert _without_namespace(found) == wanted


def test_controllers_of_batch_and_training_jobs_combine(tmp_path: Path) -> None:
    names = ("batch-jobs", "training-jobs")
    paths = ("base", *(f"components/{one}" for one in names))
    base, *components = (os.path.relpath(MANIFESTS / path, tmp_path.resolve()) for path in paths)
    kustomization = {"resources": [base], "components": components}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    wanted = chart(*(value for name in names for value in SAME_AS[name]))
    assert _without_namespace(kustomized(tmp_path)) == wanted
    (container,) = pod_spec(of_kind(wanted, "Deployment")["batholith-controllers"])["containers"]
    given = [arg.partition("=")[2] for arg in container["args"] if arg.startswith("--controllers=")]
    optional = {BATCH_CRON_JOB, *SUSPENSION}
    assert set(select(",".join(given))) == set(CONTROLLERS) - optional


def test_egress_is_allowed_to_the_ports_of_the_api_server() -> None:
    found = of_kind(chart("apiServerPorts={8443,16443}"), "NetworkPolicy")["batholith"]
    ports = [each["port"] for each in found["spec"]["egress"][0]["ports"]]
    assert ports == [8443, 16443]


def test_manifests_directory_itself_renders_base() -> None:
    assert kustomized(MANIFESTS) == kustomized(BASE)


def test_helm_lint_passes() -> None:
    output = helm("lint", "--strict", str(CHART))
    assert "0 chart(s) failed" in output
    assert "[WARNING]" not in output
    assert "[ERROR]" not in output


def test_namespace_of_the_release_is_used_everywhere() -> None:
    found = chart(namespace="batch")
    assert NAMESPACE not in dumped(
        each for key, each in found.items() if key[0] != "CustomResourceDefinition"
    )
    moved = {(kind, name): namespace for kind, namespace, name in found}
    before = {(kind, name): namespace for kind, namespace, name in chart()}
    assert moved == {key: "batch" if namespace else "" for key, namespace in before.items()}


@pytest.mark.parametrize(
    ("values", "image"),
    [
        (("image.repository=registry.test/b",), "registry.test/b:0.1.0"),
        (("image.tag=2.0",), "batholith:2.0"),
        (("image.tag=2.0", "image.digest=sha256:ab"), "batholith@sha256:ab"),
    ],
)
def test_all_deployments_use_one_image(values: tuple[str, ...], image: str) -> None:
    deployments = of_kind(chart(*values), "Deployment").values()
    assert {pod_spec(each)["containers"][0]["image"] for each in deployments} == {image}


def test_replicas_resources_and_arguments_are_set_per_component() -> None:
    found = chart(
        *(f"{component}.replicas={number}" for number, component in enumerate(COMPONENTS, start=4)),
        *(
            f"{component}.resources.requests.cpu={number}"
            for number, component in enumerate(COMPONENTS, start=4)
        ),
        *(f"{component}.extraArgs[0]=--log-level=DEBUG" for component in COMPONENTS),
        "api.store.secretName=history",
    )
    for number, component in enumerate(COMPONENTS, start=4):
        deployment = of_kind(found, "Deployment")[f"batholith-{component}"]
        container = pod_spec(deployment)["containers"][0]
        assert deployment["spec"]["replicas"] == number
        assert container["resources"]["requests"]["cpu"] == number
        assert container["args"][-1] == "--log-level=DEBUG"


def test_the_scheduler_configuration_is_mounted_as_a_whole_directory() -> None:
    """A file mounted by its path would not follow the ConfigMap."""
    text = "actions: allocate\\, backfill\ntiers: []\n"
    found = chart(f"scheduler.config={text}")
    (name,) = (each for each in of_kind(found, "ConfigMap") if each == "batholith-scheduler-config")
    ((file, mounted),) = of_kind(found, "ConfigMap")[name]["data"].items()
    assert [action for action, _ in conf.load(mounted).actions] == ["allocate", "backfill"]
    spec = pod_spec(of_kind(found, "Deployment")["batholith-scheduler"])
    assert spec["volumes"] == [{"name": "config", "configMap": {"name": name}}]
    (mount,) = spec["containers"][0]["volumeMounts"]
    assert f"--scheduler-conf={mount['mountPath']}/{file}" in spec["containers"][0]["args"]


@pytest.mark.parametrize("is_configured", [True, False])
def test_the_right_to_read_services_is_granted_for_default_constraints_only(
    is_configured: bool,
) -> None:
    argument = "podtopologyspread.defaultingType: System" if is_configured else ""
    plugin = f"{{name: predicates, arguments: {{{argument}}}}}"
    text = f"actions: allocate\ntiers: [plugins: [{plugin}]]".replace(",", "\\,")
    found = chart(f"scheduler.config={text}")
    rules = of_kind(found, "ClusterRole")["batholith-scheduler"]["rules"]
    resources = {resource for rule in rules for resource in rule["resources"]}
    assert ("services" in resources) == is_configured
    assert ("statefulsets" in resources) == is_configured


@pytest.mark.parametrize("plugin", ["usage", "rescheduling", "gang"])
def test_the_right_to_read_node_metrics_is_granted_to_plugins_that_use_them(plugin: str) -> None:
    found = chart(f"scheduler.config=actions: allocate\ntiers: [plugins: [name: {plugin}]]")
    rules = of_kind(found, "ClusterRole")["batholith-scheduler"]["rules"]
    groups = {group for rule in rules for group in rule["apiGroups"]}
    assert ("metrics.k8s.io" in groups) == (plugin != "gang")


@pytest.mark.parametrize("plugin", ["numa-aware", "numaaware", "gang"])
def test_the_right_to_read_numatopologies_is_granted_for_their_plugin(plugin: str) -> None:
    found = chart(f"scheduler.config=actions: allocate\ntiers: [plugins: [name: {plugin}]]")
    rules = of_kind(found, "ClusterRole")["batholith-scheduler"]["rules"]
    groups = {group for rule in rules for group in rule["apiGroups"]}
    assert ("nodeinfo.volcano.sh" in groups) == (plugin != "gang")


def test_sqlite_limits_the_api_to_one_replica() -> None:
    found = of_kind(chart("api.replicas=5"), "Deployment")["batholith-api"]
    assert found["spec"]["replicas"] == 1


def test_scheduling_constraints_apply_to_all_deployments() -> None:
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


@pytest.mark.parametrize("component", COMPONENTS)
def test_component_can_be_disabled(component: str) -> None:
    whole, found = chart(), chart(f"{component}.enabled=false")
    assert _component_objects(whole, component)
    assert not _component_objects(found, component)
    removed = whole.keys() - found.keys()
    assert sorted(_component_objects(whole, component)) == sorted(
        f"{kind} {name}" for kind, _, name in removed
    )


def test_definitions_of_training_jobs_are_rendered_on_request() -> None:
    kind = "CustomResourceDefinition"
    whole, found = chart("trainingCrds=true"), chart()
    definitions = {each["metadata"]["name"]: each for each in crds.load_training()}
    assert whole == found | {(kind, "", name): each for name, each in definitions.items()}
    assert not of_kind(found, kind).keys() & definitions.keys()


@pytest.mark.parametrize(
    ("value", "kinds"),
    [("networkPolicies", {"NetworkPolicy"}), ("userRoles", {"ClusterRole"})],
)
def test_network_policies_and_roles_can_be_disabled(value: str, kinds: set[str]) -> None:
    removed = chart().keys() - chart(f"{value}=false").keys()
    assert {kind for kind, _, _ in removed} == kinds
    assert not {name for _, _, name in removed} & {
        f"batholith-{component}" for component in COMPONENTS[:2]
    }


def test_unknown_value_is_rejected() -> None:
    result = subprocess.run(
        [needs_helm(), "template", "b", str(CHART), "--set=controllers.replica=2"],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert result.returncode != 0
    assert "replica" in result.stderr
