"""Every test here uses a real API server or starts processes."""

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker("process")
