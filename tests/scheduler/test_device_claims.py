"""Claims of devices (``resource.k8s.io``): which node a pod gets, and which devices."""

import json
from typing import Any

import msgspec
import pytest
from support.preemption import EvictingWorld, conf
from support.scheduler import SchedulerWorld, node, pod, podgroup, queue
from support.scheduler_terms import labelled

from batholith.scheduler.framework.decision import Decision
from batholith.scheduler.state.cache.events import (
    DeviceClassEvent,
    DeviceTaintRuleEvent,
    PlacementForgotten,
    ResourceClaimEvent,
    ResourceSliceEvent,
)
from batholith.scheduler.state.core_types import Pod
from batholith.scheduler.state.devices import allocator, available_devices
from batholith.scheduler.state.devices.types import (
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceSlice,
)

Json = dict[str, Any]
DRIVER = "gpu.example.com"


def gpu(name: str, model: str = "small", **fields: Any) -> Json:
    attributes = {"model": {"string": model}, **fields.pop("attributes", {})}
    return {"name": name, "attributes": attributes, **fields}


def device_slice(
    host: str, *devices: Json, name: str = "", count: int = 1, generation: int = 1, **spec: Any
) -> ResourceSlice:
    pool = {"name": spec.pop("pool", host), "generation": generation, "resourceSliceCount": count}
    location = {} if spec.keys() & {"allNodes", "nodeSelector", "perDeviceNodeSelection"} else {
        "nodeName": host
    }  # fmt: skip
    body = {"driver": DRIVER, "pool": pool, "devices": list(devices), **location, **spec}
    return msgspec.convert({"metadata": {"name": name or host}, "spec": body}, ResourceSlice)


def device_class(*selectors: str, name: str = "gpu", **spec: Any) -> DeviceClass:
    cel = [{"cel": {"expression": each}} for each in selectors]
    body = {"metadata": {"name": name}, "spec": {"selectors": cel, **spec}}
    return msgspec.convert(body, DeviceClass)


def request(name: str = "r", **fields: Any) -> Json:
    selectors = [{"cel": {"expression": each}} for each in fields.pop("selectors", ())]
    exactly = {"deviceClassName": "gpu", "count": 1, "selectors": selectors, **fields}
    if exactly.get("allocationMode") == "All":
        del exactly["count"]
    return {"name": name, "exactly": exactly}


def claim(
    name: str,
    *requests: Json,
    owner: str = "",
    allocation: Json | None = None,
    reserved_for: tuple[str, ...] = (),
    **devices: Any,
) -> ResourceClaim:
    metadata: Json = {"name": name, "namespace": "ns", "uid": f"claim-{name}"}
    if owner:
        reference = {"apiVersion": "v1", "kind": "Pod", "uid": owner, "controller": True}
        metadata["ownerReferences"] = [reference]
    if allocation:
        metadata["finalizers"] = ["resource.kubernetes.io/delete-protection"]
    consumers = [{"resource": "pods", "name": each, "uid": each} for each in reserved_for]
    body = {
        "metadata": metadata,
        "spec": {"devices": {"requests": list(requests or [request()]), **devices}},
        "status": {"allocation": allocation, "reservedFor": consumers},
    }
    return msgspec.convert(body, ResourceClaim)


def allocated(host: str, *devices: str, **fields: Any) -> Json:
    results = [
        {"request": "r", "driver": DRIVER, "pool": host, "device": each, **fields}
        for each in devices
    ]
    field = {"key": "metadata.name", "operator": "In", "values": [host]}
    selector = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {"devices": {"results": results}, "nodeSelector": selector}


def using(base: Pod, *claims: str, **fields: Any) -> Pod:
    named = [{"name": f"n{i}", "resourceClaimName": each} for i, each in enumerate(claims)]
    return labelled(base, spec={"resourceClaims": named, **fields})


def results(decision: Decision) -> dict[str, tuple[str, list[str]]]:
    """Node and devices of each claim that is allocated."""
    return {
        each.claim.metadata.name: (
            placement.node,
            [found["device"] for found in each.allocation["devices"]["results"]],
        )
        for placement in decision.placements
        for each in placement.devices
        if each.allocation is not None
    }


def add(world: SchedulerWorld, *objects: ResourceClaim | ResourceSlice | DeviceClass) -> None:
    for each in objects:
        if isinstance(each, ResourceSlice):
            world.cluster.apply(ResourceSliceEvent(None, each))
        elif isinstance(each, DeviceClass):
            world.cluster.apply(DeviceClassEvent(None, each))
        else:
            world.cluster.apply(ResourceClaimEvent(None, each))


