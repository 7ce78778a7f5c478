"""A Job is read from the wire and keeps what it does not look into."""

import msgspec

from batholith.model.job import Job


def test_a_claim_that_is_to_be_made_is_kept_as_it_was_sent() -> None:
    text = b'{"spec":{"volumes":[{"mountPath":"/a","volumeClaim":{"storageClassName":"fast"}}]}}'
    (volume,) = msgspec.json.decode(text, type=Job).spec.volumes
    assert volume.volume_claim == {"storageClassName": "fast"}
    assert b"fast" in msgspec.json.encode(volume)


def test_a_template_is_kept_as_it_was_sent() -> None:
    text = b'{"spec":{"tasks":[{"name":"t","template":{"spec":{"unknown":[1, 2]}}}]}}'
    (task,) = msgspec.json.decode(text, type=Job).spec.tasks
    assert bytes(task.template) == b'{"spec":{"unknown":[1, 2]}}'
