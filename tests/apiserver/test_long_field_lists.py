"""Lists of one object are validated in linear time; quadratic time would be minutes here."""

from typing import Any

from batholith.local.apiserver.builtin.pod_strategy import validate_pod
from batholith.local.apiserver.builtin.scheduling_validation import validate_scheduling
from batholith.local.apiserver.errors.fields import FieldError

Json = dict[str, Any]

LENGTH = 50_000


def named_pod(image: str, **spec: Any) -> Json:
    main = {"name": "main", "image": image, "imagePullPolicy": "Always"}
    fixed = {"restartPolicy": "Always", "dnsPolicy": "Default", "schedulerName": "s"}
    return {"metadata": {"name": "p"}, "spec": {**fixed, "containers": [main], **spec}}


def test_an_update_of_a_pod_keeps_many_tolerations() -> None:
    tolerations = [{"key": f"k{number}", "operator": "Exists"} for number in range(LENGTH)]
    old = named_pod("one", tolerations=tolerations)
    assert not validate_pod(named_pod("two", tolerations=tolerations[::-1]), old)


def test_an_update_of_a_pod_keeps_many_scheduling_gates() -> None:
    gates = [{"name": f"g{number}"} for number in range(LENGTH)]
    old = named_pod("one", schedulingGates=gates)
    assert not validate_pod(named_pod("two", schedulingGates=gates[::-1]), old)


def test_many_spread_constraints_are_compared_with_one_another() -> None:
    spreads = [
        {"maxSkew": 1, "topologyKey": f"k{number}", "whenUnsatisfiable": "DoNotSchedule"}
        for number in range(LENGTH)
    ]
    errors: list[FieldError] = []
    spreads.append(spreads[7])
    validate_scheduling({"topologySpreadConstraints": spreads}, "spec", errors)
    assert [(each.reason, each.field) for each in errors] == [
        (
            "FieldValueDuplicate",
            "spec.topologySpreadConstraints[7].{topologyKey, whenUnsatisfiable}",
        )
    ]
