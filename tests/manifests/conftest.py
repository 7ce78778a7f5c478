"""Tests here render manifests with kubectl and helm, once for all tests of a worker."""

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker("process")