def device_world(*slices: ResourceSlice, hosts: str = "abc") -> SchedulerWorld:
    world = SchedulerWorld()
    add(world, device_class(f'device.driver == "{DRIVER}"'), *slices)
    world.upsert(*(node(host, cpu=4, labels={"zone": f"z{host}"}) for host in hosts))
    return world


def allocate_for(world: SchedulerWorld, *claims: ResourceClaim) -> dict[str, tuple[str, list[str]]]:
    """What one pod with *claims* gets."""
    add(world, *claims)
    names = [each.metadata.name for each in claims]
    world.upsert(podgroup("g", 1), using(pod("g-0", "g"), *names))
    return results(world.decision())


def test_a_pod_goes_where_a_device_matches() -> None:
    world = device_world(
        device_slice("a", gpu("a0")), device_slice("b", gpu("b0"), gpu("b1", "large"))
    )
    large = request(selectors=[f'device.attributes["{DRIVER}"].model == "large"'])
    assert allocate_for(world, claim("c", large)) == {"c": ("b", ["b1"])}
    world.validate()


def test_the_pods_of_a_gang_never_get_one_device_twice() -> None:
    slices = [device_slice(host, gpu(f"{host}0"), gpu(f"{host}1")) for host in "ab"]
    world = device_world(*slices)
    add(world, *(claim(f"c{i}") for i in range(5)))
    world.upsert(podgroup("g", 5), *(using(pod(f"g-{i}", "g"), f"c{i}") for i in range(5)))
    assert world.schedule() == {}
    message = world.fit_message("g")
    assert "cannot allocate all claims" in message
    add(world, device_slice("c", gpu("c0")))
    assert world.cluster.has_changes()
    assert len({task.eq_class for task in world.cluster.gangs["ns/g"].tasks.values()}) == 1
    found = results(world.decision())
    assert sorted(device for _, (device,) in found.values()) == ["a0", "a1", "b0", "b1", "c0"]
    assert all(device[0] == host for host, (device,) in found.values())


def test_devices_of_an_allocated_claim_are_in_use_until_it_is_not() -> None:
    world = device_world(device_slice("a", gpu("a0")))
    other = claim("other", allocation=allocated("a", "a0"))
    add(world, other)
    assert allocate_for(world, claim("c")) == {}
    world.cluster.apply(ResourceClaimEvent(other, claim("other")))
    assert world.cluster.has_changes()
    assert results(world.decision()) == {"c": ("a", ["a0"])}


def test_an_allocated_claim_ties_its_pod_to_the_node_and_is_reserved_for_it() -> None:
    world = device_world(device_slice("b", gpu("b0")))
    add(world, claim("c", allocation=allocated("b", "b0")))
    world.upsert(podgroup("g", 1), using(pod("g-0", "g"), "c"))
    decision = world.decision()
    (placement,) = decision.placements
    assert placement.node == "b"
    assert [each.allocation for each in placement.devices] == [None]


def test_a_pod_whose_claim_is_on_a_full_node_names_that_node() -> None:
    world = device_world(device_slice("b", gpu("b0")))
    add(world, claim("c", allocation=allocated("b", "b0")))
    world.upsert(pod("old", node_name="b", phase="Running", cpu=4))
    world.upsert(podgroup("g", 1), using(pod("g-0", "g"), "c"))
    assert world.schedule() == {}
    assert "2 resourceclaim not available on the node" in world.fit_message("g")


def test_all_devices_that_match_are_allocated_or_none() -> None:
    world = device_world(device_slice("a", gpu("a0"), gpu("a1")), device_slice("b", gpu("b0")))
    add(world, claim("other", allocation=allocated("a", "a1")))
    assert allocate_for(world, claim("c", request(allocationMode="All"))) == {"c": ("b", ["b0"])}


def test_all_devices_of_a_node_without_any_do_not_suffice() -> None:
    world = device_world()
    assert allocate_for(world, claim("c", request(allocationMode="All"))) == {}


