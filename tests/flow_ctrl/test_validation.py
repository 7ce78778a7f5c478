"""Rules of a JobFlow's spec."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batholith.model.flow import Flow, FlowDependsOn, JobFlowSpec
from batholith.model.flow_validation import graph_error, spec_errors

NAMES = st.sampled_from("abcdefg")
GRAPHS = st.dictionaries(NAMES, st.sets(NAMES, max_size=3), max_size=7)


def flows(graph: dict[str, Any]) -> list[Flow]:
    return [
        Flow(name=name, depends_on=FlowDependsOn(targets=tuple(targets)))
        for name, targets in graph.items()
    ]


def reaches(graph: dict[str, set[str]], start: str) -> set[str]:
    """All flows that *start* depends on, at any depth."""
    found: set[str] = set()
    queue = [*graph[start]]
    while queue:
        name = queue.pop()
        if name not in found:
            found.add(name)
            queue += graph.get(name, ())
    return found


@given(GRAPHS)
def test_a_graph_is_valid_if_all_targets_exist_and_none_depends_on_itself(
    graph: dict[str, set[str]],
) -> None:
    undefined = {target for targets in graph.values() for target in targets} - graph.keys()
    cyclic = {name for name in graph if name in reaches(graph, name)}
    error = graph_error(flows(graph))
    if undefined:
        first = min(undefined)
        assert error.startswith(f"jobflow Flow is not DAG: vertex is not defined: {first}")
    elif cyclic:
        assert error.startswith("jobflow Flow is not DAG: it has a cycle of ")
        named = error.partition(" of ")[2].partition(" and ")[0].split(", ")
        assert named[0] in cyclic or any(name in cyclic for name in named)
    else:
        assert error == ""


def test_quirk_f13_a_large_graph_takes_linear_time() -> None:
    """Twelve layers of a hundred flows have more paths than could be walked."""
    layers = [[f"l{layer}-{number}" for number in range(100)] for layer in range(12)]
    graph = {
        name: layers[index - 1] if index else []
        for index, layer in enumerate(layers)
        for name in layer
    }
    assert graph_error(flows(graph)) == ""
    graph[layers[0][0]] = [layers[-1][0]]
    assert "cycle" in graph_error(flows(graph))


def spec(*entries: dict[str, Any], **fields: Any) -> JobFlowSpec:
    return msgspec.convert({"flows": list(entries), **fields}, JobFlowSpec)


def probed(**probe: Any) -> JobFlowSpec:
    depends_on = {"targets": ["a"], "probe": probe}
    return spec({"name": "a"}, {"name": "b", "dependsOn": depends_on})


PATH = "spec.flows[1].dependsOn.probe"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (spec({"name": "a", "dependsOn": {"targets": ["a"]}}), "is not DAG: it has a cycle of a"),
        (spec(jobRetainPolicy="keep"), 'spec.jobRetainPolicy: unsupported value "keep"'),
        (
            spec({"name": "a", "dependsOn": {"probe": {"tcpSocketList": [{"port": 1}]}}}),
            "spec.flows[0].dependsOn.probe: has no effect without targets",
        ),
        (probed(tcpSocketList=[{"port": 0}]), f"{PATH}.tcpSocketList[0].port: invalid value 0"),
        (probed(httpGetList=[{"path": "/"}]), f"{PATH}.httpGetList[0].port: invalid value 0"),
        (
            probed(httpGetList=[{"port": 1, "path": "/ HTTP/1.1\r\nX: y"}]),
            f"{PATH}.httpGetList[0].path",
        ),
        (
            probed(httpGetList=[{"port": 1, "httpHeader": {"name": "a:b", "value": ""}}]),
            f"{PATH}.httpGetList[0].httpHeader.name",
        ),
        (
            probed(httpGetList=[{"port": 1, "httpHeader": {"name": "Connection", "value": "x"}}]),
            f"{PATH}.httpGetList[0].httpHeader.name",
        ),
        (
            probed(httpGetList=[{"port": 1, "httpHeader": {"name": "A", "value": "b\r\nC: d"}}]),
            f"{PATH}.httpGetList[0].httpHeader.value",
        ),
        (
            probed(taskStatusList=[{"phase": "Done"}]),
            f'{PATH}.taskStatusList[0].phase: unsupported value "Done"',
        ),
    ],
)
def test_invalid_specs_are_named(given: JobFlowSpec, expected: str) -> None:
    assert expected in "; ".join(spec_errors(given))


@pytest.mark.parametrize(
    "given",
    [
        spec(),
        spec({"name": "a"}, jobRetainPolicy="delete"),
        spec({"name": "a"}, {"name": "a"}),
        probed(httpGetList=[{"port": 80}], taskStatusList=[{"phase": "Completed"}]),
        probed(httpGetList=[{"port": 1, "httpHeader": {"name": "Host", "value": "a b"}}]),
    ],
)
def test_valid_specs_have_no_errors(given: JobFlowSpec) -> None:
    assert spec_errors(given) == []
