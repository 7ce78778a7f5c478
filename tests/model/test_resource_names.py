"""Classification of resource names."""

import pytest

from batholith.model.resource_names import is_counted, is_extended


@pytest.mark.parametrize(
    ("name", "extended", "counted"),
    [
        ("cpu", False, True),
        ("pods", False, True),
        ("hugepages-2Mi", False, True),
        ("attachable-volumes-csi", False, True),
        ("nvidia.com/gpu", True, True),
        ("sub.kubernetes.io/device", False, True),
        ("services", False, False),
        ("count/pods", True, False),
        ("requests.nvidia.com/gpu", True, False),
    ],
)
def test_resource_names_are_classified(name: str, extended: bool, counted: bool) -> None:
    assert (is_extended(name), is_counted(name)) == (extended, counted)
