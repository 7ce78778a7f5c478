"""Tests that run kopf in the process."""

import gc
from collections.abc import Iterator

import pytest

_IGNORED = ("ignore:unclosed:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


def pytest_itemcollected(item: pytest.Item) -> None:
    for each in _IGNORED:
        item.add_marker(pytest.mark.filterwarnings(each))


@pytest.fixture(autouse=True)
def collected_connections() -> Iterator[None]:
    """Collect the connections of kopf in the test that has opened them.

    Its discovery does not close those that are being opened when it is cancelled, and the garbage
    collector would report them in another test.
    """
    yield
    gc.collect()