def test_the_first_sub_request_that_can_be_satisfied_counts() -> None:
    world = device_world(device_slice("a", gpu("a0"), gpu("a1")))
    subs = [
        {**request("large", selectors=[f'device.attributes["{DRIVER}"].model == "large"'])},
        {**request("two", count=2)},
    ]
    choices = [{"name": each["name"], **each["exactly"]} for each in subs]
    wanted = {"name": "r", "firstAvailable": choices}
    config = [
        {"requests": ["r/two"], "opaque": {"driver": DRIVER, "parameters": {"share": True}}},
        {"requests": ["r/large"], "opaque": {"driver": DRIVER, "parameters": {}}},
    ]
    add(world, claim("c", wanted, config=config))
    world.upsert(podgroup("g", 1), using(pod("g-0", "g"), "c"))
    (placement,) = world.decision().placements
    (binding,) = placement.devices
    assert binding.allocation is not None
    found = binding.allocation["devices"]
    assert [each["request"] for each in found["results"]] == ["r/two", "r/two"]
    assert [each["opaque"]["parameters"] for each in found["config"]] == [{"share": True}]


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        ({"matchAttribute": f"{DRIVER}/numa"}, ["a1", "a2"]),
        ({"distinctAttribute": f"{DRIVER}/numa"}, ["a0", "a1"]),
        ({"matchAttribute": f"{DRIVER}/missing"}, None),
        ({"matchAttribute": f"{DRIVER}/missing", "requests": ["other"]}, ["a0", "a1"]),
    ],
    ids=str,
)
def test_devices_have_equal_or_different_attributes(
    constraint: Json, expected: list[str] | None
) -> None:
    numa = [gpu(f"a{i}", attributes={"numa": {"int": int(i > 0)}}) for i in range(3)]
    world = device_world(device_slice("a", *numa))
    requests = [request("r", count=2)]
    if "requests" in constraint:
        constraint = {**constraint, "requests": ["unused"]}
    found = allocate_for(world, claim("c", *requests, constraints=[constraint]))
    assert found == ({"c": ("a", expected)} if expected else {})


def test_a_shared_claim_takes_all_of_its_pods_to_one_node() -> None:
    world = device_world(*(device_slice(host, gpu(f"{host}0")) for host in "abc"))
    add(world, claim("c"))
    world.upsert(podgroup("g", 3), *(using(pod(f"g-{i}", "g"), "c") for i in range(3)))
    decision = world.decision()
    assert len({each.node for each in decision.placements}) == 1
    contents = [each.devices[0].allocation for each in decision.placements]
    assert contents[0] is not None
    assert all(each == contents[0] for each in contents)
    add(world, claim("d"))
    world.upsert(podgroup("h", 1), using(pod("h-0", "h"), "d"))
    assert results(world.decision())["d"][1] != results(decision)["c"][1]


def test_admin_access_gets_devices_that_are_in_use() -> None:
    world = device_world(device_slice("a", gpu("a0")))
    add(world, claim("other", allocation=allocated("a", "a0")))
    admin = claim("c", request(adminAccess=True))
    assert allocate_for(world, admin) == {"c": ("a", ["a0"])}
    # It does not keep them from others, either.
    freed = claim("other")
    world.cluster.apply(ResourceClaimEvent(claim("other", allocation=allocated("a", "a0")), freed))
    world.upsert(podgroup("h", 1), using(pod("h-0", "h"), "other"))
    assert results(world.decision()) == {"other": ("a", ["a0"])}


def test_devices_of_all_nodes_or_of_selected_ones_are_allocated_once() -> None:
    selector = {
        "nodeSelectorTerms": [
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["zb", "zc"]}]}
        ]
    }
    world = device_world(device_slice("net", gpu("n0"), nodeSelector=selector))
    add(world, claim("c"), claim("d"))
    world.upsert(podgroup("g", 1), using(pod("g-0", "g"), "c"))
    world.upsert(podgroup("h", 1), using(pod("h-0", "h"), "d"))
    decision = world.decision()
    (placement,) = decision.placements
    assert placement.node in ("b", "c")
    (binding,) = placement.devices
    assert binding.allocation is not None
    assert json.loads(json.dumps(binding.allocation["nodeSelector"])) == selector
    everywhere = device_slice("all", gpu("x0"), allNodes=True)
    add(world, everywhere)
    (placement,) = world.decision().placements
    (binding,) = placement.devices
    assert binding.allocation is not None
    assert "nodeSelector" not in binding.allocation


def test_nothing_is_allocated_from_a_pool_that_is_being_updated() -> None:
    world = device_world(device_slice("a", gpu("a0"), count=2))
    assert allocate_for(world, claim("c")) == {}
    add(world, device_slice("a", gpu("a1"), name="second", count=2))
    assert results(world.decision()) == {"c": ("a", ["a0"])}


def test_slices_of_an_older_generation_are_ignored() -> None:
    world = device_world(
        device_slice("a", gpu("old"), generation=1),
        device_slice("a", gpu("new"), name="later", generation=2),
    )
    assert allocate_for(world, claim("c")) == {"c": ("a", ["new"])}


