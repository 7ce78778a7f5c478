"""When pods are evicted because of the taints of their devices; pure."""

from typing import Any

import msgspec
import pytest

from batholith.local.workloads.claim_rules import ResourceClaim
from batholith.local.workloads.device_taint_rules import (
    DeviceEviction,
    DeviceTaintRule,
    ResourceSlice,
    claims_in_use,
    current_slices,
    eviction_of,
)
from batholith.local.workloads.types import Pod

Json = dict[str, Any]
BEGIN = 1_767_225_600.0
TAINT = {"key": "broken", "value": "v", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}


def claim(*tolerations: Json, **meta: Any) -> ResourceClaim:
    device = {"driver": "dr", "pool": "p", "device": "d", "tolerations": tolerations}
    status = {
        "allocation": {"devices": {"results": [device]}},
        "reservedFor": [{"resource": "pods", "name": "a", "uid": "1"}],
    }
    metadata = {"name": "c", "namespace": "n", **meta}
    return msgspec.convert({"metadata": metadata, "status": status}, ResourceClaim)


def rule(**spec: Any) -> DeviceTaintRule:
    spec = {"deviceSelector": {}, "taint": TAINT, **spec}
    return msgspec.convert({"metadata": {"name": "r", "uid": "u"}, "spec": spec}, DeviceTaintRule)


def device_slice(generation: int, *taints: Json) -> ResourceSlice:
    pool = {"name": "p", "generation": generation}
    spec = {"driver": "dr", "pool": pool, "devices": [{"name": "d", "taints": taints}]}
    metadata = {"name": f"s{generation}"}
    return msgspec.convert({"metadata": metadata, "spec": spec}, ResourceSlice)


def eviction(*tolerations: Json) -> DeviceEviction | None:
    return eviction_of([claim(*tolerations)], {}, [rule()])


EXISTS = {"operator": "Exists", "key": "broken", "effect": "NoExecute"}


@pytest.mark.parametrize(
    ("tolerations", "seconds"),
    [
        ((), 0),
        (({**EXISTS, "tolerationSeconds": 60}, {**EXISTS, "tolerationSeconds": 30}), 30),
        (({**EXISTS, "tolerationSeconds": -5},), 0),
        (({**EXISTS, "tolerationSeconds": 2**62},), 2.0**62),
        (({"operator": "Equal", "key": "broken", "value": "w"},), 0),
        (({**EXISTS, "effect": "NoSchedule"},), 0),
    ],
)
def test_a_pod_is_evicted_after_the_shortest_time_that_it_tolerates(
    tolerations: tuple[Json, ...], seconds: float
) -> None:
    assert eviction(*tolerations) == DeviceEviction(BEGIN + seconds, {"u": "r"})


@pytest.mark.parametrize(
    "toleration", [EXISTS, {"operator": "Exists"}, {"key": "broken", "value": "v"}]
)
def test_a_toleration_without_a_time_lasts(toleration: Json) -> None:
    assert eviction({**EXISTS, "tolerationSeconds": 30}, toleration) is None


@pytest.mark.parametrize(
    "spec",
    [
        {"deviceSelector": {"pool": "other"}},
        {"deviceSelector": {"driver": "dr", "device": "e"}},
        {"deviceSelector": None},
        {"taint": {**TAINT, "effect": "NoSchedule"}},
        {"taint": {**TAINT, "effect": "None"}},
    ],
)
def test_a_rule_evicts_only_if_it_selects_the_device_and_its_effect_is_that(spec: Json) -> None:
    assert eviction_of([claim()], {}, [rule(**spec)]) is None


def test_taints_of_the_latest_slices_of_a_pool_count() -> None:
    later = {**TAINT, "timeAdded": "2026-01-01T00:01:00Z"}
    found = current_slices([device_slice(1, TAINT), device_slice(2, later)])
    assert eviction_of([claim()], {("dr", "p"): found}, []) == DeviceEviction(BEGIN + 60, {})
    found = current_slices([device_slice(1, TAINT), device_slice(2)])
    assert eviction_of([claim()], {("dr", "p"): found}, []) is None


def test_a_pod_uses_claims_that_are_reserved_for_it_and_its_own_ones() -> None:
    def used(uid: str, found: ResourceClaim, **wanted: str) -> bool:
        spec = {"resourceClaims": [{"name": "g", **wanted}]}
        status = {"resourceClaimStatuses": [{"name": "g", "resourceClaimName": "c"}]}
        metadata = {"name": "a", "namespace": "n", "uid": uid}
        body = {"metadata": metadata, "spec": spec, "status": status}
        return bool([*claims_in_use(msgspec.convert(body, Pod), {"c": found})])

    assert used("1", claim(), resourceClaimName="c")
    assert not used("2", claim(), resourceClaimName="c")
    assert not used("1", claim(), resourceClaimTemplateName="t")
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "1", "controller": True}
    assert used("1", claim(ownerReferences=[owner]), resourceClaimTemplateName="t")
