"""Random nodes and pods with constraints, as JSON, from a seed.

The vocabulary is small, so that terms match, ports collide and nodes fill up.
"""

import random
from typing import Any

Json = dict[str, Any]

HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
RACK = "rack"
NAMESPACES: dict[str, dict[str, str]] = {
    "ns-a": {"team": "red"},
    "ns-b": {"team": "blue"},
    "ns-c": {},
}
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def random_node(rng: random.Random, name: str) -> Json:
    """A node; some lack labels, some have taints or are unschedulable."""
    labels = {HOSTNAME: name, "kubernetes.io/os": "linux", "disk": rng.choice(("ssd", "hdd"))}
    if rng.random() < 0.9:
        labels[ZONE] = f"z{rng.randrange(4)}"
    if rng.random() < 0.7:
        labels[RACK] = f"r{rng.randrange(6)}"
    taints = []
    if rng.random() < 0.2:
        effect = rng.choice(("NoSchedule", "NoExecute", "PreferNoSchedule"))
        taints.append({"key": "gpu", "value": rng.choice(("a", "b")), "effect": effect})
    allocatable = {
        "cpu": str(rng.choice((4, 6, 8))),
        "memory": f"{rng.choice((8, 16))}Gi",
        "pods": str(rng.choice((5, 10, 20))),
    }
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": taints, "unschedulable": rng.random() < 0.05},
        "status": {"capacity": dict(allocatable), "allocatable": allocatable},
    }


def random_pod(rng: random.Random, name: str, *, constraints: float = 1.0) -> Json:
    """A pod; *constraints* scales how many constraints it has."""

    def sometimes(probability: float) -> bool:
        return rng.random() < probability * constraints

    labels = {"app": rng.choice("abcde"), "version": rng.choice(("1", "2"))}
    if rng.random() < 0.3:
        labels["tier"] = rng.choice(("front", "back"))
    container: Json = {"name": "c", "image": f"image-{rng.randrange(4)}"}
    requests = {"cpu": rng.choice(("100m", "250m", "1")), "memory": rng.choice(("64Mi", "1Gi"))}
    spec: Json = {"containers": [container]}
    if sometimes(0.1):
        spec["resources"] = {"requests": {"cpu": "2"}}
    elif rng.random() < 0.9:
        container["resources"] = {"requests": requests}
    if sometimes(0.15):
        container["ports"] = [_host_port(rng)]
    if sometimes(0.4):
        spec["affinity"] = _affinity(rng)
    if sometimes(0.35):
        spec["topologySpreadConstraints"] = _spread(rng)
    if sometimes(0.1):
        spec["nodeSelector"] = {"disk": rng.choice(("ssd", "hdd"))}
    if rng.random() < 0.3:
        spec["tolerations"] = [
            rng.choice(
                (
                    {"key": "gpu", "operator": "Exists"},
                    {"key": "gpu", "operator": "Equal", "value": "a", "effect": "NoSchedule"},
                    {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"},
                    {"operator": "Exists"},
                )
            )
        ]
    meta = {"name": name, "namespace": rng.choice(list(NAMESPACES)), "labels": labels}
    return {"metadata": meta, "spec": spec}


def _host_port(rng: random.Random) -> Json:
    port: Json = {"containerPort": 80, "hostPort": rng.choice((8080, 8081))}
    if rng.random() < 0.3:
        port["hostIP"] = rng.choice(("127.0.0.1", "10.0.0.1"))
    if rng.random() < 0.3:
        port["protocol"] = "UDP"
    return port


def _selector(rng: random.Random) -> Json:
    kind = rng.randrange(6)
    if kind < 3:
        return {"matchLabels": {"app": rng.choice("abcde")}}
    if kind == 3:
        values = rng.sample("abcde", 2)
        return {"matchExpressions": [{"key": "app", "operator": "In", "values": values}]}
    if kind == 4:
        operator = rng.choice(("Exists", "DoesNotExist"))
        return {"matchExpressions": [{"key": "tier", "operator": operator}]}
    return {
        "matchLabels": {"app": rng.choice("abcde")},
        "matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["front"]}],
    }


def _pod_term(rng: random.Random) -> Json:
    term: Json = {
        "topologyKey": rng.choice((HOSTNAME, ZONE, ZONE, RACK)),
        "labelSelector": _selector(rng),
    }
    namespaces = rng.randrange(6)
    if namespaces == 0:
        term["namespaces"] = rng.sample(list(NAMESPACES), 2)
    elif namespaces == 1:
        term["namespaceSelector"] = rng.choice(({}, {"matchLabels": {"team": "red"}}))
    keys = rng.randrange(8)
    if keys == 0:
        term["matchLabelKeys"] = ["version"]
    elif keys == 1:
        term["mismatchLabelKeys"] = ["version"]
    return term


def _affinity(rng: random.Random) -> Json:
    affinity: Json = {}
    for kind, probability in (("podAffinity", 0.35), ("podAntiAffinity", 0.45)):
        section: Json = {}
        if rng.random() < probability:
            section[_REQUIRED] = [_pod_term(rng) for _ in range(rng.choice((1, 1, 2)))]
        if rng.random() < 0.3:
            section[_PREFERRED] = [
                {"weight": rng.randrange(1, 100), "podAffinityTerm": _pod_term(rng)}
            ]
        if section:
            affinity[kind] = section
    if rng.random() < 0.3:
        affinity["nodeAffinity"] = _node_affinity(rng)
    return affinity


def _node_affinity(rng: random.Random) -> Json:
    expression = rng.choice(
        (
            {"key": "disk", "operator": "In", "values": ["ssd"]},
            {"key": ZONE, "operator": "NotIn", "values": ["z0", "z1"]},
            {"key": RACK, "operator": "Exists"},
            {"key": RACK, "operator": "DoesNotExist"},
        )
    )
    if rng.random() < 0.5:
        return {_REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
    return {_PREFERRED: [{"weight": 10, "preference": {"matchExpressions": [expression]}}]}


def _spread(rng: random.Random) -> list[Json]:
    pairs = [(key, when) for key in (HOSTNAME, ZONE, RACK) for when in ("Hard", "Soft")]
    constraints = []
    for key, when in rng.sample(pairs, rng.choice((1, 1, 2))):
        constraint: Json = {
            "maxSkew": rng.choice((1, 1, 2, 3)),
            "topologyKey": key,
            "whenUnsatisfiable": "DoNotSchedule" if when == "Hard" else "ScheduleAnyway",
            "labelSelector": rng.choice((_selector(rng), _selector(rng), {})),
        }
        if when == "Hard" and rng.random() < 0.3:
            constraint["minDomains"] = rng.randrange(1, 6)
        if rng.random() < 0.3:
            constraint["nodeAffinityPolicy"] = rng.choice(("Honor", "Ignore"))
        if rng.random() < 0.3:
            constraint["nodeTaintsPolicy"] = rng.choice(("Honor", "Ignore"))
        if rng.random() < 0.15:
            constraint["matchLabelKeys"] = ["version"]
        constraints.append(constraint)
    return constraints
