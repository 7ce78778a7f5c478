"""The manifests agree with the program, and Deployments, Services and webhooks with each other."""

import re
from typing import Any

import pytest
import typer
from support.manifests import MANIFESTS, OVERLAYS, Json, Objects, kustomized, of_kind, pod_spec

from batholith.admission.webhooks import WEBHOOKS
from batholith.cli.main import app
from batholith.model.names import JOBFLOWS
from batholith.podgroup_ctrl.controller import OWNERS

OVERLAY_DIRS = ("base", *(f"overlays/{overlay}" for overlay in OVERLAYS))
COMPONENTS = ("controllers", "scheduler", "admission", "api")


@pytest.fixture(params=OVERLAY_DIRS)
def found(request: pytest.FixtureRequest) -> Objects:
    return kustomized(MANIFESTS / request.param)


def _container(deployment: Json) -> Json:
    (container,) = pod_spec(deployment)["containers"]
    return dict(container)


def _options(container: Json) -> dict[str, Any]:
    """Parse the container's arguments with the command line."""
    environment = {each["name"]: each.get("value", "in-the-pod") for each in container["env"]}
    args = list(container["args"])
    for name, value in environment.items():
        args = [arg.replace(f"$({name})", value) for arg in args]
    assert not [arg for arg in args if "$(" in arg]
    command = typer.main.get_group(app).commands[args[0]]
    return dict(command.make_context(args[0], args[1:]).params)


def _port(address: object) -> int:
    return int(str(address).rpartition(":")[2])


def _scheme(options: dict[str, Any]) -> str:
    """Return the scheme of the REST API; without a certificate plain HTTP must be explicit."""
    pair = (options["tls_cert_file"], options["tls_private_key_file"])
    assert all(pair) != options["insecure"]
    assert all(pair) or not any(pair)
    return "https" if all(pair) else "http"


def _ports(container: Json) -> dict[str, int]:
    return {each["name"]: each["containerPort"] for each in container["ports"]}


def _matches(selector: Json, labels: Json) -> bool:
    return bool(selector["matchLabels"].items() <= labels.items())


def _labels(deployment: Json) -> Json:
    return dict(deployment["spec"]["template"]["metadata"]["labels"])


def test_each_component_has_a_deployment(found: Objects) -> None:
    has_webhooks = bool(of_kind(found, "ValidatingWebhookConfiguration"))
    components = [each for each in COMPONENTS if each != "admission" or has_webhooks]
    assert of_kind(found, "Deployment").keys() == {f"batholith-{each}" for each in components}
    assert has_webhooks or of_kind(found, "ValidatingAdmissionPolicy").keys() >= {
        "batholith-new-jobs"
    }


def test_command_line_accepts_every_argument(found: Objects) -> None:
    for name, deployment in of_kind(found, "Deployment").items():
        container = _container(deployment)
        assert container["args"][0] == container["name"] == name.removeprefix("batholith-")
        assert _options(container)


def test_container_ports_match_the_arguments(found: Objects) -> None:
    for deployment in of_kind(found, "Deployment").values():
        container = _container(deployment)
        options = _options(container)
        ports = _ports(container)
        if container["name"] == "admission":
            assert ports.pop("webhooks") == options["port"]
        if container["name"] == "api":
            assert ports.pop(_scheme(options)) == _port(options["listen_address"])
        else:
            assert ports.pop("health") == _port(options["healthz_address"])
        if container["name"] == "scheduler":
            assert ports.pop("simulation") == _port(options["simulation_address"])
        # For the others --listen-address is the address of the metrics.
        is_server = container["name"] in ("admission", "api")
        metrics = options["metrics_address" if is_server else "listen_address"]
        assert ports == {"metrics": _port(metrics)}


def test_probes_use_the_served_ports_and_paths(found: Objects) -> None:
    for deployment in of_kind(found, "Deployment").values():
        container = _container(deployment)
        port, more = "health", {}
        if container["name"] == "api":
            port = _scheme(_options(container))
            more = {"scheme": "HTTPS"} if port == "https" else {}
        probes = {
            probe: container[f"{probe}Probe"]["httpGet"]
            for probe in ("startup", "liveness", "readiness")
        }
        assert probes == {
            "startup": {"path": "/healthz", "port": port, **more},
            "liveness": {"path": "/healthz", "port": port, **more},
            "readiness": {"path": "/readyz", "port": port, **more},
        }
        assert port in _ports(container)


