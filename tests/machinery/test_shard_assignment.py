"""Assignment of shards to replicas: balanced, with few changes of the holder."""

from hypothesis import given
from hypothesis import strategies as st

from batholith.machinery.shard_assignment import ShardPlan, plan_shards


def _round(holders: list[str | None], members: list[str]) -> bool:
    """Let each member do what it plans, one after another; return whether any did."""
    changed = False
    for member in members:
        plan = plan_shards(holders, members=members, identity=member)
        for shard in plan.release:
            assert holders[shard] == member
            holders[shard] = None
        for shard in plan.acquire:
            assert holders[shard] is None
            holders[shard] = member
        changed |= plan != ShardPlan()
    return changed


def _spread(holders: list[str | None], members: list[str]) -> int:
    counts = [holders.count(member) for member in members]
    return max(counts) - min(counts)


MEMBERS = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=8, unique=True)


@given(st.integers(1, 40), st.lists(MEMBERS, min_size=1, max_size=6))
def test_members_converge_on_a_balanced_assignment(
    shards: int, memberships: list[list[str]]
) -> None:
    holders: list[str | None] = [None] * shards
    for members in memberships:
        holders = [holder if holder in members else None for holder in holders]  # the dead ones
        for _ in range(2 * shards + 4):
            if not _round(holders, members):
                break
        assert None not in holders
        assert _spread(holders, members) <= 1


@given(st.integers(1, 40), MEMBERS)
def test_a_new_member_takes_its_part_and_no_other_shard_moves(
    shards: int, members: list[str]
) -> None:
    holders: list[str | None] = [None] * shards
    while _round(holders, members):
        pass
    before = list(holders)
    all_members = [*members, "new"]
    while _round(holders, all_members):
        pass
    moved = [new for old, new in zip(before, holders, strict=True) if old != new]
    assert set(moved) <= {"new"}
    assert len(moved) in (shards // len(all_members), -(-shards // len(all_members)))


@given(st.lists(st.one_of(st.none(), st.sampled_from("abcdx")), max_size=30))
def test_members_with_the_same_view_never_acquire_the_same_shard(holders: list[str | None]) -> None:
    """Also while `x`, which is no live member any more, still holds Leases."""
    plans = {each: plan_shards(holders, members="abcd", identity=each) for each in "abcd"}
    acquired = [shard for plan in plans.values() for shard in plan.acquire]
    assert sorted(acquired) == [shard for shard, holder in enumerate(holders) if holder is None]
    for member, plan in plans.items():
        assert all(holders[shard] == member for shard in plan.release)


def test_one_member_holds_everything() -> None:
    assert plan_shards([None, "dead", None], members=[], identity="a") == ShardPlan((0, 2), ())
