"""A decoded Job keeps raw JSON as received."""

import msgspec

from batholith.model.job import Job


def test_volume_claim_is_kept_as_received() -> None:
    text = b'{"spec":{"volumes":[{"mountPath":"/a","volumeClaim":{"storageClassName":"fast"}}]}}'
    (volume,) = msgspec.json.decode(text, type=Job).spec.volumes
    assert volume.volume_claim == {"storageClassName": "fast"}
    assert b"fast" in msgspec.json.encode(volume)


def test_pod_template_is_kept_as_received() -> None:
    text = b'{"spec":{"tasks":[{"name":"t","template":{"spec":{"unknown":[1, 2]}}}]}}'
    (task,) = msgspec.json.decode(text, type=Job).spec.tasks
    assert bytes(task.template) == b'{"spec":{"unknown":[1, 2]}}'
