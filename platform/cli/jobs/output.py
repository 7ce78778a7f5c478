"""Output of the commands: tables, JSON, YAML, CSV and names."""

import csv
import io
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Generic, TypeVar

import msgspec
import typer

from ...model import durations

T = TypeVar("T")

GAP = "  "
MIN_WIDTH = 5
"""Characters to which a column of a narrow terminal is cut at most."""
COLOURS = {
    **dict.fromkeys(("Running", "Completed", "Open", "Succeeded"), typer.colors.GREEN),
    **dict.fromkeys(("Failed", "Aborted", "Terminated", "Closed"), typer.colors.RED),
    **dict.fromkeys(("Pending", "Suspended", "Restarting", "Closing"), typer.colors.YELLOW),
}


class Output(StrEnum):
    """Value of ``--output``."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"
    NAME = "name"


OutputOption = Annotated[
    Output,
    typer.Option(
        "--output",
        "-o",
        help="wide and csv have more columns; name prints KIND/NAME, which all commands accept.",
    ),
]


@dataclass(frozen=True)
class Column(Generic[T]):
    """A column of a table."""

    title: str
    value: Callable[[T], object]
    wide: bool = False
    """Whether only ``wide`` and ``csv`` have it."""
    spare: bool = False
    """Whether it is left out where a row does not fit, before others are cut."""
    width: int = 0
    """Characters of its cells in tables, which are aligned to the right, or if it is negative to
    the left; 0: as many as the longest needs."""


class Table(Generic[T]):
    """Rows as aligned text. The columns keep their widths while rows are added.

    On a terminal spare columns are left out, the last ones first, and the widest of the others are
    cut until a row fits, unless the table is wide.
    """

    def __init__(self, columns: Sequence[Column[T]], *, wide: bool = False) -> None:
        self._columns = [each for each in columns if wide or not each.wide]
        self._widths = [abs(each.width) or len(each.title) for each in self._columns]
        self._limit = (
            None if wide or not sys.stdout.isatty() else shutil.get_terminal_size().columns
        )

    def header(self) -> str:
        """Return the titles."""
        return self._line([each.title for each in self._columns])

    def lines(self, rows: Iterable[T], *, header: bool = True) -> list[str]:
        """Return the lines of *rows*, by default below the titles."""
        cells = [[cell_text(each.value(row)) for each in self._columns] for row in rows]
        for line in cells:
            self._widths = [
                width if column.width else max(width, len(text))
                for column, width, text in zip(self._columns, self._widths, line, strict=True)
            ]
        if header:
            self._leave_out(cells)
        self._fit()
        return [*([self.header()] if header else []), *map(self._line, cells)]

    @property
    def _fits(self) -> bool:
        line = sum(self._widths) + len(GAP) * (len(self._widths) - 1)
        return self._limit is None or line <= self._limit

    def _leave_out(self, cells: list[list[str]]) -> None:
        """Leave out spare columns, for good, until a row fits."""
        for at in reversed([at for at, each in enumerate(self._columns) if each.spare]):
            if self._fits:
                return
            del self._columns[at], self._widths[at]
            for line in cells:
                del line[at]

    def _fit(self) -> None:
        while not self._fits:
            free = [index for index, column in enumerate(self._columns) if not column.width]
            widest = max(free, key=self._widths.__getitem__, default=None)
            if widest is None or self._widths[widest] <= MIN_WIDTH:
                return
            self._widths[widest] -= 1

    def _line(self, cells: Sequence[str]) -> str:
        padded = []
        for text, width, column in zip(cells, self._widths, self._columns, strict=True):
            cut = text if len(text) <= width else text[: width - 1] + "…"
            blanks = " " * (width - len(cut))
            colour = COLOURS.get(text)
            shown = typer.style(cut, fg=colour) if colour else cut
            padded.append(blanks + shown if column.width > 0 else shown + blanks)
        return GAP.join(padded).rstrip()


def cell_text(value: object) -> str:
    """Return a value as a cell. Times are ages; control characters are replaced.

    Names of users and messages are written by others, and could contain escape sequences that a
    terminal executes.
    """
    match value:
        case None | "":
            return "-"
        case datetime():
            return duration_text(datetime.now(UTC) - value)
        case timedelta():
            return duration_text(value)
        case dict():
            return ",".join(f"{name}={cell_text(each)}" for name, each in value.items()) or "-"
    text = str(value)
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else "?" for each in text)


def duration_text(duration: timedelta) -> str:
    """Return a duration as kubectl shows ages."""
    return durations.human(max(duration.total_seconds(), 0))


def show(
    rows: Sequence[T], columns: Sequence[Column[T]], output: Output, *, name: Callable[[T], str]
) -> None:
    """Print a list."""
    match output:
        case Output.NAME:
            emit(map(name, rows))
        case Output.CSV:
            emit([csv_text(rows, columns)])
        case Output.JSON | Output.YAML:
            show_data(rows, output)
        case _:
            emit(Table(columns, wide=output is Output.WIDE).lines(rows))


def show_data(value: object, output: Output) -> None:
    """Print a value as JSON or YAML, with the fields of the REST API."""
    if output is Output.YAML:
        import yaml

        typer.echo(yaml.safe_dump(msgspec.to_builtins(value), sort_keys=False).rstrip())
    else:
        typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


def show_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print one field per line, without those that are empty."""
    shown = [(name, cell_text(value)) for name, value in fields]
    shown = [(name, text) for name, text in shown if text != "-"]
    width = max((len(name) for name, _ in shown), default=0) + 1
    emit(f"{name + ':':<{width}} {text}" for name, text in shown)


def csv_text(rows: Iterable[T], columns: Sequence[Column[T]]) -> str:
    """Return the table as CSV; times are those of RFC 3339."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([each.title.lower() for each in columns])
    for row in rows:
        writer.writerow([_csv_cell(each.value(row)) for each in columns])
    return buffer.getvalue().rstrip("\n")


def _csv_cell(value: object) -> Any:
    match value:
        case datetime():
            return value.isoformat(timespec="seconds")
        case timedelta():
            return int(value.total_seconds())
        case dict():
            return ",".join(f"{name}={each}" for name, each in value.items())
    return value


def emit(lines: Iterable[str]) -> None:
    """Print lines in one write. Their colours are left out unless they go to a terminal."""
    found = list(lines)
    if found:
        typer.echo("\n".join(found))
