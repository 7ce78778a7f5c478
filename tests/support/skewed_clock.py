"""The command line with a wall clock that a test sets wrong: `skewed_clock.py FILE COMPONENT …`.

FILE holds the seconds to add to the true time, and is read each time that the time is asked for.
The steady clock stays as it is, as in reality.
"""

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from batholith.cli.main import app
from batholith.kube.timing import Timing
from batholith.machinery.clock import SystemClock


def main(offset: Path) -> None:
    """Run the command line by the wrong clock."""

    def now(*_: object) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=float(offset.read_text() or 0))

    SystemClock.now = now  # type: ignore[method-assign, assignment]
    defaults = Timing.__init__.__kwdefaults__
    assert defaults is not None and "now" in defaults
    defaults["now"] = now
    app()


if __name__ == "__main__":
    path = Path(sys.argv.pop(1))
    main(path)
