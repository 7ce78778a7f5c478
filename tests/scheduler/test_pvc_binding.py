"""A pod is placed once the claims that it mounts are bound, and not before."""

import msgspec
import pytest
from support.scheduler import SchedulerWorld, node, pod, podgroup

from batholith.model.meta import ObjectMeta, OwnerReference
from batholith.scheduler.state.core_types import (
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeClaimStatus,
    PersistentVolumeClaimVolumeSource,
    Pod,
    Volume,
)


def claim(
    name: str, phase: str = "Bound", *, volume: str = "v", owner: str = ""
) -> PersistentVolumeClaim:
    owners = (OwnerReference(api_version="v1", kind="Pod", name="p", uid=owner),) if owner else ()
    meta = ObjectMeta(name=name, namespace="ns", uid=f"claim-{name}", owner_references=owners)
    return PersistentVolumeClaim(
        meta, PersistentVolumeClaimSpec(volume), PersistentVolumeClaimStatus(phase)
    )


def pod_mounting(made: Pod, *volumes: Volume) -> Pod:
    spec = msgspec.structs.replace(made.spec, volumes=volumes)
    return msgspec.structs.replace(made, spec=spec)


def by_claim_name(claim_name: str) -> Volume:
    return Volume(
        name="d", persistent_volume_claim=PersistentVolumeClaimVolumeSource(claim_name=claim_name)
    )


def test_a_gang_waits_for_a_claim_and_is_placed_as_soon_as_that_is_bound() -> None:
    world = SchedulerWorld()
    members = (pod_mounting(pod(f"g-{i}", "g"), by_claim_name("c")) for i in range(2))
    world.upsert(node("a"), podgroup("g", 3), pod("g-2", "g"), *members)
    assert world.schedule() == {}
    assert world.fit_message("g") == 'persistentvolumeclaim "c" not found'
    pending = claim("c", "Pending", volume="")
    world.cluster.update_pvc(None, pending)
    assert world.cluster.has_changes()
    assert world.schedule() == {}
    assert 'persistentvolumeclaim "c" is not bound' in world.fit_message("g")
    assert "WaitForFirstConsumer" in world.fit_message("g")
    world.cluster.update_pvc(pending, claim("c"))
    assert world.cluster.has_changes()
    assert set(world.schedule()) == {"g-0", "g-1", "g-2"}


@pytest.mark.parametrize("cpu", [0, 1])
def test_pods_whose_claims_are_bound_do_not_wait_for_others(cpu: int) -> None:
    world = SchedulerWorld()
    members = (pod_mounting(pod(f"g-{i}", "g", cpu=cpu), by_claim_name(f"c{i}")) for i in range(4))
    world.upsert(node("a"), podgroup("g", 2), *members)
    world.cluster.update_pvc(None, claim("c0"))
    world.cluster.update_pvc(None, claim("c3"))
    assert set(world.schedule()) == {"g-0", "g-3"}
    assert world.schedule() == {}
    assert 'claim "c1" not found' in world.fit_message("g")
    world.cluster.update_pvc(None, claim("c2"))
    assert set(world.schedule()) == {"g-2"}


def test_a_claim_of_another_gang_wakes_nobody() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), podgroup("g", 1), pod_mounting(pod("g-0", "g"), by_claim_name("c")))
    world.schedule()
    world.cluster.has_changes()
    world.cluster.update_pvc(None, claim("other"))
    assert not world.cluster.has_changes()


def test_the_claim_of_an_ephemeral_volume_must_be_the_pod_s_own() -> None:
    world = SchedulerWorld()
    world.upsert(
        node("a"), pod_mounting(pod("p", scheduler="default-scheduler"), Volume("d", None, {}))
    )
    assert world.schedule() == {}
    strange = claim("p-d")
    world.cluster.update_pvc(None, strange)
    assert world.schedule() == {}
    (gang,) = world.cluster.gangs.values()
    assert gang.diagnosis is not None
    assert [each.message for each in gang.diagnosis.fit_errors.values()] == [
        'persistentvolumeclaim "p-d" was not created for pod "p"'
    ]
    world.cluster.update_pvc(strange, claim("p-d", owner="uid-p"))
    assert set(world.schedule()) == {"p"}


def test_a_claim_that_goes_or_is_lost_is_named() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), podgroup("g", 1), pod_mounting(pod("g-0", "g"), by_claim_name("c")))
    lost = claim("c", "Lost")
    world.cluster.update_pvc(None, lost)
    assert world.schedule() == {}
    assert world.fit_message("g") == 'persistentvolumeclaim "c" has lost its volume "v"'
    world.cluster.update_pvc(lost, None)
    assert world.schedule() == {}
    assert world.fit_message("g") == 'persistentvolumeclaim "c" not found'
