"""Pod specs that are equal but for names and variables are validated once, with the same result."""

import copy
import tracemalloc
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from batholith.local.apiserver.builtin.known_pod_specs import validate_new_pod_spec
from batholith.local.apiserver.builtin.pod_validation import validate_pod_spec

Json = dict[str, Any]

TOKEN = "kube-api-access-abcde"
VARIABLES: list[Json] = [
    {"name": "A", "value": "1"},
    {"name": "A", "value": "2"},
    {"name": "B"},
    {"name": "a=b", "value": "1"},
    {"value": "1"},
    {"name": "A", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}},
    {"name": "A", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "no"}}},
    {"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
]
NAMES = ("node-1", "node-2", "Node", "-", "a.b", "x" * 64)
VOLUMES = (TOKEN, "kube-api-access-fghij", "kube-api-access-x", "kube-api-access-ABCDE", "data")


def spec_of(volume: str, mount: str, variables: list[Json], names: dict[str, str]) -> Json:
    """A spec as the server defaults it, with the volume of a token."""
    token = {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}
    container = {
        "name": "main",
        "image": "busybox",
        "imagePullPolicy": "Always",
        "terminationMessagePolicy": "File",
        "volumeMounts": [{"name": mount, "mountPath": "/var/run/secrets"}],
    }
    if variables:
        container["env"] = variables
    return {
        "restartPolicy": "Never",
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "volcano",
        "containers": [container],
        "volumes": [
            {"name": "data", "emptyDir": {}},
            {"name": volume, "projected": {"sources": [token], "defaultMode": 420}},
        ],
        **names,
    }


SPECS = st.builds(
    spec_of,
    st.sampled_from(VOLUMES),
    st.sampled_from(VOLUMES),
    st.lists(st.sampled_from(VARIABLES), max_size=3),
    st.dictionaries(st.sampled_from(("hostname", "nodeName", "subdomain")), st.sampled_from(NAMES)),
)


@settings(max_examples=examples(50))
@given(st.lists(SPECS, min_size=5, max_size=30))
def test_errors_do_not_depend_on_earlier_specs(specs: list[Json]) -> None:
    for spec in specs:
        sent = copy.deepcopy(spec)
        assert validate_new_pod_spec(spec) == validate_pod_spec(spec, "spec")
        assert spec == sent


def test_wrong_parts_of_a_known_spec_are_found() -> None:
    valid = spec_of(TOKEN, TOKEN, VARIABLES[:1], {"hostname": "a", "nodeName": "n"})
    assert validate_new_pod_spec(valid) == []
    for wrong, field in (
        (spec_of(TOKEN, TOKEN, VARIABLES[:1], {"hostname": "A", "nodeName": "n"}), "hostname"),
        (spec_of(TOKEN, TOKEN, VARIABLES[:1], {"hostname": "a", "nodeName": "N"}), "nodeName"),
        (spec_of(TOKEN, TOKEN, VARIABLES[3:4], {}), "containers[0].env[0].name"),
        (spec_of(TOKEN, VOLUMES[1], [], {}), "containers[0].volumeMounts[0].name"),
    ):
        assert [error.field for error in validate_new_pod_spec(wrong)] == [f"spec.{field}"]


def test_memory_of_known_specs_is_limited() -> None:
    def validate(count: int, size: int) -> None:
        for number in range(count):
            spec = spec_of(TOKEN, TOKEN, [], {"subdomain": f"s{number}"})
            spec["containers"][0]["command"] = ["x" * size]
            assert validate_new_pod_spec(spec) == []

    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        validate(1000, 7000)
        validate(20, 2**20)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 3 * 2**20
