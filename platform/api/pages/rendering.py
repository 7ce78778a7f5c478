"""Templates, filters of values, and static files."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined

from ...model import durations
from ...wire.jobs import PlannedStart

_TYPES = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
PAGES = (("/jobs", "Jobs"), ("/queues", "Queues"), ("/cluster", "Cluster"), ("/history", "History"))
"""Path and name of the pages that every page refers to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticFile:
    """A file of the package that browsers load."""

    content: bytes
    media_type: str
    version: str
    """Digest of the content, part of its URL: browsers cache it forever."""


@cache
def static_files() -> Mapping[str, StaticFile]:
    """Return the static files by name."""
    found = {}
    for path in (resources.files(__package__) / "static").iterdir():
        suffix = path.name.rpartition(".")[2]
        if suffix in _TYPES:
            content = path.read_bytes()
            version = hashlib.sha256(content).hexdigest()[:12]
            found[path.name] = StaticFile(
                content=content, media_type=_TYPES[suffix], version=version
            )
    return found


def static_url(name: str) -> str:
    """Return the URL of a static file."""
    return f"/static/{static_files()[name].version}/{name}"


def between(start: datetime | None, end: datetime | None) -> str:
    """Return the time from *start* to *end* as text; empty if one is unknown."""
    if start is None or end is None:
        return ""
    return durations.human(max((end - start).total_seconds(), 0))


def timestamp(time: datetime | None) -> str:
    """Return *time* in UTC as text; empty if it is unknown."""
    return "" if time is None else time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_UNITS_OF_BYTES = ((2**50, "PiB"), (2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def amount(value: float, resource: str) -> str:
    """Return an amount of a resource with three or four digits, and a prefix for thousands or, if
    it is in bytes, a unit."""
    is_bytes = resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-")
    for factor, unit in _UNITS_OF_BYTES if is_bytes else _PREFIXES:
        if abs(value) >= factor:
            found = value / factor
            return f"{found:.0f} {unit}" if abs(found) >= 1000 else f"{found:.3g} {unit}"
    return f"{value:.3g} B" if is_bytes and value else f"{value:.3g}"


def planned_start(start: PlannedStart) -> str:
    """Return when a job is expected to start, and from what that is known."""
    if not start.is_known:
        return "not known: it waits for jobs whose end is not known"
    latest = f", at the latest {timestamp(start.latest)}" if start.latest is not None else ""
    expected = f", probably {timestamp(start.expected)}" if start.expected is not None else ""
    return f"{timestamp(start.earliest)}{expected}{latest} UTC (by {start.basis})"


@cache
def environment() -> Environment:
    """Return the templates: every value is escaped, and an unknown name is an error."""
    found = Environment(
        loader=PackageLoader(__package__ or "", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {
        "amount": amount,
        "planned_start": planned_start,
        "timestamp": timestamp,
    }
    found.globals |= {"static": static_url, "between": between, "pages": PAGES}
    return found
