"""Log formatting, as text or JSON: a constant message and key-value pairs."""

import json
import logging
import re
import sys
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice

_ATTRIBUTES = tuple(vars(logging.makeLogRecord({})))
_ADDED_ATTRIBUTES = frozenset({"message", "asctime"})
"""Attributes that the formatters of other libraries add to a record."""


def _extra_fields(record: logging.LogRecord) -> dict[str, object]:
    """Return the fields of the log call, which follow the attributes of every record."""
    fields = dict(islice(vars(record).items(), len(_ATTRIBUTES), None))
    for name in _ADDED_ATTRIBUTES & fields.keys():
        del fields[name]
    return fields


def _timestamp(record: logging.LogRecord) -> str:
    seconds, fraction = divmod(record.created, 1)
    return f"{_second(seconds)}.{int(fraction * 1000):03d}Z"


@lru_cache(maxsize=2)
def _second(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().removesuffix("+00:00")


_needs_quotes = re.compile(r'[\s="]').search


def _quote(value: object) -> str:
    """Return *value* as text, quoted if it contains white space, quotes or ``=``."""
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if _needs_quotes(text) else text


class TextFormatter(logging.Formatter):
    """``2026-01-02T03:04:05.678Z INFO batholith.job_ctrl: job synced key=default/train``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, followed by the traceback, if any."""
        pairs = "".join(f" {key}={_quote(value)}" for key, value in _extra_fields(record).items())
        line = (
            f"{_timestamp(record)} {record.levelname} {record.name}: {record.getMessage()}{pairs}"
        )
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object per line, for log collectors."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON; values of other types become text."""
        entry: dict[str, object] = {
            "time": _timestamp(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_extra_fields(record),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def configure(*, log_format: str = "text", level: str = "INFO") -> None:
    """Send all logs to standard error; *log_format* is ``text`` or ``json``."""
    # No line shows the thread, the process or the caller, half of the cost of a record.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # documented: do not look for the caller
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
