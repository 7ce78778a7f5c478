"""The content of ControllerRevisions."""

import msgspec

from batholith.local.workloads.revisions import template_data


def test_the_keys_of_a_revision_are_sorted_as_in_kubernetes() -> None:
    template = {"spec": {"volumes": [{"name": "v", "emptyDir": {}}], "containers": []}, "a": 1}
    assert msgspec.json.encode(template_data(template)) == (
        b'{"spec":{"template":{"$patch":"replace","a":1,"spec":'
        b'{"containers":[],"volumes":[{"emptyDir":{},"name":"v"}]}}}}'
    )
