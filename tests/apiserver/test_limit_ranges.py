"""LimitRanges, on both servers."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.api_servers import ServerFactory
from support.embedded_apiserver import PODS, RawResponse, Server, pod
from support.polling import wait_until_equal, wait_until_true

Json = dict[str, Any]
RANGES = "/api/v1/namespaces/default/limitranges"
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
MARK = "kubernetes.io/limit-ranger"


@pytest.fixture
async def server(servers: ServerFactory, tmp_path: Path) -> AsyncIterator[Server]:
    async with servers.start(tmp_path) as started:
        yield started
        await started.request("DELETE", RANGES)

        async def is_unlimited() -> bool:
            created = await started.request("POST", f"{PODS}?dryRun=All", pod("probe"))
            return created.status == 201 and not created.body["metadata"].get("annotations")

        await wait_until_true(is_unlimited)  # a real server reads them from a cache


async def limit(server: Server, *limits: Json) -> None:
    """Create a LimitRange, and wait until it has an effect on pods without resources."""
    body = {"metadata": {"name": "limits"}, "spec": {"limits": list(limits)}}
    await server.create(RANGES, body)

    async def has_effect() -> bool:
        created = await server.request("POST", f"{PODS}?dryRun=All", pod("probe"))
        return created.status == 403 or MARK in created.body["metadata"].get("annotations", {})

    await wait_until_true(has_effect)


def container(name: str = "main", **resources: Json) -> Json:
    return {"name": name, "image": "busybox:1", "resources": resources}


def asking(*containers: Json, **spec: Any) -> Json:
    return pod("p", containers=list(containers), **spec)


async def create(server: Server, body: Json) -> RawResponse:
    return await server.request("POST", f"{PODS}?dryRun=All", body)


async def test_containers_get_defaults(server: Server) -> None:
    await limit(
        server,
        {
            "type": "Container", "default": {"cpu": "1", "memory": "1Gi"},
            "defaultRequest": {"cpu": "500m"},
        },
    )  # fmt: skip
    body = asking(
        container(),
        container("other", requests={"cpu": "100m"}, limits={"memory": "2Gi"}),
        initContainers=[container("first", limits={"cpu": "2"})],
    )
    created = await server.create(PODS, body)
    assert created["metadata"]["annotations"][MARK] == (
        "LimitRanger plugin set: cpu, memory request for container main; cpu, memory limit for "
        "container main; cpu limit for container other; memory request for init container first; "
        "memory limit for init container first"
    )
    spec = created["spec"]
    assert [each["resources"] for each in (*spec["containers"], *spec["initContainers"])] == [
        {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m", "memory": "1Gi"}},
        {"limits": {"cpu": "1", "memory": "2Gi"}, "requests": {"cpu": "100m", "memory": "2Gi"}},
        {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "2", "memory": "1Gi"}},
    ]
    assert created["status"]["qosClass"] == "Burstable"


CONTAINERS: tuple[tuple[Json, Json, str], ...] = (
    ({"min": {"cpu": "1"}}, {"limits": {"cpu": "2"}, "requests": {"cpu": "500m"}},
     "minimum cpu usage per Container is 1, but request is 500m"),
    ({"min": {"memory": "1Gi"}}, {"limits": {"memory": "512Mi"}},
     "minimum memory usage per Container is 1Gi, but request is 512Mi"),
    ({"max": {"cpu": "1"}}, {"limits": {"cpu": "1500m"}},
     "maximum cpu usage per Container is 1, but limit is 1500m"),
    ({"max": {"cpu": "2"}}, {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}, ""),
    ({"maxLimitRequestRatio": {"cpu": "2"}}, {"requests": {"cpu": "1"}, "limits": {"cpu": "3"}},
     "cpu max limit to request ratio per Container is 2, but provided ratio is 3.000000"),
    ({"maxLimitRequestRatio": {"cpu": "2"}}, {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}},
     ""),
    ({"maxLimitRequestRatio": {"memory": "2"}}, {"requests": {"cpu": "1"}},
     "memory max limit to request ratio per Container is 2, but no request is specified or "
     "request is 0"),
)  # fmt: skip
PODS_LIMITED: tuple[tuple[Json, list[Json], str], ...] = (
    ({"max": {"cpu": "2"}}, [{"limits": {"cpu": "1"}}, {"limits": {"cpu": "1500m"}}],
     "maximum cpu usage per Pod is 2, but limit is 2500m"),
    ({"max": {"cpu": "3"}}, [{"limits": {"cpu": "1"}}, {"limits": {"cpu": "1500m"}}], ""),
    ({"min": {"memory": "1Gi"}}, [{"requests": {"memory": "512Mi"}}],
     "minimum memory usage per Pod is 1Gi, but request is 512Mi"),
    ({"max": {"memory": "1Gi"}}, [{"requests": {"memory": "512Mi"}}],
     "maximum memory usage per Pod is 1Gi.  No limit is specified"),
)  # fmt: skip


async def test_containers_and_pods_must_be_within_the_limits(server: Server) -> None:
    examples = [("Container", limits, [resources], text) for limits, resources, text in CONTAINERS]
    examples += [("Pod", *each) for each in PODS_LIMITED]
    for kind, limits, resources, text in examples:
        await server.create(
            RANGES,
            {"metadata": {"name": "limits"}, "spec": {"limits": [{"type": kind, **limits}]}},
        )
        containers = [container(f"c{n}", **each) for n, each in enumerate(resources)]

        async def message(containers: list[Json] = containers) -> str:
            response = await create(server, asking(*containers))
            return "" if response.status == 201 else str(response.body["message"])

        expected = f'pods "p" is forbidden: {text}' if text else ""
        await wait_until_equal(message, expected)
        await server.request("DELETE", f"{RANGES}/limits")
        await wait_until_equal(message, "")


async def test_several_errors_are_reported_together(server: Server) -> None:
    await limit(server, {"type": "Container", "max": {"cpu": "1"}, "min": {"memory": "1Gi"}})
    limits = {"cpu": "2", "memory": "1Mi"}
    response = await create(server, asking(container(limits=limits)))
    assert (response.status, response.body["reason"]) == (403, "Forbidden")
    assert sorted(response.body["message"].partition("[")[2].rstrip("]").split(", m")) == [
        "aximum cpu usage per Container is 1, but limit is 2",
        "minimum memory usage per Container is 1Gi, but request is 1Mi",
    ]


async def test_claims_must_be_within_the_limits(server: Server) -> None:
    storage = {"min": {"storage": "1Gi"}, "max": {"storage": "2Gi"}}
    await limit(
        server,
        {"type": "PersistentVolumeClaim", **storage},
        {"type": "Container", "default": {"cpu": "1"}},
    )
    for amount, text in (
        ("512Mi", "minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 512Mi"),
        ("1Gi", ""),
        ("3Gi", "maximum storage usage per PersistentVolumeClaim is 2Gi, but request is 3Gi"),
    ):
        spec = {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": amount}},
        }  # fmt: skip
        body = {"metadata": {"name": "c"}, "spec": spec}
        response = await server.request("POST", f"{CLAIMS}?dryRun=All", body)
        expected = f'persistentvolumeclaims "c" is forbidden: {text}' if text else None
        assert response.body.get("message") == expected


WRONG: dict[str, list[Json]] = {
    "orders": [
        {
            "type": "Container", "min": {"cpu": "2"}, "max": {"cpu": "1"},
            "default": {"cpu": "3"}, "defaultRequest": {"cpu": "4"},
        }
    ],
    "twice": [{"type": "Container"}, {"type": "Container"}],
    "pod": [{"type": "Pod", "default": {"cpu": "1"}, "defaultRequest": {"cpu": "1"}}],
    "claim": [{"type": "PersistentVolumeClaim", "max": {"cpu": "1"}}],
    "ratio": [{"type": "Container", "maxLimitRequestRatio": {"cpu": "500m"}}],
    "impossible ratio": [
        {
            "type": "Container", "min": {"memory": "1Gi"}, "max": {"memory": "2Gi"},
            "maxLimitRequestRatio": {"memory": "3"},
        }
    ],
    "no overcommitment": [
        {"type": "Container", "default": {"a.b/gpu": "2"}, "defaultRequest": {"a.b/gpu": "1"}}
    ],
}  # fmt: skip
ERRORS: dict[str, list[str]] = {
    "orders": [
        "spec.limits[0].default[cpu]: default value 3 is greater than max value 1",
        "spec.limits[0].defaultRequest[cpu]: default request value 4 is greater than default limit "
        "value 3",
        "spec.limits[0].defaultRequest[cpu]: default request value 4 is greater than max value 1",
        "spec.limits[0].min[cpu]: min value 2 is greater than max value 1",
    ],
    "twice": ['spec.limits[1].type: Duplicate value: "Container"'],
    "pod": [
        "spec.limits[0].default: Forbidden: may not be specified when `type` is 'Pod'",
        "spec.limits[0].defaultRequest: Forbidden: may not be specified when `type` is 'Pod'",
    ],
    "claim": [
        "spec.limits[0].limits: Required value: either minimum or maximum storage value is "
        "required, but neither was provided"
    ],
    "ratio": ["spec.limits[0].maxLimitRequestRatio[cpu]: ratio 500m is less than 1"],
    "impossible ratio": [
        "spec.limits[0].maxLimitRequestRatio[memory]: ratio 3 is greater than max/min = 2.000000"
    ],
    "no overcommitment": [
        "spec.limits[0].defaultRequest[a.b/gpu]: default value 2 must equal to defaultRequest "
        "value 1 in a.b/gpu"
    ],
}


async def test_wrong_limit_ranges_are_rejected(server: Server) -> None:
    found = {}
    for example, limits in WRONG.items():
        body = {"metadata": {"name": "limits"}, "spec": {"limits": limits}}
        response = await server.request("POST", f"{RANGES}?dryRun=All", body)
        assert response.status == 422, (example, response.body)
        causes = response.body["details"]["causes"]
        found[example] = {f"{each['field']}: {_without_value(each)}" for each in causes}
    assert found == {example: set(errors) for example, errors in ERRORS.items()}


def _without_value(cause: Json) -> str:
    """The message without the invalid value, whose form differs."""
    message = str(cause["message"])
    return message.partition('": ')[2] if message.startswith("Invalid value") else message