def test_replicas_are_spread_and_have_a_disruption_budget(found: Objects) -> None:
    budgets = of_kind(found, "PodDisruptionBudget")
    for name, deployment in of_kind(found, "Deployment").items():
        labels = _labels(deployment)
        assert _matches(deployment["spec"]["selector"], labels)
        assert _matches(budgets[name]["spec"]["selector"], labels)
        spec = pod_spec(deployment)
        (term,) = spec["affinity"]["podAntiAffinity"][
            "preferredDuringSchedulingIgnoredDuringExecution"
        ]
        assert term["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
        assert _matches(term["podAffinityTerm"]["labelSelector"], labels)
        (spread,) = spec["topologySpreadConstraints"]
        assert _matches(spread["labelSelector"], labels)
        assert spec["priorityClassName"] == "system-cluster-critical"


@pytest.mark.process
def test_base_has_two_or_three_replicas_except_with_sqlite() -> None:
    replicas = {
        name: each["spec"]["replicas"] for name, each in of_kind(kustomized(), "Deployment").items()
    }
    assert replicas.pop("batholith-api") == 1
    assert min(replicas.values()) >= 2
    assert max(replicas.values()) <= 3


def test_pods_have_restricted_security_contexts(found: Objects) -> None:
    for deployment in of_kind(found, "Deployment").values():
        spec = pod_spec(deployment)
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        container = _container(deployment)
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"cpu", "memory"} == container["resources"]["requests"].keys()


def test_no_argument_contains_a_secret(found: Objects) -> None:
    for deployment in of_kind(found, "Deployment").values():
        container = _container(deployment)
        secret = {each["name"] for each in container["env"] if "secretKeyRef" in str(each)}
        assert not [arg for arg in container["args"] for name in secret if f"$({name})" in arg]
        assert "store" not in str(container["args"])


def test_certificate_flags_match_the_mounted_secret() -> None:
    found = kustomized(MANIFESTS / "overlays/rest-tls")
    spec = pod_spec(of_kind(found, "Deployment")["batholith-api"])
    (container,) = spec["containers"]
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    (secret,) = (each["secret"] for each in spec["volumes"] if each["name"] == "tls")
    assert secret["secretName"] == "batholith-api-tls"
    options = _options(container)
    for flag, key in (("tls_cert_file", "tls.crt"), ("tls_private_key_file", "tls.key")):
        assert str(options[flag]) == f"{mounts['tls']}/{key}"
    ports = of_kind(found, "Service")["batholith-api"]["spec"]["ports"]
    assert {"name": "https", "port": 443, "targetPort": "https"} in ports


def test_services_select_pods_and_their_ports(found: Objects) -> None:
    deployments = of_kind(found, "Deployment")
    for name, service in of_kind(found, "Service").items():
        labels = _labels(deployments[name])
        assert service["spec"]["selector"].items() <= labels.items()
        ports = _ports(_container(deployments[name]))
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports.keys()


def test_postgres_overlay_reads_the_store_url_from_its_secret() -> None:
    found = kustomized(MANIFESTS / "overlays/postgres")
    deployment = of_kind(found, "Deployment")["batholith-api"]
    wanted = {"secretKeyRef": {"name": "batholith-api-store", "key": "url"}}
    assert {"name": "BATHOLITH_STORE", "valueFrom": wanted} in _container(deployment)["env"]
    assert not of_kind(found, "PersistentVolumeClaim")


