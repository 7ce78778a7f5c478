"""Writes the chart's templates after the kustomize files, which are the source of both.

A comment in a source says what the chart has in its place:

* at the end of a line, ``key: value # helm: TEXT``: the value becomes ``TEXT``;
* on a line of its own, ``# helm: TEXT``: the line becomes ``TEXT`` (conditions, loops, additions).

Lines between an ``else`` and its ``end`` are kept as they stand, so a default can be shown there.
Run as ``make chart``; a test fails when the templates are not those of the sources.
"""

import re
from pathlib import Path

MANIFESTS = Path(__file__).parents[2] / "manifests"
SOURCES = (
    *(f"base/{part}.yaml" for part in ("controllers", "scheduler", "admission", "webhooks")),
    *(f"base/{part}.yaml" for part in ("policies", "api", "network", "user-roles")),
    "components/monitoring/monitoring.yaml",
    "components/pod-webhooks/pod-webhooks.yaml",
    "components/scheduling-gates/scheduling-gates.yaml",
    *(
        f"components/policies/{about}-policies.yaml"
        for about in ("job", "job-update", "queue", "podgroup", "pod", "relation")
    ),
)
"""What the chart is made of. The namespace is Helm's business."""
_WHOLE = re.compile(r"^(\s*)# helm: (.*)$")
_VALUE = re.compile(r"^(\s*(?:- )?(?:[\w./-]+: )?)\S.*? # helm: (.*)$")


def template(source: str) -> str:
    """The template of one source file's text."""
    lines = []
    for line in source.splitlines():
        if whole := _WHOLE.match(line):
            lines.append(whole[1] + whole[2])
        elif value := _VALUE.match(line):
            lines.append(value[1] + value[2])
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def templates() -> dict[str, str]:
    """Every template of the chart that has a source, by its file's name."""
    sources = [MANIFESTS / source for source in SOURCES]
    return {source.name: template(source.read_text()) for source in sources}


def write(chart: Path) -> None:
    """Write the templates into *chart*, in the place of older ones."""
    for name, text in templates().items():
        (chart / "templates" / name).write_text(text)


if __name__ == "__main__":
    write(MANIFESTS / "chart")
