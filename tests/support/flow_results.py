"""JobFlows and JobTemplates in the result of a scenario."""

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]

LISTS = (
    "pendingJobs", "runningJobs", "failedJobs", "completedJobs", "terminatedJobs", "unKnowJobs",
)  # fmt: skip


def flow_results(timeline: list[Json], final: Mapping[str, list[Json]]) -> Json:
    """Phases of the flows and what exists at the end; nothing without flows and templates."""
    phases: dict[str, list[str]] = {}
    for entry in timeline:
        if entry.get("kind") != "JobFlow":
            continue
        state = (entry.get("status") or {}).get("state") or {}
        seen = phases.setdefault(entry["name"], [])
        if (phase := state.get("phase", "")) and seen[-1:] != [phase]:
            seen.append(phase)
    flows = {each["name"]: _flow(each) for each in final.get("JobFlow", [])}
    templates = {
        each["name"]: sorted((each["status"] or {}).get("jobDependsOnList", []))
        for each in final.get("JobTemplate", [])
    }
    if not (phases or flows or templates):
        return {}
    return {"flows": {"phases": phases, "flows": flows, "templates": templates}}


def _flow(flow: Json) -> Json:
    status = flow["status"] or {}
    histories = {
        each["name"]: [entry["state"] for entry in each.get("runningHistories", [])]
        for each in status.get("jobStatusList", [])
    }
    conditions = status.get("conditions") or {}
    return {
        "spec": flow["spec"],
        "lists": {key: sorted(status[key]) for key in LISTS if status.get(key)},
        "histories": histories,
        "conditions": {name: each.get("phase") for name, each in conditions.items()},
    }
