"""Tests that run kopf in the process."""

import gc
from collections.abc import Iterator

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"))


@pytest.fixture(autouse=True)
def collected_connections() -> Iterator[None]:
    """Collect the connections of kopf in the test that has opened them.

    It does not wait until those with TLS are closed, and the garbage collector would report them in
    another test.
    """
    yield
    gc.collect()
