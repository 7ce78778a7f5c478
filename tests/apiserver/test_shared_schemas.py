"""Equal nodes of schemas become one object, and so does what is compiled from them."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from batholith.local.apiserver.custom.schema import StructuralSchema
from batholith.local.apiserver.custom.sharing import SharedNodes
from batholith.model import crds

Json = dict[str, Any]

SCALARS = st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.0, 1.0, "", "a"])
NODES = st.dictionaries(
    st.sampled_from("abc"),
    st.recursive(
        SCALARS,
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from("abc"), inner),
        max_leaves=8,
    ),
)


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal with their types and the order of keys."""
    return repr(one) == repr(other)


@given(st.lists(NODES, max_size=6), st.integers(0, 20))
def test_shared_nodes_equal_what_they_were_made_from(schemas: list[Json], limit: int) -> None:
    nodes = SharedNodes(max_nodes=limit)
    shared = [nodes.share(each) for each in schemas]
    assert all(map(same, shared, schemas))


@given(NODES)
def test_equal_nodes_are_one_object(schema: Json) -> None:
    nodes = SharedNodes()
    assert nodes.share(schema) is nodes.share({**schema})


def test_true_one_and_one_point_zero_differ() -> None:
    nodes = SharedNodes()
    shared = [nodes.share({"default": value}) for value in (True, 1, 1.0)]
    assert [type(each["default"]) for each in shared] == [bool, int, float]


def test_a_shared_node_is_compiled_once_and_another_each_time() -> None:
    nodes = SharedNodes()
    node, count = nodes.share({"type": "string"}), 0

    def compile_node(schema: Any) -> int:
        nonlocal count
        count += 1
        return count

    assert [nodes.compiled("a", node, compile_node) for _ in range(2)] == [1, 1]
    assert nodes.compiled("b", node, compile_node) == 2
    assert [nodes.compiled("a", {"type": "string"}, compile_node) for _ in range(2)] == [3, 4]


def test_sharing_begins_anew_above_the_limit() -> None:
    nodes = SharedNodes(max_nodes=2)
    for number in range(20):
        nodes.share({"maximum": number})
        assert len(nodes) <= 3


def test_jobs_of_all_kinds_share_the_pod_template() -> None:
    templates = []
    for definition in crds.load_training():
        (version,) = definition["spec"]["versions"]
        openapi = StructuralSchema(version["schema"]["openAPIV3Schema"]).openapi
        fields = openapi["properties"]["spec"]["properties"]
        (replicas,) = (field for name, field in fields.items() if name.endswith("ReplicaSpecs"))
        templates.append(replicas["additionalProperties"])
    assert len(templates) == 6
    assert all(each is templates[0] for each in templates)
