"""Generate the chart's templates from the kustomize files.

A comment in a source contains the text of the chart:

* at the end of a line, ``key: value # helm: TEXT``: the value becomes ``TEXT``;
* on a separate line, ``# helm: TEXT``: the line becomes ``TEXT`` (conditions, loops, additions).

Lines between an ``else`` and its ``end`` are copied unchanged, so they can contain a default.
Braces in all other text, as in the templates of alerts and dashboards, are quoted for Helm.
Run as ``make chart``; a test fails if the templates do not match the sources.
"""

import re
from pathlib import Path

MANIFESTS = Path(__file__).parents[2] / "manifests"
SOURCES = (
    *(f"base/{name}.yaml" for name in ("controllers", "scheduler", "admission", "webhooks")),
    *(f"base/{name}.yaml" for name in ("policies", "api", "network", "user-roles")),
    "components/batch-jobs/batch-jobs.yaml",
    "components/groupers/groupers.yaml",
    "components/native-gangs/native-gangs.yaml",
    "components/suspension/suspension.yaml",
    "components/training-jobs/training-jobs.yaml",
    "components/sharded-controllers/sharded-controllers.yaml",
    *(f"components/monitoring/{name}.yaml" for name in ("monitoring", "alerts", "dashboards")),
    "components/pod-webhooks/pod-webhooks.yaml",
    "components/scheduling-gates/scheduling-gates.yaml",
    "components/rest-impersonation/rest-impersonation.yaml",
    "components/history/history.yaml",
    "components/notifications/notification-events.yaml",
    *(
        f"components/policies/{subject}-policies.yaml"
        for subject in (
            "annotation",
            "cronjob",
            "hypernode",
            "job",
            "job-update",
            "jobflow",
            "queue",
            "podgroup",
            "pod",
            "relation",
        )
    ),
)
"""Sources of the chart. Helm creates the namespace."""
_WHOLE = re.compile(r"^(\s*)# helm: (.*)$")
_VALUE = re.compile(r"^(\s*(?:- )?(?:[\w./-]+: )?)\S.*? # helm: (.*)$")


def template(source: str) -> str:
    """Return the template for the text of one source file."""
    lines = []
    for line in source.splitlines():
        if whole := _WHOLE.match(line):
            lines.append(whole[1] + whole[2])
        elif value := _VALUE.match(line):
            lines.append(value[1] + value[2])
        else:
            lines.append(line.replace("{{", '{{ "{{" }}'))
    return "\n".join(lines) + "\n"


def templates() -> dict[str, str]:
    """Return the generated templates by file name."""
    sources = [MANIFESTS / source for source in SOURCES]
    return {source.name: template(source.read_text()) for source in sources}


def write(chart: Path) -> None:
    """Write the templates into *chart*, replacing existing ones."""
    for name, text in templates().items():
        (chart / "templates" / name).write_text(text)


if __name__ == "__main__":
    write(MANIFESTS / "chart")