def test_webhook_configurations_match_the_served_webhooks(found: Objects) -> None:
    served = {(each.path, each.name): each for each in WEBHOOKS}
    installed = []
    for kind, verb in (("Mutating", "mutate"), ("Validating", "validate")):
        for name, configuration in of_kind(found, f"{kind}WebhookConfiguration").items():
            (webhook,) = configuration["webhooks"]
            path = webhook["clientConfig"]["service"]["path"]
            ours = served[path, webhook["name"]]
            assert name == f"batholith{path.replace('/', '-')}"
            assert path == f"/{ours.resource.plural}/{verb}"
            (rule,) = webhook["rules"]
            assert rule == {
                "apiGroups": [ours.resource.group],
                "apiVersions": [ours.resource.version],
                "resources": [ours.resource.plural],
                "scope": "Namespaced" if ours.resource.namespaced else "Cluster",
                "operations": [one for one in ("CREATE", "UPDATE", "DELETE")
                               if one in ours.operations],
            }  # fmt: skip
            installed.append(path)
    serving = of_kind(found, "Deployment").get("batholith-admission")
    enabled = _options(_container(serving))["enabled_admission"].split(",") if serving else []
    assert sorted(enabled) == sorted(installed)


def test_webhooks_exempt_system_namespaces(found: Objects) -> None:
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        for configuration in of_kind(found, kind).values():
            (webhook,) = configuration["webhooks"]
            assert webhook["failurePolicy"] == "Fail"
            assert "caBundle" not in webhook["clientConfig"]
            if webhook["rules"][0]["scope"] == "Cluster":
                continue
            (expression,) = webhook["namespaceSelector"]["matchExpressions"]
            assert expression["operator"] == "NotIn"
            assert expression["values"] == ["kube-system", "volcano-system"]


def test_quirk_q18_webhooks_of_the_cluster_have_no_namespace_selector_and_no_status_rule(
    found: Objects,
) -> None:
    """A namespace selector has no effect on cluster-scoped objects."""
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        for name, configuration in of_kind(found, kind).items():
            (webhook,) = configuration["webhooks"]
            is_namespaced = not any(each in name for each in ("queues", "hypernodes"))
            assert ("namespaceSelector" in webhook) == is_namespaced
            assert all("/" not in each for each in webhook["rules"][0]["resources"])


def test_base_has_no_webhook_for_pods() -> None:
    base = kustomized()
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        for configuration in of_kind(base, kind).values():
            assert "pods" not in configuration["webhooks"][0]["rules"][0]["resources"]


def test_quirks_p11_and_f14_controllers_may_block_the_deletion_of_owners(
    found: Objects,
) -> None:
    rules = of_kind(found, "ClusterRole")["batholith-controllers"]["rules"]
    updatable = {
        (group, resource)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        if "update" in rule["verbs"]
    }
    owners = (*OWNERS.values(), JOBFLOWS)
    required = {(owner.group, f"{owner.plural}/finalizers") for owner in owners}
    assert required | {("", "pods/finalizers")} <= updatable


def test_network_policy_denies_by_default_for_every_pod(found: Objects) -> None:
    policy = of_kind(found, "NetworkPolicy")["batholith"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in policy
    for deployment in of_kind(found, "Deployment").values():
        assert _matches(policy["podSelector"], _labels(deployment))


def test_ingress_ports_are_ports_of_the_selected_pods(found: Objects) -> None:
    for policy in of_kind(found, "NetworkPolicy").values():
        spec = policy["spec"]
        reached = [each for each in of_kind(found, "Deployment").values()
                   if _matches(spec["podSelector"], _labels(each))]  # fmt: skip
        assert reached
        ports = {port for each in reached for port in _ports(_container(each)).values()}
        opened = {port["port"] for rule in spec.get("ingress", []) for port in rule["ports"]}
        assert opened <= ports


@pytest.mark.process
def test_the_page_about_sizing_has_the_requests_and_limits_of_the_manifests() -> None:
    page = (MANIFESTS.parent / "docs/sizing.md").read_text()
    (row,) = re.findall(r"^\| up to [^|]*: the manifests \|(.*)\|$", page, flags=re.MULTILINE)
    documented = [cell.strip() for cell in row.split("|")]
    found = of_kind(kustomized(), "Deployment")
    given = []
    for name in ("controllers", "scheduler", "admission", "api"):
        resources = _container(found[f"batholith-{name}"])["resources"]
        requests, limits = resources["requests"], resources["limits"]
        given.append(f"{requests['cpu']}, {requests['memory']}; limit {limits['memory']}")
    assert documented == given