def test_a_tainted_device_needs_a_toleration() -> None:
    taint = {"key": "broken", "value": "yes", "effect": "NoSchedule"}
    world = device_world(device_slice("a", gpu("a0", taints=[taint])))
    assert allocate_for(world, claim("c")) == {}
    tolerant = request(tolerations=[{"key": "broken", "operator": "Exists"}])
    add(world, claim("d", tolerant))
    world.upsert(podgroup("h", 1), using(pod("h-0", "h"), "d"))
    assert results(world.decision()) == {"d": ("a", ["a0"])}


def test_partitions_of_a_device_share_its_counters() -> None:
    def partition(name: str, memory: str) -> Json:
        counters = {"memory": {"value": memory}}
        return gpu(name, consumesCounters=[{"counterSet": "whole", "counters": counters}])

    sizes = {"half": "20Gi", "whole": "40Gi", "other": "20Gi"}
    partitions = [partition(name, size) for name, size in sizes.items()]
    counters = [{"name": "whole", "counters": {"memory": {"value": "40Gi"}}}]
    world = device_world(
        device_slice("a", name="counters", count=2, sharedCounters=counters),
        device_slice("a", *partitions, name="devices", count=2),
    )
    assert allocate_for(world, claim("c", request(count=2))) == {"c": ("a", ["half", "other"])}


def test_what_blocks_a_pod_is_named_with_the_messages_of_kube_scheduler() -> None:
    world = device_world(device_slice("a", gpu("a0")))
    cases = (
        (using(pod("g-0", "g"), "none"), 'resourceclaim.resource.k8s.io "none" not found'),
        (
            labelled(
                pod("g-0", "g"),
                spec={"resourceClaims": [{"name": "n", "resourceClaimTemplateName": "t"}]},
            ),
            'pod "ns/g-0": ResourceClaim not created yet',
        ),
        (using(pod("g-0", "g"), "classless"), "request r: device class none does not exist"),
    )
    add(world, claim("classless", request(deviceClassName="none")))
    world.upsert(podgroup("g", 1))
    for each, text in cases:
        world.upsert(each)
        assert world.schedule() == {}
        assert world.fit_message("g") == text
        world.remove(each)


def test_a_selector_that_fails_at_run_time_is_named() -> None:
    world = device_world(device_slice("a", gpu("a0")))
    wrong = request(selectors=[f'device.attributes["{DRIVER}"].missing == 1'])
    assert allocate_for(world, claim("c", wrong)) == {}
    assert "request r: selector #0: CEL runtime error: no such key: missing" in world.fit_message(
        "g"
    )


def test_a_claim_from_a_template_is_used_once_the_status_of_the_pod_names_it() -> None:
    world = device_world(device_slice("b", gpu("b0")))
    spec = {"resourceClaims": [{"name": "n", "resourceClaimTemplateName": "t"}]}
    before = labelled(pod("g-0", "g"), spec=spec)
    world.upsert(podgroup("g", 1), before)
    assert world.schedule() == {}
    add(world, claim("created", owner=before.metadata.uid))
    body = msgspec.to_builtins(before)
    names = [{"name": "n", "resourceClaimName": "created"}]
    body["status"] = {**body.get("status", {}), "resourceClaimStatuses": names}
    world.upsert(msgspec.convert(body, Pod))
    assert world.cluster.has_changes()
    assert results(world.decision()) == {"created": ("b", ["b0"])}


def test_devices_are_free_again_when_a_placement_is_forgotten() -> None:
    world = device_world(device_slice("b", gpu("b0")))
    assert allocate_for(world, claim("c")) == {"c": ("b", ["b0"])}
    add(world, claim("d"))
    world.upsert(podgroup("h", 1), using(pod("h-0", "h"), "d"))
    assert world.schedule() == {}
    lost = using(pod("g-0", "g"), "c")
    world.cluster.apply(PlacementForgotten(lost.metadata.uid))
    world.remove(lost)
    assert results(world.decision()) == {"d": ("b", ["b0"])}


def test_an_allocation_for_a_pod_without_node_is_stale_and_blocks_it_until_it_is_removed() -> None:
    world = device_world(device_slice("b", gpu("b0")), device_slice("c", gpu("c0")))
    waiting = using(pod("g-0", "g"), "c")
    world.upsert(podgroup("g", 1), waiting)
    left = claim("c", allocation=allocated("b", "b0"), reserved_for=(waiting.metadata.uid,))
    add(world, left)
    tracker = world.cluster.pod_classes.device_claims
    assert [each.metadata.name for each in tracker.stale(world.cluster.task)] == ["c"]
    assert world.schedule() == {}
    assert "is in the process of being deallocated" in world.fit_message("g")
    world.cluster.apply(ResourceClaimEvent(left, claim("c")))
    assert results(world.decision()) == {"c": ("b", ["b0"])}
    assert not [*tracker.stale(world.cluster.task)]


