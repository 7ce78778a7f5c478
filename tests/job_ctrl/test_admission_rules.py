"""Which webhooks and policies may change a new pod."""

from typing import Any

import msgspec
import pytest
from support.manifests import MANIFESTS

from batholith.job_ctrl.creation.admission_rules import (
    GATE_CONDITION,
    Binding,
    Policy,
    WebhookConfiguration,
    mutators,
)
from batholith.model.names import TASK_INDEX

Json = dict[str, Any]
WHOLE = {
    "operations": ["CREATE"],
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "resources": ["pods"],
    "scope": "*",
}
POD = {"app": "x", TASK_INDEX: "0"}
NAMESPACE = {"team": "a"}


def selects(expression: Json) -> Json:
    return {"matchExpressions": [expression]}


def may_change(
    *,
    webhook: Json | None = None,
    policy: Json | None = None,
    binding: Json | None = None,
    namespace: dict[str, str] | None = NAMESPACE,
) -> list[bool | None]:
    """What each mutator may do to a pod with labels :data:`POD`."""
    configurations = []
    if webhook is not None:
        body = {"webhooks": [{"name": "m", "rules": [WHOLE], **webhook}]}
        configurations.append(msgspec.convert(body, WebhookConfiguration))
    policies, bindings = [], []
    if policy is not None:
        spec = {"matchConstraints": {"resourceRules": [WHOLE]}, **policy}
        policies.append(msgspec.convert({"metadata": {"name": "p"}, "spec": spec}, Policy))
    if binding is not None:
        bindings.append(msgspec.convert({"spec": {"policyName": "p", **binding}}, Binding))
    return [
        each.may_change((POD,), namespace) for each in mutators(configurations, policies, bindings)
    ]


@pytest.mark.parametrize(
    ("rule", "matches"),
    [
        ({}, True),
        ({"operations": ["*"]}, True),
        ({"operations": ["UPDATE", "CREATE"]}, True),
        ({"operations": ["UPDATE", "DELETE", "CONNECT"]}, False),
        ({"operations": []}, False),
        ({"apiGroups": ["*"]}, True),
        ({"apiGroups": ["apps", ""]}, True),
        ({"apiGroups": ["apps"]}, False),
        ({"apiVersions": ["*"]}, True),
        ({"apiVersions": ["v2"]}, False),
        ({"resources": ["*"]}, True),
        ({"resources": ["*/*"]}, True),
        ({"resources": ["pods/*"]}, True),
        ({"resources": ["services", "pods"]}, True),
        ({"resources": ["pods/status", "pods/binding", "*/status"]}, False),
        ({"resources": ["deployments"]}, False),
        ({"scope": "Namespaced"}, True),
        ({"scope": "Cluster"}, False),
    ],
)
def test_a_webhook_is_called_for_what_its_rules_name(rule: Json, matches: bool) -> None:
    rules = [{**WHOLE, **rule}]
    expected = [True] if matches else []
    assert may_change(webhook={"rules": rules}) == expected
    constraints = {"matchConstraints": {"resourceRules": rules}}
    assert may_change(policy=constraints, binding={}) == expected
    assert may_change(policy={}, binding={"matchResources": {"resourceRules": rules}}) == expected


SELECTORS = [
    ({}, True),
    ({"matchLabels": {"k": "v"}}, True),
    ({"matchLabels": {"k": "w"}}, False),
    ({"matchLabels": {"k": "v", "absent": "v"}}, False),
    (selects({"key": "k", "operator": "In", "values": ["u", "v"]}), True),
    (selects({"key": "k", "operator": "In", "values": ["u"]}), False),
    (selects({"key": "k", "operator": "NotIn", "values": ["v"]}), False),
    (selects({"key": "absent", "operator": "NotIn", "values": ["v"]}), True),
    (selects({"key": "k", "operator": "Exists"}), True),
    (selects({"key": "k", "operator": "DoesNotExist"}), False),
    (selects({"key": "k", "operator": "Unheard"}), True),
]


