"""``make openapi``: write docs/openapi.json, unless the change breaks clients of the REST API.

``make openapi BREAK=1`` writes it anyway; the change then needs a fragment ``.breaking.md``.
"""

import json
import sys
from pathlib import Path
from typing import Any

from batholith.api.serving.app import document

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.openapi_changes import breaking_changes

PAGE = Path(__file__).parents[2] / "docs" / "openapi.json"


def rendered() -> str:
    """Return the document of the application as text."""
    return json.dumps(document(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def committed() -> dict[str, Any] | None:
    """Return the document in the working copy, if there is one."""
    if not PAGE.exists():
        return None
    found: dict[str, Any] = json.loads(PAGE.read_text())
    return found


def main() -> None:
    """Write the document."""
    before = committed()
    found = [] if before is None else breaking_changes(before, document())
    if found and "--break" not in sys.argv[1:]:
        print("these changes break clients of the REST API:", *found, sep="\n  ")
        sys.exit("nothing is written; BREAK=1 writes it anyway")
    PAGE.write_text(rendered())


if __name__ == "__main__":
    main()
