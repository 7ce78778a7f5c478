"""ResourceQuotas have the same effect as on a real API server."""

import asyncio
import functools
import random
from pathlib import Path
from typing import Any

import pytest
from support.api_servers import RealServerFactory, add_priority_class
from support.embedded_apiserver import MERGE, embedded_server
from support.examples import examples
from support.polling import wait_until_equal, wait_until_true
from support.quotas import NAMESPACE, QuotaServer

from batholith.local.apiserver.admission.quotas import QuotaUsage
from batholith.local.apiserver.current_time import current_time
from batholith.model import crds
from batholith.model.names import (
    PERSISTENTVOLUMECLAIMS,
    PODS,
    SECRETS,
    SERVICES,
    Resource,
)

Json = dict[str, Any]
COUNTED = (PODS, SERVICES, PERSISTENTVOLUMECLAIMS, SECRETS)
HARD: dict[str, tuple[str, ...]] = {
    "pods": ("1", "2", "3"), "count/pods": ("3", "4"), "requests.cpu": ("1", "2500m"),
    "cpu": ("2",), "limits.cpu": ("2", "3"), "memory": ("1Gi", "1500Mi"), "limits.memory": ("2Gi",),
    "requests.ephemeral-storage": ("1Gi",), "requests.example.com/gpu": ("2",),
    "services": ("2",), "count/services": ("3",), "services.nodeports": ("2",),
    "services.loadbalancers": ("1",), "persistentvolumeclaims": ("2",),
    "requests.storage": ("3Gi",), "gold.storageclass.storage.k8s.io/requests.storage": ("2Gi",),
    "secrets": ("1", "2"), "count/secrets": ("2",),
}  # fmt: skip
OF_PODS = ("pods", "requests.cpu", "cpu", "limits.cpu", "memory", "limits.memory")
SCOPES: tuple[Json, ...] = (
    {"scopes": ["Terminating"]}, {"scopes": ["NotTerminating"]}, {"scopes": ["NotBestEffort"]},
    {"scopeSelector": {"matchExpressions": [
        {"scopeName": "PriorityClass", "operator": "NotIn", "values": ["high"]}]}},
    {"scopeSelector": {"matchExpressions": [
        {"scopeName": "PriorityClass", "operator": "Exists"}]}},
)  # fmt: skip


def quota(rng: random.Random) -> Json:
    """The limits and scopes of a random quota."""
    scopes = rng.choice(SCOPES) if rng.random() < 0.5 else {}
    names = OF_PODS if scopes else tuple(HARD)
    chosen = rng.sample(names, rng.randint(1, min(4, len(names))))
    return {"hard": {name: rng.choice(HARD[name]) for name in chosen}, **scopes}


_AMOUNTS = (
    ("cpu", ("250m", "1"), ("1", "1500m")),
    ("memory", ("256Mi", "512Mi"), ("512Mi", "1Gi")),
    ("ephemeral-storage", ("1Mi",), ("1Gi",)),
)


def random_container(rng: random.Random, name: str) -> Json:
    requests, limits = {}, {}
    for resource, least, most in _AMOUNTS:
        if rng.random() < 0.5:
            requests[resource] = rng.choice(least)
        if rng.random() < 0.5:
            limits[resource] = rng.choice(most)
    if rng.random() < 0.2:
        requests["example.com/gpu"] = limits["example.com/gpu"] = "1"
    return {"name": name, "image": "i", "resources": {"requests": requests, "limits": limits}}


def random_pod(rng: random.Random, name: str) -> Json:
    containers = [random_container(rng, f"c{number}") for number in range(rng.randint(1, 2))]
    spec: Json = {"containers": containers}
    if rng.random() < 0.3:
        spec["initContainers"] = [random_container(rng, "init")]
        if rng.random() < 0.5:
            spec["initContainers"][0]["restartPolicy"] = "Always"
    if rng.random() < 0.3:
        spec["activeDeadlineSeconds"] = 1000
    if rng.random() < 0.4:
        spec["priorityClassName"] = rng.choice(("high", "low"))
    if rng.random() < 0.1:
        # At least the sum of what containers request: a real server rejects less.
        spec["resources"] = {"requests": {"cpu": "5", "memory": "3Gi"}}
    return {"metadata": {"name": name}, "spec": spec}


