"""Objects of every kind, generated from the table of types: none causes an internal error."""

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.examples import examples

from batholith.local.apiserver.builtin.kinds import BUILT_IN
from batholith.local.apiserver.kinds import go_types, patches
from batholith.local.apiserver.kinds.info import KindInfo
from batholith.local.apiserver.printing import tables
from batholith.local.apiserver.printing.ages import age
from batholith.model import times

NOW = times.parse("2026-01-01T00:00:00Z")
STRINGS = st.sampled_from(["", "a", "x.io/y", "Always", "In", "A B", "v1", "TCP", "None", "é"])
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "string": STRINGS,
    "bool": st.booleans(),
    "int32": st.integers(-2, 70000),
    "int64": st.integers(-2, 70000),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "bytes": st.sampled_from(["", "YQ=="]),
    "Quantity": st.sampled_from(["0", "1", "500m", "-1", "1Gi", 2]),
    "QuantityValue": st.just("1"),
    "IntOrString": st.sampled_from([0, 1, "25%", "http"]),
    "meta.Time": st.just("2026-01-01T00:00:00Z"),
    "meta.MicroTime": st.just("2026-01-01T00:00:00.000000Z"),
    "meta.Duration": st.just("1s"),
}
DEPTH = 6
VALIDATED_KINDS = {
    "Pod", "Node", "Service", "PersistentVolumeClaim", "Deployment", "StatefulSet", "Job",
    "CronJob", "NetworkPolicy", "RoleBinding", "ValidatingWebhookConfiguration",
    "CustomResourceDefinition",
}  # fmt: skip


def value(type_name: str, depth: int) -> st.SearchStrategy[Any]:
    if type_name in SCALARS:
        return SCALARS[type_name]
    if type_name in go_types.SPECIAL:
        return st.just({})
    if type_name.endswith(".ExtraValue"):
        return st.lists(STRINGS, max_size=1)
    return message(type_name, depth)


def field_value(field: go_types.WireField, depth: int) -> st.SearchStrategy[Any]:
    inner = value(field.type, depth)
    if field.shape == "rep":
        return st.lists(inner, max_size=2)
    if field.shape == "map":
        return st.dictionaries(STRINGS, inner, max_size=2)
    return inner


def message(name: str, depth: int = DEPTH) -> st.SearchStrategy[dict[str, Any]]:
    if depth == 0 or not go_types.json_fields(name):
        return st.just({})

    @st.composite
    def draw_one(draw: st.DrawFn) -> dict[str, Any]:
        fields = go_types.json_fields(name)
        chosen = draw(st.lists(st.sampled_from(sorted(fields)), max_size=4, unique=True))
        # The most important types are below these fields.
        chosen += [key for key in ("spec", "template", "containers") if key in fields]
        return {key: draw(field_value(fields[key], depth - 1)) for key in dict.fromkeys(chosen)}

    return draw_one()


@pytest.mark.parametrize(
    "info",
    [kind for kind in BUILT_IN if kind.resource.kind in VALIDATED_KINDS],
    ids=lambda info: info.resource.kind,
)
def test_every_well_typed_object_gets_a_validation_result(
    info: KindInfo,
) -> None:
    resource = info.resource
    name = go_types.message_name(resource.api_version, resource.kind)

    @settings(
        deadline=None,
        max_examples=examples(2),
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(message(name), message(name))
    def compare(one: dict[str, Any], other: dict[str, Any]) -> None:
        objects = []
        for drawn in (one, other):
            obj = {**drawn, "kind": resource.kind, "metadata": {"name": "a", "uid": "u"}}
            assert info.prepare(obj) == []
            info.before_create(obj)
            again = copy.deepcopy(obj)
            assert info.prepare(again) == []
            assert info.prepare(again) == []
            info.validate(obj)
            objects.append(obj)
        new, old = objects
        merged = patches.strategic_merge(resource, old, patches.merge_patch({}, {"status": {}}))
        assert merged["metadata"] == old["metadata"]
        info.before_update(new, old)
        info.validate(new, old)
        assert len(tables.cells(info, new, NOW)) == len(tables.column_definitions(info))

    compare()


@settings(deadline=None, max_examples=examples(20))
@given(st.datetimes())
def test_every_time_has_an_age(moment: Any) -> None:
    assert age(f"{moment.isoformat(timespec='seconds')}Z", NOW)
