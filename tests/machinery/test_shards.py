"""The shard of a key: Volcano's hash, the same in every process."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batholith.machinery.shards import fnv1, shard_of


@pytest.mark.parametrize(
    ("key", "value", "of_three", "of_five"),
    [
        ("", 2166136261, 1, 1),
        ("a", 84696446, 2, 1),
        ("foobar", 837857890, 1, 0),
        ("default/job-1", 77750130, 0, 0),
        ("default/job-2", 77750129, 2, 4),
        ("test/job1", 1265497262, 2, 2),
        ("ns1/tf-train", 2394053051, 2, 1),
        ("volcano-system/mpi", 560765436, 0, 1),
    ],
)
def test_known_values(key: str, value: int, of_three: int, of_five: int) -> None:
    assert fnv1(key) == value
    assert shard_of(key, 3) == of_three
    assert shard_of(key, 5) == of_five


def test_hash_is_not_the_1a_variant() -> None:
    assert fnv1("foobar") != 0xBF9CF968


@given(key=st.text(), shards=st.integers(1, 64))
def test_inv_sh_3_index_is_pure_and_in_range(key: str, shards: int) -> None:
    assert 0 <= shard_of(key, shards) < shards
    assert shard_of(key, shards) == shard_of(str(key), shards)


@pytest.mark.process
def test_inv_sh_3_another_process_with_another_hash_seed_agrees() -> None:
    program = "from batholith.machinery.shards import fnv1; print(fnv1('ns/job-ü'))"
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONHASHSEED": "77", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(run.stdout) == fnv1("ns/job-ü")


@pytest.mark.parametrize("shards", [2, 3, 5, 8])
def test_inv_sh_4_keys_spread_evenly(shards: int) -> None:
    """INV-SH-4: chi-squared, with a bound that 8 shards would pass by chance once in 10^5."""
    keys = [f"team-{number % 17}/train-{number}" for number in range(20_000)]
    counts = [0] * shards
    for key in keys:
        counts[shard_of(key, shards)] += 1
    mean = len(keys) / shards
    assert sum((count - mean) ** 2 / mean for count in counts) < 40