def claiming(world: EvictingWorld, name: str, *claims: str) -> None:
    """Let a pod of the world use claims."""
    before = world.pod_objects[f"uid-{name}"]
    world.upsert(using(before, *claims))


def preemption_world(*names: str) -> EvictingWorld:
    """A node with a device for each running pod of low priority, and a high pod that waits."""
    world = EvictingWorld(conf(gang=False))
    world.upsert(node("a", cpu=80))
    add(world, device_class(f'device.driver == "{DRIVER}"'))
    add(world, device_slice("a", *(gpu(f"a{i}") for i in range(len(names)))))
    for index, name in enumerate(names):
        world.gang(name, 1, minimum=0, nodes=("a",))
        uid = f"uid-{name}-t-0"
        add(world, claim(name, allocation=allocated("a", f"a{index}"), reserved_for=(uid,)))
        claiming(world, f"{name}-t-0", name)
    world.gang("plain", 2, minimum=0, nodes=("a",))
    world.gang("high", 1, priority="high")
    add(world, claim("new"))
    claiming(world, "high-t-0", "new")
    return world


def test_preemption_frees_devices_of_pods_that_have_some() -> None:
    world = preemption_world("one", "two")
    world.run()
    assert len(world.evicted) == 1
    (victim,) = world.evicted
    assert victim in ("one-t-0", "two-t-0")
    # The devices are free once the claim is not allocated any more.
    world.finish_termination()
    assert results(world.run()) == {}
    name = victim.partition("-")[0]
    old = world.cluster.pod_classes.device_claims.claims[f"ns/{name}"]
    world.cluster.apply(ResourceClaimEvent(old, None))
    found = results(world.run())
    assert found == {"new": ("a", ["a0" if name == "one" else "a1"])}


def test_devices_that_become_free_are_held_for_the_gang_that_has_preempted() -> None:
    world = preemption_world("one", "two")
    world.gang("high", 2, priority="high")
    add(world, claim("newer"), claim("quick"))
    claiming(world, "high-t-0", "new")
    claiming(world, "high-t-1", "newer")
    world.run()
    assert sorted(world.evicted) == ["one-t-0", "two-t-0"]
    # Of the two devices that the gang needs, one is free.
    world.finish_termination("one-t-0")
    known = world.cluster.pod_classes.device_claims.claims
    world.cluster.apply(ResourceClaimEvent(known["ns/one"], None))
    # A gang of a queue that has less is tried before.
    world.upsert(queue("idle"))
    world.gang("quick", 1, queue_name="idle", priority="low")
    claiming(world, "quick-t-0", "quick")
    assert results(world.run()) == {}
    world.finish_termination()
    world.cluster.apply(ResourceClaimEvent(known["ns/two"], None))
    assert sorted(results(world.run())) == ["new", "newer"]


def test_no_pod_is_evicted_for_devices_that_it_does_not_free() -> None:
    world = preemption_world("one")
    claims = world.cluster.pod_classes.device_claims
    wrong = request(selectors=[f'device.attributes["{DRIVER}"].model == "large"'])
    world.cluster.apply(ResourceClaimEvent(claims.claims["ns/new"], claim("new", wrong)))
    world.run()
    assert world.evicted == []


