"""Limits of listeners that depend on the process."""

import subprocess
import sys

import pytest

from batholith.httpserver.limits import Limits

PROGRAM = """
import resource, sys
from batholith.httpserver.limits import Limits, raise_open_files
soft, hard = int(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
raise_open_files(300)
print(Limits(connections=300).max_connections, *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [(200, 4096, (300, 401, 4096)), (200, 300, (225, 300, 300)), (1000, 4096, (300, 1000, 4096))],
)
def test_open_files_are_raised_as_far_as_the_process_may(
    soft: int, hard: int, expected: tuple[int, int, int]
) -> None:
    command = [sys.executable, "-c", PROGRAM, str(soft), str(hard)]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    assert tuple(map(int, result.stdout.split())) == expected


def test_another_default_can_be_changed() -> None:
    base = Limits(connections=3000)
    assert Limits.parse("", base=base).connections == 3000
    assert Limits.parse("connections=5", base=base).connections == 5
