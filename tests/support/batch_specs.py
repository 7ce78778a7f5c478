"""Random specs of Jobs."""

from typing import Any

from hypothesis import strategies as st

Object = dict[str, Any]

FAIL_JOB, FAIL_INDEX, COUNT = 42, 43, 44
"""Exit codes that the pod failure policies of :func:`specs` react to."""
DISRUPTION = {"type": "DisruptionTarget", "status": "True"}

_limits = st.sampled_from([0, 1, 2, 6])


def _rule(action: str, *codes: int) -> Object:
    return {"action": action, "onExitCodes": {"operator": "In", "values": [*codes]}}


@st.composite
def specs(draw: st.DrawFn) -> Object:
    """Return the spec of a Job, valid for the API server."""
    spec: Object = {
        "parallelism": draw(st.integers(0, 3)),
        "suspend": draw(st.sampled_from([False, False, False, True])),
    }
    per_index = False
    if draw(st.booleans()):
        per_index = _add_indexes(draw, spec)
    else:
        spec["completions"] = draw(st.sampled_from([None, 0, 1, 2, 4]))
    if not per_index:
        spec["backoffLimit"] = draw(_limits)
    if draw(st.integers(0, 2)) == 0:
        rules = [_rule("FailJob", FAIL_JOB), _rule("Count", COUNT)]
        if per_index:
            rules.append(_rule("FailIndex", FAIL_INDEX))
        rules.append({"action": "Ignore", "onPodConditions": [DISRUPTION]})
        spec |= {"podFailurePolicy": {"rules": rules}, "podReplacementPolicy": "Failed"}
    elif draw(st.booleans()):
        spec["podReplacementPolicy"] = draw(st.sampled_from(["Failed", "TerminatingOrFailed"]))
    if draw(st.integers(0, 3)) == 0:
        spec["activeDeadlineSeconds"] = draw(st.sampled_from([5, 60, 900]))
    if draw(st.integers(0, 3)) == 0:
        spec["ttlSecondsAfterFinished"] = draw(st.sampled_from([0, 30]))
    return spec


def _add_indexes(draw: st.DrawFn, spec: Object) -> bool:
    """Add the fields of an Indexed Job; return whether it has a limit per index."""
    spec |= {"completionMode": "Indexed", "completions": draw(st.integers(0, 4))}
    if draw(st.booleans()):
        spec["parallelism"] = spec["completions"]  # elastic
    if draw(st.integers(0, 3)) == 0:
        count = draw(st.integers(0, spec["completions"]))
        spec["successPolicy"] = {"rules": [{"succeededCount": count}]}
    if draw(st.booleans()):
        return False
    spec["backoffLimitPerIndex"] = draw(st.integers(0, 2))
    if draw(st.booleans()):
        spec["maxFailedIndexes"] = draw(st.integers(0, spec["completions"]))
    return True