def test_a_search_that_times_out_is_not_repeated_on_every_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a pod whose claim nothing fits could occupy the scheduler for minutes."""
    searches: list[object] = []

    def counted(*arguments: Any, **options: Any) -> Any:
        searches.append(arguments)
        return allocator.allocate(*arguments, **options)

    monkeypatch.setattr(available_devices, "allocate", counted)
    hosts = [f"h{index}" for index in range(8)]
    devices = [gpu(f"d{index}") for index in range(8)]
    world = device_world(*(device_slice(host, *devices) for host in hosts), hosts="")
    world.upsert(*(node(host) for host in hosts))
    any_device = [request(f"r{index}") for index in range(7)]
    assert allocate_for(world, claim("c", *any_device, request("none", selectors=["false"]))) == {}
    assert allocator.TIMED_OUT in world.fit_message("g")
    assert len(searches) == available_devices.MAX_TIMEOUTS


SHARED: Json = {"allowMultipleAllocations": True}
STEPS = {"default": "4Gi", "validRange": {"min": "2Gi", "max": "12Gi", "step": "4Gi"}}


@pytest.mark.parametrize(
    ("policy", "requested", "consumed", "fitting"),
    [
        (None, None, "16Gi", 1),
        (None, "3Gi", "3Gi", 5),
        ({"default": "4Gi"}, None, "4Gi", 4),
        ({"default": "4Gi"}, "5Gi", "5Gi", 3),
        (STEPS, "1Gi", "2Gi", 8),
        (STEPS, "3000Mi", "6Gi", 2),
        (STEPS, "11Gi", None, 0),
        (STEPS, "13Gi", None, 0),
        ({"default": "4Gi", "validValues": ["4Gi", "8Gi"]}, "5Gi", "8Gi", 2),
        ({"default": "4Gi", "validValues": ["4Gi", "8Gi"]}, "9Gi", None, 0),
        ({"default": "4Gi", "validRange": {"min": "2Gi"}}, "4500Mi", "4500Mi", 3),
    ],
)
def test_claims_share_a_device_as_far_as_its_capacity_suffices(
    policy: Json | None, requested: str | None, consumed: str | None, fitting: int
) -> None:
    memory = {"value": "16Gi"} | ({"requestPolicy": policy} if policy is not None else {})
    world = device_world(device_slice("a", gpu("d", capacity={"memory": memory}, **SHARED)))
    fields: Json = {"capacity": {"requests": {"memory": requested}}} if requested else {}
    found: list[Json] = []
    for index in range(fitting + 1):
        name = f"g{index}"
        add(world, claim(name, request(**fields)))
        world.upsert(podgroup(name, 1), using(pod(f"{name}-0", name, cpu=0.1), name))
        found += [
            each.allocation["devices"]["results"][0]
            for placement in world.decision().placements
            for each in placement.devices
            if each.allocation is not None
        ]
    assert [each["consumedCapacity"] for each in found] == [{"memory": consumed}] * fitting
    assert len({each["shareID"] for each in found}) == fitting


def test_an_allocated_share_counts_and_a_device_is_shared_within_a_gang() -> None:
    memory = {"memory": {"value": "16Gi"}}
    world = device_world(device_slice("a", gpu("d", capacity=memory, **SHARED)))
    taken = allocated("a", "d", shareID="some", consumedCapacity={"memory": "9Gi"})
    other = claim("other", allocation=taken)
    add(world, other)
    some: Json = {"capacity": {"requests": {"memory": "3Gi"}}}
    two, one = claim("c", request("r", **some), request("s", **some)), claim("d", request(**some))
    assert allocate_for(world, two, one) == {}
    assert "cannot allocate all claims" in world.fit_message("g")
    world.cluster.apply(ResourceClaimEvent(other, claim("other")))
    assert results(world.decision()) == {"c": ("a", ["d", "d"]), "d": ("a", ["d"])}
    world.validate()


def test_devices_with_binding_conditions_are_the_last_choice() -> None:
    conditions: Json = {"bindingConditions": ["Ready"], "bindingFailureConditions": ["Failed"]}
    world = device_world(
        device_slice("a", gpu("d", bindsToNode=True, **conditions), pool="a", allNodes=True),
        device_slice("a", gpu("d"), pool="b", name="b"),
        hosts="a",
    )
    assert allocate_for(world, claim("c"), claim("d")) == {"c": ("a", ["d"]), "d": ("a", ["d"])}
    task = world.cluster.task("uid-g-0")
    assert task is not None
    bindings = world.cluster.pod_classes.device_claims.join(task)
    contents = {each.claim.metadata.name: each.allocation or {} for each in bindings}
    (first,), (second,) = (contents[name]["devices"]["results"] for name in "cd")
    assert first["pool"] == "b" and "bindingConditions" not in first
    assert second == {"request": "r", "driver": DRIVER, "pool": "a", "device": "d", **conditions}
    (term,) = contents["d"]["nodeSelector"]["nodeSelectorTerms"]
    assert term["matchFields"][0]["values"] == ("a",)


def test_a_claim_with_a_field_that_is_not_known_waits_and_names_it() -> None:
    world = device_world(device_slice("a", gpu("d")))
    wanted = request(later=1, allocationMode="Most")
    assert allocate_for(world, claim("c", wanted, spread="wide")) == {}
    fields = (
        "spec.devices.requests[0].exactly.allocationMode: Most",
        "spec.devices.requests[0].exactly.later",
        "spec.devices.spread",
    )
    assert f"claim ns/c: not supported: {', '.join(fields)}" in world.fit_message("g")


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"attributes": {"links": {"strings": ["a", "b"]}}}, "attributes.strings"),
        ({"nodeAllocatableResourceMappings": {"cpu": {}}}, "nodeAllocatableResourceMappings"),
    ],
)
def test_a_device_with_a_field_that_is_not_known_is_not_allocated(fields: Json, name: str) -> None:
    world = device_world(device_slice("a", gpu("odd", **fields), gpu("d")))
    assert allocate_for(world, claim("c")) == {"c": ("a", ["d"])}
    add(world, claim("e"))
    world.upsert(podgroup("h", 1), using(pod("h-0", "h"), "e"))
    assert world.schedule() == {}
    text = f"cannot allocate all claims; devices have fields that are not supported: {name}"
    assert text in world.fit_message("h")


def test_too_many_devices_for_one_pod_are_rejected() -> None:
    """A device that is chosen is one call deeper in the search."""
    world = device_world(device_slice("a", *(gpu(f"d{index}") for index in range(32))), hosts="a")
    watching = request(count=32, adminAccess=True)  # of devices that others have, too
    assert allocate_for(world, *(claim(f"c{index}", watching) for index in range(40))) == {}
    assert "too many devices" in world.fit_message("g")


def test_rules_taint_devices_until_they_are_deleted() -> None:
    world = device_world(device_slice("a", gpu("a0")), device_slice("b", gpu("b0")), hosts="ab")
    taint = {"key": "repair", "value": "now", "effect": "NoExecute"}
    selected = {"driver": DRIVER, "pool": "a"}
    body = {"metadata": {"name": "rule"}, "spec": {"deviceSelector": selected, "taint": taint}}
    rule = msgspec.convert(body, DeviceTaintRule)
    nothing = msgspec.convert(
        {"metadata": {"name": "n"}, "spec": {"taint": taint}}, DeviceTaintRule
    )
    world.cluster.apply(DeviceTaintRuleEvent(None, nothing))
    world.cluster.apply(DeviceTaintRuleEvent(None, rule))
    assert allocate_for(world, claim("c")) == {"c": ("b", ["b0"])}
    add(world, claim("d"))
    world.upsert(podgroup("h", 1), using(pod("h-0", "h"), "d"))
    assert world.schedule() == {}
    world.cluster.apply(DeviceTaintRuleEvent(rule, None))
    assert results(world.decision()) == {"d": ("a", ["a0"])}


def test_a_pod_goes_where_an_earlier_alternative_is() -> None:
    """Although node a would be chosen without devices: it is the emptier one."""
    world = device_world(device_slice("a", gpu("a0")), device_slice("b", gpu("b0", "large")))
    world.upsert(pod("other", node_name="b", phase="Running", cpu=1))
    first = [
        {
            "name": model,
            "deviceClassName": "gpu",
            "count": 1,
            "selectors": [
                {"cel": {"expression": f'device.attributes["{DRIVER}"].model == "{model}"'}}
            ],
        }
        for model in ("large", "small")
    ]
    alternatives = {"name": "r", "firstAvailable": first}
    assert allocate_for(world, claim("c", alternatives)) == {"c": ("b", ["b0"])}
    add(world, claim("d", alternatives))
    world.upsert(podgroup("h", 1), using(pod("h-0", "h"), "d"))
    assert results(world.decision())["d"] == ("a", ["a0"])


# -- extended resources that devices provide -----------------------------------------------------

CARD = "example.com/card"


def card_world(*slices: ResourceSlice, hosts: str = "ab") -> SchedulerWorld:
    world = device_world(*slices, hosts=hosts)
    add(world, device_class(name="card", extendedResourceName=CARD))
    return world


def new_claims(decision: Decision) -> dict[str, Json]:
    """By pod: the claim that is to be created, with its allocation."""
    return {
        placement.name: {**each.new.body, "allocation": each.allocation, "uses": each.new.mappings}
        for placement in decision.placements
        for each in placement.devices
        if each.new is not None
    }


def test_an_extended_resource_of_a_class_is_provided_by_devices() -> None:
    world = card_world(device_slice("a", gpu("a0"), gpu("a1")))
    world.upsert(podgroup("g", 2), *(pod(f"g-{i}", "g", extra={CARD: 1}) for i in range(2)))
    found = new_claims(world.decision())
    devices = {each["allocation"]["devices"]["results"][0]["device"] for each in found.values()}
    assert devices == {"a0", "a1"}
    body = found["g-0"]
    assert body["metadata"]["generateName"] == "g-0-extended-resources-"
    assert body["metadata"]["annotations"] == {
        "resource.kubernetes.io/extended-resource-claim": "true"
    }
    (owner,) = body["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("Pod", "uid-g-0", True)
    (wanted,) = body["spec"]["devices"]["requests"]
    assert wanted["name"] == "container-0-request-1"
    assert wanted["exactly"]["deviceClassName"] == "card"
    assert body["uses"] == [
        {"containerName": "", "resourceName": CARD, "requestName": "container-0-request-1"}
    ]
    world.upsert(podgroup("h", 1), pod("h-0", "h", extra={CARD: 1}))
    assert world.schedule() == {}
    assert "cannot allocate all claims" in world.fit_message("h")
    world.validate()


def test_a_node_that_has_the_resource_itself_needs_no_claim() -> None:
    world = card_world(device_slice("a", gpu("a0")), hosts="a")
    world.upsert(node("p", extra={CARD: 2}))
    world.upsert(podgroup("g", 3), *(pod(f"g-{i}", "g", extra={CARD: 1}) for i in range(3)))
    decision = world.decision()
    assert sorted(each.node for each in decision.placements) == ["a", "p", "p"]
    (name,) = new_claims(decision)
    assert {each.name: each.node for each in decision.placements}[name] == "a"
    world.validate()


def test_devices_of_claims_are_not_available_as_extended_resources() -> None:
    world = card_world(device_slice("a", gpu("a0")), hosts="a")
    other = claim("other", allocation=allocated("a", "a0"))
    add(world, other)
    world.upsert(podgroup("g", 1), pod("g-0", "g", extra={CARD: 1}))
    assert world.schedule() == {}
    assert "cannot allocate all claims" in world.fit_message("g")
    world.cluster.apply(ResourceClaimEvent(other, None))
    assert list(new_claims(world.decision())) == ["g-0"]


def test_the_stored_claim_takes_the_place_of_what_was_assumed() -> None:
    world = card_world(device_slice("a", gpu("a0"), gpu("a1")), hosts="a")
    world.upsert(podgroup("g", 1), pod("g-0", "g", extra={CARD: 1}))
    body = new_claims(world.decision())["g-0"]
    metadata = {**body["metadata"], "name": "g-0-x", "namespace": "ns", "uid": "claim-x"}
    stored = {"metadata": metadata, "spec": body["spec"]}
    status = {"allocation": body["allocation"], "reservedFor": []}
    created = msgspec.convert(stored, ResourceClaim)
    written = msgspec.convert({**stored, "status": status}, ResourceClaim)
    world.cluster.apply(ResourceClaimEvent(None, created))
    world.cluster.apply(ResourceClaimEvent(created, written))
    world.validate()
    add(world, claim("c"))
    world.upsert(podgroup("h", 1), using(pod("h-0", "h"), "c"))
    assert results(world.decision()) == {"c": ("a", ["a1"])}
    world.upsert(pod("g-0", "g", extra={CARD: 1}, node_name="a", phase="Running"))
    world.validate()
    world.cluster.apply(ResourceClaimEvent(written, None))
    add(world, claim("d"))
    world.upsert(podgroup("i", 1), using(pod("i-0", "i"), "d"))
    assert results(world.decision()) == {"d": ("a", ["a0"])}


def test_a_pod_that_does_not_get_its_node_gets_other_devices() -> None:
    world = card_world(device_slice("a", gpu("a0")), hosts="a")
    world.upsert(podgroup("g", 1), pod("g-0", "g", extra={CARD: 1}))
    assert list(new_claims(world.decision())) == ["g-0"]
    world.cluster.apply(PlacementForgotten("uid-g-0"))
    assert list(new_claims(world.decision())) == ["g-0"]
    world.validate()


def test_a_class_without_a_name_for_it_has_an_implicit_resource() -> None:
    world = device_world(device_slice("a", gpu("a0")), hosts="a")
    name = "deviceclass.resource.kubernetes.io/gpu"
    world.upsert(podgroup("g", 1), pod("g-0", "g", extra={name: 1}))
    assert list(new_claims(world.decision())) == ["g-0"]
    world.upsert(podgroup("h", 1), pod("h-0", "h", extra={f"{name}s": 1}))
    assert world.schedule() == {}


def test_the_devices_that_provide_a_resource_follow_slices_and_classes() -> None:
    world = card_world(hosts="a")
    world.upsert(podgroup("g", 1), pod("g-0", "g", extra={CARD: 1}))
    assert world.schedule() == {}
    slices = device_slice("a", gpu("a0"))
    world.cluster.apply(ResourceSliceEvent(None, slices))
    before = device_class(name="card", extendedResourceName=CARD)
    after = device_class("false", name="card", extendedResourceName=CARD)
    world.cluster.apply(DeviceClassEvent(before, after))
    assert world.schedule() == {}
    world.cluster.apply(DeviceClassEvent(after, before))
    assert list(new_claims(world.decision())) == ["g-0"]
    world.validate()
