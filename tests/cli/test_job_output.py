"""Tables, CSV and times of the commands for jobs."""

import io
import json
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from batholith.cli.command_table import TABLE, Kind, command_function
from batholith.cli.jobs import listing
from batholith.cli.jobs.commands import jobs
from batholith.cli.jobs.connection import CONNECTION, RetryNotice, on_cluster, parse_since
from batholith.cli.jobs.output import Column, Output, Table, cell_text, show
from batholith.cli.jobs.record_fields import record_columns
from batholith.cli.jobs.views import POD_COLUMNS, QUEUE_COLUMNS, iso, job_columns, start_text
from batholith.cli.jobs.waits import competition_lines
from batholith.client import Client, JobSummary, UnavailableError
from batholith.wire.history import RecordedJob
from batholith.wire.jobs import Explanation, PlannedStart, PodSummary
from batholith.wire.problem import Problem
from batholith.wire.queues import Queue
from batholith.wire.waits import Competition, FreeAmount, JobAhead, JobHolder, OtherJob

ROWS = [("train-with-a-long-name-of-forty-characters", "Running"), ("b", "Failed")]
COLUMNS = [
    Column[tuple[str, str]]("NAME", lambda row: row[0]),
    Column[tuple[str, str]]("PHASE", lambda row: row[1]),
    Column[tuple[str, str]]("MORE", lambda row: "x" * 80, wide=True),
]
NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "30")


@pytest.mark.usefixtures("terminal")
def test_a_table_is_cut_to_the_width_of_the_terminal() -> None:
    lines = Table(COLUMNS).lines(ROWS)
    plain = [each.replace("\x1b[32m", "").replace("\x1b[31m", "") for each in lines]
    plain = [each.replace("\x1b[0m", "") for each in plain]
    assert max(map(len, plain)) == 30
    assert plain[1].startswith("train-with-a-long-na…  Running")


def test_retries_are_announced_once_if_they_take_long(capsys: pytest.CaptureFixture[str]) -> None:
    now = 100.0
    notice = RetryNotice(lambda: now)
    failure = UnavailableError(Problem(status=503, title="t", detail="no\x1b database"))
    text = "batholith: the REST API is not available: no database; trying again\n"
    notice(failure, 0.2)
    now += 0.2
    notice(failure, 0.4)
    assert capsys.readouterr().err == ""
    now += 0.4
    notice(failure, 0.8)
    assert capsys.readouterr().err == text
    notice(failure, 5.0)
    assert capsys.readouterr().err == ""
    now += 100
    notice(failure, 0.2)
    assert capsys.readouterr().err == ""
    notice(failure, 5.0)
    assert capsys.readouterr().err == text


def test_a_wait_is_shown_with_what_the_job_competes_with() -> None:
    competition = Competition(
        position=14,
        waiting=20,
        ahead=[
            JobAhead(
                job=OtherJob(namespace="ml", kind="jobs", name="a"),
                requests={"nvidia.com/gpu": "8"},
            ),
            JobAhead(requests={"cpu": "4", "memory": "8Gi"}),
        ],
        free=[
            FreeAmount(resource="cpu", asked="16", free="4", total="64", queue="gpu"),
            FreeAmount(
                resource="cpu", asked="16", free="10", total="96",
                group="a100", nodes=4, usable=3, largest="6",
            ),
            FreeAmount(resource="cpu", asked="16", free="0", total="0", nodes=1, largest="0"),
        ],
        holders=[
            JobHolder(
                job=OtherJob(namespace="ml", kind="pytorchjobs", name="b"),
                held={"cpu": "32"},
                nodes=2,
                until=NOW,
                basis="limit",
            ),
            JobHolder(held={"cpu": "8"}, nodes=1),
        ],
        more_holders=3,
    )  # fmt: skip
    until = iso(NOW)
    assert list(competition_lines(competition)) == [
        "",
        "RESOURCE  ASKED  FREE  OF  WHERE",
        "cpu       16     4     64  queue gpu",
        "cpu       16     10    96  nodes a100: 3 of 4 usable, at most 6 on one",
        "cpu       16     0     0   nodes: 0 of 1 usable, at most 0 on one",
        "",
        "Before it in its queue:",
        "JOB                         ASKED",
        "ml/a                        8 nvidia.com/gpu",
        "a job of another namespace  4 cpu, 8Gi memory",
        "and 11 more",
        "",
        "Who holds what it lacks:",
        "JOB                         HOLDS   NODES  UNTIL",
        f"ml/pytorchjobs/b            32 cpu  2      {until} (by limit)",
        "a job of another namespace  8 cpu   1      not known",
        "and 3 more",
    ]


