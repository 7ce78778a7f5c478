"""Derive ``tests/data/crd-fields`` from the CRDs that Volcano installs.

``PYTHONPATH=tests .venv/bin/python tests/tools/crd_fields.py FILE…``, each file a CRD of
Volcano's ``config/crd``. Copies names, types and limits, but no prose.
"""

import json
import sys
from pathlib import Path

import yaml
from support.crd_fields import DIR, facts, write_table


def main(files: list[str]) -> None:
    definitions = [yaml.safe_load(Path(file).read_text()) for file in files]
    for definition in definitions:
        write_table(definition)
    about = {each["metadata"]["name"]: facts(each) for each in definitions}
    text = json.dumps(about, indent=1, sort_keys=True) + "\n"
    (DIR / "kinds.json").write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
