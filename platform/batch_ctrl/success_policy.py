"""The success policy: whether the succeeded indexes suffice. Pure."""

from .core_types import SuccessPolicy, SuccessRule
from .indexes import IndexSet


def match(policy: SuccessPolicy | None, succeeded: IndexSet, *, completions: int) -> str | None:
    """Return the message of the first rule that *succeeded* fulfils, if any does."""
    if policy is None or not succeeded.total:
        return None
    for number, rule in enumerate(policy.rules):
        if _is_met(rule, succeeded, completions):
            return f"Matched rules at index {number}"
    return None


def _is_met(rule: SuccessRule, succeeded: IndexSet, completions: int) -> bool:
    count = rule.succeeded_count
    if rule.succeeded_indexes is None:
        return count is not None and succeeded.total >= count
    required = IndexSet.parse(rule.succeeded_indexes, completions)
    if not required.total:  # empty or invalid
        return False
    found = required.intersection_total(succeeded)
    return found == required.total or (count is not None and found >= count)
