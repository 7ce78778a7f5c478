"""Pod Security levels have the same effect as on a real API server."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from support.api_servers import RealServerFactory, add_namespace
from support.embedded_apiserver import Server, embedded_server
from support.examples import examples

from batholith.model.names import PODS, Resource

Json = dict[str, Any]
PREFIX = "pod-security.kubernetes.io"
APP_ARMOR = "container.apparmor.security.beta.kubernetes.io"
LEVELS = ("privileged", "baseline", "restricted")
VERSIONS = ("latest", "v1.0", "v1.18", "v1.21", "v1.22", "v1.24", "v1.26", "v1.28", "v1.30",
            "v1.31", "v1.33", "v1.34", "v1.35", "v1.99")  # fmt: skip
PODS_EACH = 40
WORKLOADS: tuple[tuple[Resource, Any], ...] = (
    (Resource("apps", "v1", "deployments", "Deployment"),
     lambda template: {"selector": {"matchLabels": {"a": "b"}}, "template": template}),
    (Resource("batch", "v1", "jobs", "Job"), lambda template: {"template": template}),
    (Resource("batch", "v1", "cronjobs", "CronJob"), lambda template: {
        "schedule": "* * * * *", "jobTemplate": {"spec": {"template": template}}}),
)  # fmt: skip


def context(rng: random.Random, *, of_pod: bool) -> Json:
    """A random security context."""
    common: Json = {
        "runAsNonRoot": (True, True, False), "runAsUser": (0, 1000),
        "seccompProfile": (
            {"type": "RuntimeDefault"}, {"type": "RuntimeDefault"}, {"type": "Unconfined"},
            {"type": "Localhost", "localhostProfile": "p.json"},
        ),
        "appArmorProfile": ({"type": "RuntimeDefault"}, {"type": "Unconfined"}),
        "seLinuxOptions": (
            {"type": "container_t"}, {"type": "container_engine_t"}, {"type": "spc_t"},
            {"user": "u", "role": "r"}, {"level": "s0"},
        ),
    }  # fmt: skip
    if of_pod:
        sysctls = ("kernel.shm_rmid_forced", "net.ipv4.tcp_rmem", "net.ipv4.tcp_keepalive_time",
                   "net.ipv4.ip_local_reserved_ports", "kernel.msgmax")  # fmt: skip
        common["sysctls"] = [[{"name": name, "value": "1"}] for name in sysctls]
    else:
        common |= {
            "allowPrivilegeEscalation": (False, False, True), "privileged": (False, True),
            "procMount": ("Default", "Unmasked"),
            "capabilities": (
                {"drop": ["ALL"]}, {"drop": ["ALL"]},
                {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
                {"add": ["SYS_ADMIN", "CHOWN"]}, {"drop": ["KILL"], "add": ["NET_RAW"]},
            ),
        }  # fmt: skip
    found = {key: rng.choice(values) for key, values in common.items() if rng.random() < 0.55}
    if found.get("privileged") or "SYS_ADMIN" in str(found.get("capabilities")):
        found.pop("allowPrivilegeEscalation", None)
    return found


def container(rng: random.Random, name: str) -> Json:
    found: Json = {"name": name, "image": "i"}
    if rng.random() < 0.85:
        found["securityContext"] = context(rng, of_pod=False)
    if rng.random() < 0.15:
        port = rng.choice((80, 8080))
        found["ports"] = [{"containerPort": port, "hostPort": port}]
    if rng.random() < 0.15:
        action = rng.choice(
            ({"tcpSocket": {"port": 1, "host": "h"}}, {"httpGet": {"port": 1, "host": "g"}})
        )
        if name.startswith("c"):
            found["livenessProbe"] = action
            found["lifecycle"] = {"preStop": action}
    return found


def pod(rng: random.Random, name: str) -> Json:
    """A random pod; the API server may find it invalid."""
    volumes: tuple[Json, ...] = (
        {"emptyDir": {}}, {"hostPath": {"path": "/x"}}, {"nfs": {"server": "s", "path": "/"}},
        {"configMap": {"name": "c"}}, {"persistentVolumeClaim": {"claimName": "c"}},
    )  # fmt: skip
    containers = [container(rng, f"c{number}") for number in range(rng.randint(1, 3))]
    spec: Json = {"containers": containers}
    if rng.random() < 0.3:
        spec["initContainers"] = [container(rng, "init")]
    if rng.random() < 0.7:
        spec["securityContext"] = context(rng, of_pod=True)
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if rng.random() < 0.08:
            spec[key] = True
    if rng.random() < 0.2:
        spec["hostUsers"] = rng.random() < 0.3
    spec["volumes"] = [
        {"name": f"v{number}", **rng.choice(volumes)} for number in range(rng.choice((0, 0, 1, 2)))
    ]
    return {"metadata": {"name": name}, "spec": spec}


def labels(rng: random.Random) -> dict[str, str]:
    found = {}
    for mode in ("enforce", "warn", "audit"):
        if rng.random() < 0.7:
            found[f"{PREFIX}/{mode}"] = rng.choice(LEVELS)
        if rng.random() < 0.6:
            found[f"{PREFIX}/{mode}-version"] = rng.choice(VERSIONS)
    return found


async def outcome(server: Server, path: str, body: Json) -> tuple[int, str, list[str]]:
    """Status, message and the warnings of Pod Security of a creation that is not stored."""
    response = await server.request("POST", f"{path}?dryRun=All", body)
    message = str(response.body.get("message", "")) if response.status != 201 else ""
    relevant = [text for text in response.warnings if "PodSecurity" in text]
    return response.status, message, relevant


async def compare(embedded: Server, kube: Server, path: str, body: Json) -> str:
    """Send *body* to both; return the message and warnings, if the real one finds it valid."""
    theirs = await outcome(kube, path, body)
    if theirs[0] not in (201, 403):
        return ""
    ours = await outcome(embedded, path, body)
    assert ours == theirs, body
    return theirs[1] + "".join(theirs[2])


@pytest.mark.parametrize("seed", range(examples(12)))
async def test_random_pods_and_templates_have_the_same_result(
    real: RealServerFactory, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    seen = set()
    async with embedded_server(tmp_path) as embedded, real.start(tmp_path) as kube:
        for number in range(4):
            name, chosen = f"ns-{number}", labels(rng)
            for server in (embedded, kube):
                await add_namespace(server, name, labels=chosen)
            for _ in range(PODS_EACH):
                body = pod(rng, "p")
                seen.add(await compare(embedded, kube, PODS.path(name), body))
                if rng.random() < 0.15:
                    resource, spec = rng.choice(WORKLOADS)
                    body["metadata"] = {"labels": {"a": "b"}}
                    if rng.random() < 0.5:  # a real server copies those of pods to fields
                        profile = rng.choice(("unconfined", "runtime/default"))
                        body["metadata"]["annotations"] = {f"{APP_ARMOR}/c0": profile}
                    if resource.group == "batch":
                        body["spec"]["restartPolicy"] = "Never"
                    whole = {"metadata": {"name": "w"}, "spec": spec(body)}
                    seen.add(await compare(embedded, kube, resource.path(name), whole))
    assert len(seen) > 10  # most pods violate something


async def test_invalid_labels_are_rejected(real: RealServerFactory, tmp_path: Path) -> None:
    bad = (
        {"enforce": "strict"}, {"warn-version": "1.2"}, {"audit": "", "audit-version": "v1.01"},
        {"enforce": "x", "enforce-version": "v2.0", "warn": "y"},
    )  # fmt: skip
    async with embedded_server(tmp_path) as embedded, real.start(tmp_path) as kube:
        for each in bad:
            chosen = {f"{PREFIX}/{key}": value for key, value in each.items()}
            body = {"metadata": {"name": "bad", "labels": chosen}}
            ours, theirs = [
                await server.request("POST", "/api/v1/namespaces", body)
                for server in (embedded, kube)
            ]
            assert ours.status == theirs.status == 422
            assert ours.body == theirs.body


async def test_a_stricter_level_warns_of_existing_pods(
    real: RealServerFactory, tmp_path: Path
) -> None:
    rng = random.Random(3)
    bodies = [pod(rng, f"p{number}") for number in range(12)]
    async with embedded_server(tmp_path) as embedded, real.start(tmp_path) as kube:
        for server in (embedded, kube):
            await add_namespace(server, "ns")
        created = 0
        for body in bodies:
            response = await kube.request("POST", PODS.path("ns"), body)
            if response.status == 201:
                await embedded.create(PODS.path("ns"), body)
                created += 1
        assert created > 3
        for level, version in (("baseline", "v1.20"), ("restricted", "latest"), ("baseline", "")):
            patch = {
                "metadata": {
                    "labels": {
                        f"{PREFIX}/enforce": level,
                        f"{PREFIX}/enforce-version": version or None,
                    }
                }
            }

            async def warnings(server: Server, patch: Json = patch) -> list[str]:
                response = await server.request(
                    "PATCH",
                    "/api/v1/namespaces/ns?dryRun=All",
                    patch,
                    content_type="application/merge-patch+json",
                )
                assert response.status == 200, response.body
                return response.warnings

            ours, theirs = await asyncio.gather(warnings(embedded), warnings(kube))
            assert ours == theirs
            assert ours
