"""The CEL policies agree with the Python rules about enumerations."""

import ast
from typing import Any

from support.cel_policies import policies

from batholith.job_ctrl.plugins.registry import BUILT_IN
from batholith.model.job import POLICY_EVENTS
from batholith.model.job_actions import ACTIONS

Json = dict[str, Any]
BY_NAME: dict[tuple[str, str], Json] = {
    (each["kind"], each["metadata"]["name"]): each["spec"] for each in policies()
}


def test_actions_events_and_plugins_are_those_of_the_code() -> None:
    spec = BY_NAME["ValidatingAdmissionPolicy", "batholith-new-jobs"]
    found = {each["name"]: each["expression"] for each in spec["variables"]}
    for name, wanted in (
        ("actions", tuple(ACTIONS)),
        ("events", POLICY_EVENTS),
        ("knownPlugins", BUILT_IN),
    ):
        assert sorted(ast.literal_eval(found[name])) == sorted(wanted)


def test_each_policy_is_bound_and_ignores_failed_evaluations() -> None:
    names = {name for kind, name in BY_NAME if kind == "ValidatingAdmissionPolicy"}
    assert len(names) == len(BY_NAME) / 2
    for name in names:
        assert BY_NAME["ValidatingAdmissionPolicy", name]["failurePolicy"] == "Ignore"
        binding = BY_NAME["ValidatingAdmissionPolicyBinding", name]
        assert (binding["policyName"], binding["validationActions"]) == (name, ["Deny"])