def random_object(rng: random.Random, resource: Resource, name: str) -> Json:
    if resource == PODS:
        return random_pod(rng, name)
    if resource == SECRETS:
        return {"metadata": {"name": name}}
    if resource == SERVICES:
        ports = [{"name": f"p{n}", "port": n} for n in range(80, 80 + rng.randint(1, 2))]
        kind = rng.choice(("ClusterIP", "NodePort", "LoadBalancer"))
        return {"metadata": {"name": name}, "spec": {"type": kind, "ports": ports}}
    size = rng.choice(("1Gi", "1500Mi", "1500m"))
    return {
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": rng.choice(("gold", "", "lead")),
            "resources": {"requests": {"storage": size}},
        },
    }


class Pair:
    """The embedded server and a real one, which get the same requests."""

    def __init__(self, embedded: QuotaServer, real: QuotaServer) -> None:
        self.embedded = embedded
        self.real = real
        self.quotas: dict[str, Json] = {}

    async def limit(self, name: str, spec: Json) -> None:
        self.quotas[name] = spec
        for each in (self.embedded, self.real):
            await each.limit(name, spec["hard"], **{k: v for k, v in spec.items() if k != "hard"})

    async def write(self, method: str, path: str, body: Json | None = None) -> None:
        """Send a request to both; the responses must be equal."""
        content_type = MERGE if method == "PATCH" else "application/json"
        responses = [
            await each.server.request(method, path, body, content_type=content_type)
            for each in (self.embedded, self.real)
        ]
        ours, theirs = ((each.status, self._message(each.body)) for each in responses)
        if ours[0] == theirs[0] == 403:
            # Of several quotas that forbid a write, a real server reports any.
            async def is_reported() -> bool:
                again = await self.real.server.request(
                    method, path, body, content_type=content_type
                )
                return (again.status, self._message(again.body)) == ours

            await wait_until_true(is_reported)
            return
        assert ours == theirs, (method, path, body)

    def _message(self, body: Json) -> str:
        return str(body.get("message", "")) if body.get("kind") == "Status" else ""

    async def wait_equal(self) -> None:
        """Wait until both have the usage of what exists in the status of each quota."""
        for name, spec in self.quotas.items():
            counted = QuotaUsage(name, spec)
            for resource in COUNTED:
                for each in (await self.real.server.get(resource.path(NAMESPACE)))["items"]:
                    key = resource.group, resource.plural
                    counted.charge(key, each["metadata"]["name"], each, current_time())
            used = {
                each: counted.used[each].nanos if each in counted.used else 0
                for each in spec["hard"]
            }
            await wait_until_equal(functools.partial(self.embedded.used, name), used)
            await wait_until_true(functools.partial(self._is_counted, name, used))

    async def _is_counted(self, name: str, used: dict[str, int]) -> bool:
        """Whether the real server has this usage.

        Its quota controller counts what its informers have, so that it may replace the usage after
        a write by the one before. It counts again only when objects are deleted or quotas changed.
        """
        if await self.real.used(name) == used:
            return True
        await self.real.recount(name)
        return False


async def step(rng: random.Random, pair: Pair) -> None:
    resource, number = rng.choice((PODS, PODS, *COUNTED)), rng.randrange(4)
    path, name = resource.path(NAMESPACE), f"{resource.plural[:3]}-{number}"
    choice = rng.random()
    if choice < 0.6:
        await pair.write("POST", path, random_object(rng, resource, name))
    elif choice < 0.75 and resource != PERSISTENTVOLUMECLAIMS:  # no controller there deletes them
        await pair.write("DELETE", f"{path}/{name}")
    elif choice < 0.85 and pair.quotas:
        changed, spec = rng.choice(list(pair.quotas.items()))
        hard = {each: rng.choice(HARD[each]) for each in spec["hard"]}
        await pair.limit(changed, {**spec, "hard": hard})
    elif resource == PODS:
        phase = {"status": {"phase": rng.choice(("Running", "Succeeded", "Failed"))}}
        await pair.write("PATCH", f"{path}/{name}/status", phase)
    elif resource == SERVICES:
        kind = rng.choice(("ClusterIP", "NodePort", "LoadBalancer"))
        await pair.write("PATCH", f"{path}/{name}", {"spec": {"type": kind}})


@pytest.mark.parametrize("seed", range(examples(12)))
async def test_random_writes_have_the_same_effect(
    real: RealServerFactory, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    async with (
        embedded_server(tmp_path) as embedded,
        real.start(tmp_path, crds=crds.load()) as kube,
    ):
        pair = Pair(QuotaServer(embedded), QuotaServer(kube))
        await asyncio.gather(pair.embedded.prepare(), pair.real.prepare())
        for name, value in (("high", 10), ("low", 1)):
            for server in (embedded, kube):
                await add_priority_class(server, name, value)
        for name in ("a", "b"):
            await pair.limit(name, quota(rng))
        for _ in range(15):
            await step(rng, pair)
            await pair.wait_equal()