def test_a_start_that_waits_for_unknown_ends_has_no_time() -> None:
    """The earliest time is that of the estimate, which has passed when it is read."""
    job, uid = JobSummary(namespace="ns", name="j", uid="0" * 36), "0" * 36
    cells = {
        basis: [
            column.value(job)
            for start in [PlannedStart(earliest=NOW, expected=expected, basis=basis)]
            for column in job_columns({uid: Explanation(start=start)}, all_namespaces=False)
            if column.title == "START"
        ]
        for basis, expected in (("limits", LATER), ("predictions", None), ("unknown", None))
    }
    assert cells == {"limits": [iso(LATER)], "predictions": [iso(NOW)], "unknown": [None]}
    unknown = PlannedStart(earliest=NOW, basis="unknown")
    assert start_text(unknown) == "not known: it waits for jobs whose end is not known"


LONG = "x" * 60
AGE = datetime(2020, 1, 1, tzinfo=UTC)
LONG_ROWS: dict[str, tuple[list[Column[Any]], object]] = {
    "jobs": (
        job_columns({}, all_namespaces=True),
        JobSummary(
            namespace=LONG, name=LONG, kind="pytorchjobs", queue=LONG, phase="Terminating",
            running=10_000, replicas=10_000, created_at=AGE, user=LONG,
        ),
    ),
    "history": (
        record_columns(all_namespaces=True),
        RecordedJob(
            uid=LONG, namespace=LONG, name=LONG, kind="pytorchjobs", queue=LONG, user=LONG,
            phase="Terminating", exit_code=137, created_at=AGE, started_at=AGE,
        ),
    ),
    "queues": (
        QUEUE_COLUMNS,
        Queue(
            name=LONG, state="Closing", parent=LONG, weight=100, allocated={"cpu": LONG},
            capability={"cpu": LONG}, created_at=AGE,
        ),
    ),
    "pods": (
        POD_COLUMNS,
        PodSummary(
            name=LONG, task=LONG, phase="Succeeded", exit_code=137, restarts=1000, node=LONG
        ),
    ),
}  # fmt: skip


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("name", LONG_ROWS)
def test_each_list_fits_sixty_columns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    columns, row = LONG_ROWS[name]
    lines = [re.sub(r"\x1b\[\d+m", "", line) for line in Table(columns).lines([row])]
    assert max(map(len, lines)) <= 60, lines


@pytest.mark.usefixtures("terminal")
def test_a_wide_table_is_not_cut() -> None:
    lines = Table(COLUMNS, wide=True).lines(ROWS)
    assert "x" * 80 in lines[1]
    assert ROWS[0][0] in lines[1]


def test_without_a_terminal_nothing_is_cut_or_coloured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    show(ROWS, COLUMNS, Output.TABLE, name=str)
    out = capsys.readouterr().out
    assert ROWS[0][0] in out
    assert "\x1b" not in out


@pytest.mark.usefixtures("terminal")
def test_spare_columns_are_left_out_before_names_are_cut() -> None:
    columns = [
        Column[str]("NAME", lambda row: row),
        Column[str]("KIND", lambda row: "k" * 8, spare=True),
        Column[str]("PHASE", lambda row: "Waiting"),
        Column[str]("USER", lambda row: "u" * 8, spare=True),
    ]
    table = Table(columns)
    assert table.lines(["a" * 10]) == [
        "NAME        KIND      PHASE",
        "aaaaaaaaaa  kkkkkkkk  Waiting",
    ]
    (line,) = table.lines(["a" * 20], header=False)  # as of a watch, whose columns stay
    assert line == "aaaaaaaaaa…  kkkkkkkk  Waiting"
    assert Table(columns).lines(["a" * 20]) == [f"{'NAME':<20}  PHASE", f"{'a' * 20}  Waiting"]
    assert Table(columns, wide=True).header() == "NAME  KIND  PHASE  USER"


