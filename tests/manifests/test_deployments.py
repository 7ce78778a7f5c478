"""What stands in the Deployments fits the program, the Services, the webhooks and each other."""

from typing import Any

import pytest
import typer
from support.manifests import MANIFESTS, OVERLAYS, Json, Objects, kustomized, of_kind, pod_spec

from batholith.admission.webhooks import WEBHOOKS
from batholith.cli.main import app
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
    """The container's arguments as the command line reads them."""
    environment = {each["name"]: each.get("value", "in-the-pod") for each in container["env"]}
    words = list(container["args"])
    for name, value in environment.items():
        words = [word.replace(f"$({name})", value) for word in words]
    assert not [word for word in words if "$(" in word]
    command = typer.main.get_group(app).commands[words[0]]
    return dict(command.make_context(words[0], words[1:]).params)


def _port(address: object) -> int:
    return int(str(address).rpartition(":")[2])


def _scheme(options: dict[str, Any]) -> str:
    """How the REST API is spoken to; without a certificate plain HTTP is asked for in words."""
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


def test_each_part_has_a_deployment(found: Objects) -> None:
    asked = bool(of_kind(found, "ValidatingWebhookConfiguration"))
    parts = [part for part in COMPONENTS if part != "admission" or asked]
    assert of_kind(found, "Deployment").keys() == {f"batholith-{part}" for part in parts}
    assert asked or of_kind(found, "ValidatingAdmissionPolicy").keys() >= {"batholith-new-jobs"}


def test_the_command_line_takes_every_argument(found: Objects) -> None:
    for name, deployment in of_kind(found, "Deployment").items():
        container = _container(deployment)
        assert container["args"][0] == container["name"] == name.removeprefix("batholith-")
        assert _options(container)


def test_ports_are_those_that_the_arguments_open(found: Objects) -> None:
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
        # Elsewhere --listen-address is where work comes in.
        elsewhere = container["name"] in ("admission", "api")
        metrics = options["metrics_address" if elsewhere else "listen_address"]
        assert ports == {"metrics": _port(metrics)}


def test_probes_ask_where_the_process_answers(found: Objects) -> None:
    for deployment in of_kind(found, "Deployment").values():
        container = _container(deployment)
        port, more = "health", {}
        if container["name"] == "api":
            port = _scheme(_options(container))
            more = {"scheme": "HTTPS"} if port == "https" else {}
        asked = {
            probe: container[f"{probe}Probe"]["httpGet"]
            for probe in ("startup", "liveness", "readiness")
        }
        assert asked == {
            "startup": {"path": "/healthz", "port": port, **more},
            "liveness": {"path": "/healthz", "port": port, **more},
            "readiness": {"path": "/readyz", "port": port, **more},
        }
        assert port in _ports(container)


def test_what_must_not_stop_has_replicas_apart_and_a_budget(found: Objects) -> None:
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


def test_in_the_base_two_replicas_of_each_part_run_save_where_sqlite_is() -> None:
    replicas = {
        name: each["spec"]["replicas"] for name, each in of_kind(kustomized(), "Deployment").items()
    }
    assert replicas.pop("batholith-api") == 1
    assert min(replicas.values()) >= 2
    assert max(replicas.values()) <= 3


def test_a_pod_has_no_more_rights_on_its_node_than_it_needs(found: Objects) -> None:
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


def test_no_secret_stands_in_an_argument(found: Objects) -> None:
    for deployment in of_kind(found, "Deployment").values():
        container = _container(deployment)
        secret = {each["name"] for each in container["env"] if "secretKeyRef" in str(each)}
        assert not [word for word in container["args"] for name in secret if f"$({name})" in word]
        assert "store" not in str(container["args"])


def test_the_certificate_is_read_where_its_secret_is_mounted() -> None:
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


def test_each_service_finds_its_pods_at_ports_that_they_have(found: Objects) -> None:
    deployments = of_kind(found, "Deployment")
    for name, service in of_kind(found, "Service").items():
        labels = _labels(deployments[name])
        assert service["spec"]["selector"].items() <= labels.items()
        ports = _ports(_container(deployments[name]))
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports.keys()


def test_the_secret_of_the_postgres_overlay_gives_the_address_of_the_store() -> None:
    found = kustomized(MANIFESTS / "overlays/postgres")
    deployment = of_kind(found, "Deployment")["batholith-api"]
    wanted = {"secretKeyRef": {"name": "batholith-api-store", "key": "url"}}
    assert {"name": "BATHOLITH_STORE", "valueFrom": wanted} in _container(deployment)["env"]
    assert not of_kind(found, "PersistentVolumeClaim")


def test_what_the_webhooks_are_asked_is_what_the_program_answers(found: Objects) -> None:
    answered = {(each.path, each.name): each for each in WEBHOOKS}
    installed = []
    for kind, verb in (("Mutating", "mutate"), ("Validating", "validate")):
        for name, configuration in of_kind(found, f"{kind}WebhookConfiguration").items():
            (webhook,) = configuration["webhooks"]
            path = webhook["clientConfig"]["service"]["path"]
            ours = answered[path, webhook["name"]]
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


def test_no_webhook_is_asked_in_the_namespaces_that_must_start_without_it(found: Objects) -> None:
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


def test_quirk_q18_webhooks_of_queues_pretend_no_exception_and_are_not_asked_about_states(
    found: Objects,
) -> None:
    """A selector of namespaces excepts no object of the whole cluster from anything."""
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        for name, configuration in of_kind(found, kind).items():
            (webhook,) = configuration["webhooks"]
            assert ("namespaceSelector" in webhook) == ("queues" not in name)
            assert all("/" not in each for each in webhook["rules"][0]["resources"])


def test_pods_are_made_without_asking_a_webhook() -> None:
    base = kustomized()
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        for configuration in of_kind(base, kind).values():
            assert "pods" not in configuration["webhooks"][0]["rules"][0]["resources"]


def test_quirk_p11_groups_may_keep_the_owners_of_their_pods_from_going_first(
    found: Objects,
) -> None:
    rules = of_kind(found, "ClusterRole")["batholith-controllers"]["rules"]
    may = {
        (group, resource)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        if "update" in rule["verbs"]
    }
    asked = {(owner.group, f"{owner.plural}/finalizers") for owner in OWNERS.values()}
    assert asked | {("", "pods/finalizers")} <= may


def test_every_pod_is_behind_a_policy_that_denies_the_rest(found: Objects) -> None:
    policy = of_kind(found, "NetworkPolicy")["batholith"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in policy
    for deployment in of_kind(found, "Deployment").values():
        assert _matches(policy["podSelector"], _labels(deployment))


def test_what_may_be_reached_is_a_port_of_the_pods_that_it_is_said_of(found: Objects) -> None:
    for policy in of_kind(found, "NetworkPolicy").values():
        spec = policy["spec"]
        reached = [each for each in of_kind(found, "Deployment").values()
                   if _matches(spec["podSelector"], _labels(each))]  # fmt: skip
        assert reached
        ports = {port for each in reached for port in _ports(_container(each)).values()}
        opened = {port["port"] for rule in spec.get("ingress", []) for port in rule["ports"]}
        assert opened <= ports
