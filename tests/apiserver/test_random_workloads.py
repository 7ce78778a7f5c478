"""Random workloads and Services are defaulted and validated as by kube-apiserver."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.api_servers import RealServerFactory
from support.conversations import normalised
from support.embedded_apiserver import Server, embedded_server
from support.examples import examples
from support.response_comparison import ResponseComparison

from batholith.model import crds

Json = dict[str, Any]
Strategy = st.SearchStrategy[Any]

_LABELS = st.sampled_from(({"a": "b"}, {"a": "c"}, {"a b": "c"}, {}))
_AMOUNTS = st.sampled_from((-1, 0, 1, "0%", "50%", "101%", "5", "a"))
_COUNTS = st.sampled_from((-1, 0, 1, 600))
_EXPRESSIONS = st.fixed_dictionaries(
    {
        "key": st.sampled_from(("a", "a b")),
        "operator": st.sampled_from(("In", "NotIn", "Exists", "Odd")),
    },
    optional={"values": st.sampled_from((["b"], []))},
)


def _some(fields: Mapping[str, Strategy]) -> Strategy:
    return st.fixed_dictionaries({}, optional=dict(fields))


_TEMPLATE = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries({"labels": _LABELS}),
        "spec": st.fixed_dictionaries(
            {"containers": st.just([{"name": "c", "image": "i"}])},
            optional={
                "restartPolicy": st.sampled_from(("Always", "Never")),
                "activeDeadlineSeconds": st.just(5),
            },
        ),
    }
)
_WORKLOAD: dict[str, Strategy] = {
    "selector": _some(
        {"matchLabels": _LABELS, "matchExpressions": st.lists(_EXPRESSIONS, max_size=1)}
    ),
    "template": _TEMPLATE,
}
_ROLLING = _some({"maxUnavailable": _AMOUNTS, "maxSurge": _AMOUNTS})
_OWN_FIELDS: dict[str, dict[str, Strategy]] = {
    "deployments": {
        "replicas": _COUNTS,
        "minReadySeconds": _COUNTS,
        "progressDeadlineSeconds": _COUNTS,
        "revisionHistoryLimit": _COUNTS,
        "paused": st.booleans(),
        "strategy": _some(
            {
                "type": st.sampled_from(("RollingUpdate", "Recreate", "Odd")),
                "rollingUpdate": _ROLLING,
            }
        ),
    },
    "replicasets": {"replicas": _COUNTS, "minReadySeconds": _COUNTS},
    "daemonsets": {
        "minReadySeconds": _COUNTS,
        "revisionHistoryLimit": _COUNTS,
        "updateStrategy": _some(
            {
                "type": st.sampled_from(("RollingUpdate", "OnDelete", "Odd")),
                "rollingUpdate": _ROLLING,
            }
        ),
    },
    "statefulsets": {
        "replicas": _COUNTS,
        "minReadySeconds": _COUNTS,
        "revisionHistoryLimit": st.sampled_from((0, 5)),
        "serviceName": st.sampled_from(("s", "A", "a.b")),
        "podManagementPolicy": st.sampled_from(("OrderedReady", "Parallel", "Odd")),
        "ordinals": _some({"start": _COUNTS}),
        "persistentVolumeClaimRetentionPolicy": _some(
            {key: st.sampled_from(("Retain", "Delete", "Odd"))
             for key in ("whenDeleted", "whenScaled")}
        ),
        "updateStrategy": _some(
            {
                "type": st.sampled_from(("RollingUpdate", "OnDelete", "Odd")),
                "rollingUpdate": _some({"partition": _COUNTS}),
            }
        ),
    },
}  # fmt: skip
_PORTS = st.lists(
    _some(
        {
            "name": st.sampled_from(("a", "b", "A")),
            "port": st.sampled_from((0, 80, 81, 70000)),
            "protocol": st.sampled_from(("TCP", "UDP", "odd")),
            "targetPort": st.sampled_from((80, 0, 70000, "http", "a--b")),
            "appProtocol": st.sampled_from(("http", "a b")),
        }
    ),
    min_size=1,
    max_size=2,
)
_SERVICE = st.fixed_dictionaries(
    {"ports": _PORTS},
    optional={
        "type": st.sampled_from(("ClusterIP", "NodePort", "LoadBalancer", "ExternalName", "Odd")),
        "clusterIP": st.just("None"),
        "selector": _LABELS,
        "externalName": st.sampled_from(("a.b", "a b", "")),
        "sessionAffinity": st.sampled_from(("None", "ClientIP", "Odd")),
        "sessionAffinityConfig": st.sampled_from(
            [{"clientIP": {"timeoutSeconds": number}} for number in (0, 5, 90000)]
        ),
        "externalTrafficPolicy": st.sampled_from(("Local", "Cluster", "Odd")),
        "internalTrafficPolicy": st.sampled_from(("Local", "Cluster", "Odd")),
        "publishNotReadyAddresses": st.booleans(),
        "trafficDistribution": st.sampled_from(("PreferClose", "Odd")),
        "allocateLoadBalancerNodePorts": st.booleans(),
        "externalIPs": st.sampled_from((["192.0.2.1"], ["127.0.0.1"], ["a"])),
    },
)  # fmt: skip


@st.composite
def _objects(draw: st.DrawFn) -> tuple[str, Json]:
    """Return the path of a resource, and the spec of an object."""
    plural = draw(st.sampled_from((*_OWN_FIELDS, "services")))
    if plural == "services":
        return f"/api/v1/namespaces/default/{plural}", draw(_SERVICE)
    spec = draw(st.fixed_dictionaries(_WORKLOAD, optional=_OWN_FIELDS[plural]))
    return f"/apis/apps/v1/namespaces/default/{plural}", spec


_KNOWN = ("nodePort", "healthCheckNodePort", "clusterIP")
"""What the servers allocate; the embedded one checks no health of nodes."""


async def _differences(theirs: Server, ours: Server, path: str, obj: Json) -> list[str]:
    wanted = await theirs.request("POST", f"{path}?dryRun=All", obj)
    got = await ours.request("POST", f"{path}?dryRun=All", obj)
    if wanted.status != got.status:
        return [f"status {got.status} instead of {wanted.status}: {got.body} {wanted.body}"]
    found = ResponseComparison().differences(normalised(wanted.body), normalised(got.body))
    return [each for each in found if not any(known in each for known in _KNOWN)]


def test_random_workloads_are_defaulted_and_validated_alike(
    real: RealServerFactory, tmp_path: Path
) -> None:
    names = (f"o{number}" for number in count())
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        theirs = runner.run(stack.enter_async_context(real.start(tmp_path)))
        embedded = embedded_server(tmp_path / "embedded", crds=crds.load())
        ours = runner.run(stack.enter_async_context(embedded))

        @settings(max_examples=examples(300))
        @given(_objects())
        def check(drawn: tuple[str, Json]) -> None:
            path, spec = drawn
            obj = {"metadata": {"name": next(names)}, "spec": spec}
            found = runner.run(_differences(theirs, ours, path, obj))
            assert not found, "\n".join((str(drawn), *found))

        try:
            check()
        finally:
            runner.run(stack.aclose())