@pytest.mark.parametrize(("selector", "matches"), SELECTORS)
def test_the_selector_of_objects_reads_the_labels_of_the_pods(
    selector: Json, matches: bool
) -> None:
    selector = msgspec.json.decode(msgspec.json.encode(selector).replace(b'"k"', b'"app"'))
    selector = msgspec.json.decode(msgspec.json.encode(selector).replace(b'"v"', b'"x"'))
    assert may_change(webhook={"objectSelector": selector}) == [matches]
    constraints = {"resourceRules": [WHOLE], "objectSelector": selector}
    assert may_change(policy={"matchConstraints": constraints}, binding={}) == [matches]
    resources = {"matchResources": {"objectSelector": selector}}
    assert may_change(policy={}, binding=resources) == [matches]


@pytest.mark.parametrize(("selector", "matches"), SELECTORS)
def test_the_selector_of_namespaces_reads_their_labels(selector: Json, matches: bool) -> None:
    labels = {"k": "v"}
    assert may_change(webhook={"namespaceSelector": selector}, namespace=labels) == [matches]
    constraints = {"resourceRules": [WHOLE], "namespaceSelector": selector}
    policy = {"matchConstraints": constraints}
    assert may_change(policy=policy, binding={}, namespace=labels) == [matches]
    resources = {"matchResources": {"namespaceSelector": selector}}
    assert may_change(policy={}, binding=resources, namespace=labels) == [matches]


def test_labels_of_a_namespace_that_are_not_known_matter_if_they_are_selected() -> None:
    selector = {"matchLabels": {"team": "a"}}
    assert may_change(webhook={}, namespace=None) == [True]
    assert may_change(webhook={"namespaceSelector": selector}, namespace=None) == [None]
    both = {"namespaceSelector": selector, "objectSelector": {"matchLabels": {"app": "y"}}}
    assert may_change(webhook=both, namespace=None) == [False]


@pytest.mark.parametrize("operator", ["In", "NotIn", "Exists", "DoesNotExist"])
def test_what_depends_on_the_index_may_match(operator: str) -> None:
    values = {"values": ["7"]} if "In" in operator else {}
    expression = {"key": TASK_INDEX, "operator": operator, **values}
    assert may_change(webhook={"objectSelector": selects(expression)}) == [True]


def test_a_policy_has_no_effect_without_a_binding() -> None:
    assert may_change(policy={}) == []
    assert may_change(policy={}, binding={"policyName": "another"}) == []
    assert may_change(binding={}) == []
    assert may_change(policy={}, binding={}) == [True]


def test_both_a_policy_and_its_binding_must_select() -> None:
    yes, no = {"matchLabels": {"app": "x"}}, {"matchLabels": {"app": "y"}}
    for own, bound in ((yes, no), (no, yes)):
        policy = {"matchConstraints": {"resourceRules": [WHOLE], "objectSelector": own}}
        binding = {"matchResources": {"objectSelector": bound}}
        assert may_change(policy=policy, binding=binding) == [False]


def test_rules_that_exclude_pods_count_unless_they_are_for_some_names() -> None:
    named = {**WHOLE, "resourceNames": ["j-t-0"]}
    for rule, expected in ((WHOLE, []), (named, [True])):
        constraints = {"resourceRules": [WHOLE], "excludeResourceRules": [rule]}
        assert may_change(policy={"matchConstraints": constraints}, binding={}) == expected
    constraints = {"resourceRules": [named]}
    assert may_change(policy={"matchConstraints": constraints}, binding={}) == [True]


def test_a_policy_without_rules_is_for_all() -> None:
    assert may_change(policy={"matchConstraints": {}}, binding={}) == [True]


def test_conditions_may_hold_apart_from_that_of_our_own_webhook() -> None:
    gate = {"name": "asks", "expression": GATE_CONDITION}
    other = {"name": "other", "expression": "object.metadata.name != 'x'"}
    assert may_change(webhook={"matchConditions": [other]}) == [True]
    assert may_change(webhook={"matchConditions": [other, gate]}) == []
    assert may_change(policy={"matchConditions": [other]}, binding={}) == [True]
    assert may_change(policy={"matchConditions": [gate]}, binding={}) == []


def test_our_own_webhook_for_pods_has_that_condition() -> None:
    text = (MANIFESTS / "components/scheduling-gates/scheduling-gates.yaml").read_text()
    assert f"expression: {GATE_CONDITION}\n" in text