def test_columns_keep_their_width_while_rows_are_added() -> None:
    table = Table(COLUMNS)
    first = table.lines(ROWS[:1])[1]
    (second,) = table.lines(ROWS[1:], header=False)
    assert first.index("  \x1b[32mRunning") == second.index("  \x1b[31mFailed")


def test_control_characters_of_others_do_not_reach_the_terminal() -> None:
    assert cell_text("a\x1b[2Jb\nc") == "a?[2Jb?c"
    assert cell_text({"k": "\x1b"}) == "k=?"


def test_csv_has_all_columns_and_complete_times(capsys: pytest.CaptureFixture[str]) -> None:
    columns = [*COLUMNS[:1], Column[tuple[str, str]]("AT", lambda _: NOW, wide=True)]
    show([('a,"b"', "Running")], columns, Output.CSV, name=str)
    assert capsys.readouterr().out == 'name,at\n"a,""b""",2025-03-01T12:00:00+00:00\n'


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(seconds=119), "119s"),
        (timedelta(seconds=120), "2m"),
        (timedelta(hours=5), "5h"),
        (timedelta(days=3), "3d"),
        (timedelta(seconds=-4), "0s"),
    ],
)
def test_durations_are_shown_as_kubectl_does(duration: timedelta, text: str) -> None:
    assert cell_text(duration) == text


def test_since_is_a_duration_or_a_date() -> None:
    assert parse_since("90m", NOW) == NOW - timedelta(minutes=90)
    assert parse_since("7d", NOW) == NOW - timedelta(days=7)
    assert parse_since("2025-01-31T10:00:00+00:00", NOW) == datetime(2025, 1, 31, 10, tzinfo=UTC)
    for text in ("", "7", "7w", "-1h", "yesterday"):
        with pytest.raises(ValueError, match="--since"):
            parse_since(text, NOW)


def test_each_command_has_the_options_that_choose_the_cluster() -> None:
    names = {each.name for each in CONNECTION}
    for row in TABLE:
        if row.kind not in (Kind.JOBS, Kind.PROGRAM):
            continue
        annotations = on_cluster(command_function(row)).__annotations__
        assert names <= set(annotations), row.name
        assert "client" not in annotations


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client whose watch reports that a job was added and deleted, and one of another user."""
    first = JobSummary(namespace="n", name="train", phase="Pending", user="ann")
    other = JobSummary(namespace="n", name="other", user="bob")
    changes = [("added", first), ("added", other), ("deleted", first)]
    monkeypatch.setattr(listing, "watch_jobs", lambda *_, **__: iter(changes))
    with Client("http://127.0.0.1:1", token="t") as found:
        yield found


def test_a_list_is_printed_in_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    flushes: list[str] = []
    monkeypatch.setattr(written, "flush", lambda: flushes.append(written.getvalue()))
    monkeypatch.setattr(sys, "stdout", written)
    show(ROWS * 500, COLUMNS, Output.TABLE, name=str)
    assert written.getvalue().count("\n") == 1 + len(ROWS) * 500
    assert flushes == [written.getvalue()]


def test_watching_prints_one_row_for_each_change(
    client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs(client, watch=True, user="ann")
    header, added, deleted = capsys.readouterr().out.splitlines()
    assert header.split()[0] == "NAME"
    assert added.split()[:4] == ["train", "jobs", "-", "Pending"]
    assert deleted == f"{added}  (deleted)"


def test_watching_as_json_prints_one_line_for_each_change(
    client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs(client, watch=True, output=Output.JSON)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = [(each["type"], each["object"]["name"]) for each in lines]
    assert found == [("added", "train"), ("added", "other"), ("deleted", "train")]


def test_watching_refuses_an_order(client: Client) -> None:
    with pytest.raises(ValueError, match="--sort"):
        jobs(client, watch=True, sort="-created")
