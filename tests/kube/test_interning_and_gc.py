"""Interning of cached objects, and garbage collection around large lists."""

import copy
import gc

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from batholith.kube.gc_tuning import freeze_heap, gc_paused
from batholith.kube.informer.interning import MAX_INTERNED_VALUES, Interner
from batholith.model.base import ApiStruct
from batholith.model.meta import ObjectMeta, OwnerReference


class Toleration(ApiStruct, frozen=True):
    key: str = ""
    seconds: int | None = None


class Spec(ApiStruct, frozen=True):
    node_name: str = ""
    tolerations: tuple[Toleration, ...] = ()
    selector: dict[str, str] = {}
    nested: "Spec | None" = None


class Pod(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: Spec = Spec()
    started_at: str = ""
    ready: bool | None = None


TEXTS = st.sampled_from(["a", "b", "1", ""])
SPECS = st.builds(
    Spec,
    node_name=TEXTS,
    tolerations=st.lists(
        st.builds(Toleration, key=TEXTS, seconds=st.sampled_from([None, 0, 1])), max_size=3
    ).map(tuple),
    selector=st.dictionaries(TEXTS, TEXTS, max_size=2),
)
PODS = st.builds(
    Pod,
    metadata=st.builds(ObjectMeta, name=TEXTS, labels=st.dictionaries(TEXTS, TEXTS)),
    spec=SPECS,
    started_at=TEXTS,
    ready=st.sampled_from([None, True, False]),
)


@settings(deadline=None)
@given(pods=st.lists(PODS, max_size=10))
def test_interned_objects_are_equal_to_the_originals(pods: list[Pod]) -> None:
    sharer = Interner(Pod)
    for pod in pods:
        before = copy.deepcopy(pod)
        after = sharer.intern(pod)
        assert after is pod
        assert after == before
        assert msgspec.json.encode(after) == msgspec.json.encode(before)


@settings(deadline=None)
@given(former=PODS, pod=PODS)
def test_values_reused_from_a_previous_object_are_equal(former: Pod, pod: Pod) -> None:
    sharer = Interner(Pod)
    old, before = sharer.intern(former), copy.deepcopy(pod)
    was = _written(old)
    after = sharer.intern(pod, old)
    assert after is pod
    assert after == before
    assert _written(after) == _written(before)
    assert _written(old) == was


def _written(pod: Pod) -> bytes:
    """JSON with sorted labels: equal label sets may differ in order."""
    return msgspec.json.encode(pod, order="deterministic")


def _decoded(number: int) -> Pod:
    owner = OwnerReference(kind="Job", name="train", uid="u")
    pod = Pod(
        metadata=ObjectMeta(
            name=f"p{number}", labels={"app": "training"}, owner_references=(owner,)
        ),
        spec=Spec(node_name="node-1", tolerations=(Toleration(key="gpu", seconds=1),)),
        started_at=f"t{number}",
    )
    return msgspec.json.decode(msgspec.json.encode(pod), type=Pod)


def test_similar_objects_share_strings_and_structs() -> None:
    sharer = Interner(Pod)
    one, two = sharer.intern(_decoded(1)), sharer.intern(_decoded(2))
    assert one.metadata.labels["app"] is two.metadata.labels["app"]
    assert one.metadata.owner_references is two.metadata.owner_references
    assert one.spec.tolerations is two.spec.tolerations
    assert one.spec.node_name is two.spec.node_name


def test_unchanged_fields_are_taken_from_the_previous_object() -> None:
    sharer = Interner(Pod)
    one = sharer.intern(_decoded(1))
    two = sharer.intern(_decoded(1), one)
    assert two.spec is one.spec
    assert two.metadata.labels is one.metadata.labels


def test_unique_values_are_not_interned_and_the_table_is_bounded() -> None:
    sharer = Interner(Pod)
    sharer.intern(_decoded(0))
    size = len(sharer)
    for number in range(100):
        sharer.intern(_decoded(number))
    assert len(sharer) == size
    for number in range(3 * MAX_INTERNED_VALUES):
        sharer.intern(Pod(spec=Spec(node_name=str(number))))
    assert len(sharer) <= MAX_INTERNED_VALUES + 10


def test_gc_stays_disabled_until_the_last_block_ends() -> None:
    with gc_paused():
        with gc_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    with gc_paused():
        assert not gc.isenabled()
    assert not gc.isenabled()
    gc.enable()


def test_frozen_objects_are_not_collected() -> None:
    before = gc.get_threshold()
    gc.unfreeze()  # what was frozen after the collection of the tests
    try:
        gc.set_threshold(700, 10, 10)  # the default, which another test may have changed
        freeze_heap()
        assert gc.get_freeze_count() > 1000
        assert gc.get_threshold() > (700, 10, 10)
    finally:
        gc.set_threshold(*before)
