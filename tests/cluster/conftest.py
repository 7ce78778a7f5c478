"""Every test here runs several components together."""

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker("cluster")
