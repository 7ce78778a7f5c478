"""A pod is scheduled once the PVCs that it mounts are bound."""

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


def pvc(
    name: str, phase: str = "Bound", *, volume: str = "v", owner: str = ""
) -> PersistentVolumeClaim:
    owners = (OwnerReference(api_version="v1", kind="Pod", name="p", uid=owner),) if owner else ()
    meta = ObjectMeta(name=name, namespace="ns", uid=f"pvc-{name}", owner_references=owners)
    return PersistentVolumeClaim(
        meta, PersistentVolumeClaimSpec(volume), PersistentVolumeClaimStatus(phase)
    )


def with_volumes(pod: Pod, *volumes: Volume) -> Pod:
    spec = msgspec.structs.replace(pod.spec, volumes=volumes)
    return msgspec.structs.replace(pod, spec=spec)


def pvc_volume(claim_name: str) -> Volume:
    return Volume(
        name="d", persistent_volume_claim=PersistentVolumeClaimVolumeSource(claim_name=claim_name)
    )


def test_gang_is_scheduled_once_its_pvc_is_bound() -> None:
    world = SchedulerWorld()
    members = (with_volumes(pod(f"g-{i}", "g"), pvc_volume("c")) for i in range(2))
    world.upsert(node("a"), podgroup("g", 3), pod("g-2", "g"), *members)
    assert world.schedule() == {}
    assert world.fit_message("g") == 'persistentvolumeclaim "c" not found'
    pending = pvc("c", "Pending", volume="")
    world.cluster.update_pvc(None, pending)
    assert world.cluster.has_changes()
    assert world.schedule() == {}
    expected = 'spec.volumes[0].persistentVolumeClaim: persistentvolumeclaim "c" is not bound'
    assert world.fit_message("g") == expected
    world.cluster.update_pvc(pending, pvc("c"))
    assert world.cluster.has_changes()
    assert set(world.schedule()) == {"g-0", "g-1", "g-2"}


@pytest.mark.parametrize("cpu", [0, 1])
def test_pods_with_bound_pvcs_do_not_wait_for_other_pods(cpu: int) -> None:
    world = SchedulerWorld()
    members = (with_volumes(pod(f"g-{i}", "g", cpu=cpu), pvc_volume(f"c{i}")) for i in range(4))
    world.upsert(node("a"), podgroup("g", 2), *members)
    world.cluster.update_pvc(None, pvc("c0"))
    world.cluster.update_pvc(None, pvc("c3"))
    assert set(world.schedule()) == {"g-0", "g-3"}
    assert world.schedule() == {}
    assert 'claim "c1" not found' in world.fit_message("g")
    world.cluster.update_pvc(None, pvc("c2"))
    assert set(world.schedule()) == {"g-2"}


def test_pvc_of_no_gang_triggers_no_cycle() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), podgroup("g", 1), with_volumes(pod("g-0", "g"), pvc_volume("c")))
    world.schedule()
    world.cluster.has_changes()
    world.cluster.update_pvc(None, pvc("other"))
    assert not world.cluster.has_changes()


def test_pvc_of_an_ephemeral_volume_must_be_owned_by_the_pod() -> None:
    world = SchedulerWorld()
    world.upsert(
        node("a"), with_volumes(pod("p", scheduler="default-scheduler"), Volume("d", None, {}))
    )
    assert world.schedule() == {}
    unowned = pvc("p-d")
    world.cluster.update_pvc(None, unowned)
    assert world.schedule() == {}
    (gang,) = world.cluster.gangs.values()
    assert gang.diagnosis is not None
    assert [each.message for each in gang.diagnosis.fit_errors.values()] == [
        'persistentvolumeclaim "p-d" was not created for pod "p"'
    ]
    world.cluster.update_pvc(unowned, pvc("p-d", owner="uid-p"))
    assert set(world.schedule()) == {"p"}


def test_deleted_or_lost_pvc_is_in_the_fit_error() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), podgroup("g", 1), with_volumes(pod("g-0", "g"), pvc_volume("c")))
    lost = pvc("c", "Lost")
    world.cluster.update_pvc(None, lost)
    assert world.schedule() == {}
    assert world.fit_message("g") == 'persistentvolumeclaim "c" has lost its volume "v"'
    world.cluster.update_pvc(lost, None)
    assert world.schedule() == {}
    assert world.fit_message("g") == 'persistentvolumeclaim "c" not found'
