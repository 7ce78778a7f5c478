"""The history in both databases: records, retention, text of any kind, and several recorders."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa
from support.postgres import Postgres, postgres

from batholith.store.commands import CommandRecord, CommandStore, Outcome, timestamp
from batholith.store.database import Database
from batholith.store.history import Cursor, HistoryStore, JobFilter
from batholith.store.history_tables import JOB_EXITS
from batholith.store.migrations import MIGRATIONS
from batholith.store.recording import Batch, FencedError, OutOfStepError, Position, Recording
from batholith.store.records import JobRecord, PhaseEntry, PodRecord, Record, to_micros
from batholith.store.retention import Retention, RetentionSettings
from batholith.store.usage import UsageQuery, UsageStore
from batholith.wire.commands import CommandState

pytestmark = pytest.mark.process
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres() as started:
        yield started


@pytest.fixture(params=["sqlite", "postgresql"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    url = f"sqlite:///{tmp_path / 'api.db'}"
    if request.param == "postgresql":
        url = request.getfixturevalue("server").url
        engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
        with engine.connect() as db:
            db.execute(sa.text("DROP SCHEMA public CASCADE"))
            db.execute(sa.text("CREATE SCHEMA public"))
        engine.dispose()
    opened = Database(url, timeout=60)  # the disk of a busy machine may be slow
    await opened.migrate(MIGRATIONS)
    yield opened
    await opened.close()


def at(hours: float = 0) -> int:
    return to_micros(NOON + hours * HOUR)


def job(uid: str = "u", **fields: object) -> JobRecord:
    record = JobRecord(
        uid=uid,
        kind="jobs",
        namespace="default",
        name=f"job-{uid}",
        queue="research",
        user="ada",
        phase="Running",
        resource_version="1",
        created_at=at(),
        phases=(PhaseEntry(phase="Running", entered_at=at()),),
    )
    return msgspec.structs.replace(record, **fields)


def pod(uid: str = "p", *, job_uid: str = "u", **fields: object) -> PodRecord:
    record = PodRecord(
        uid=uid,
        job_uid=job_uid,
        kind="jobs",
        namespace="default",
        job=f"job-{job_uid}",
        requests='{"cpu":2,"example.com/gpu":1}',
        started_at=at(),
    )
    return msgspec.structs.replace(record, **fields)


async def begun(database: Database) -> Recording:
    recording = Recording(database)
    await recording.begin()
    return recording


async def write(
    recording: Recording, *records: Record, previous: str = "", position: str = "1"
) -> None:
    batch = Batch(
        resource="jobs" if isinstance(records[0], JobRecord) else "pods",
        previous=previous,
        position=position,
        observed_at=at(1),
        seen_at=at(1),
        records=records,
    )
    await recording.write(batch)


async def usage(database: Database, **fields: object) -> dict[str, list[dict[str, float]]]:
    query = UsageQuery(by="queue", start=NOON, end=NOON + 3 * HOUR, step=3600)
    series = await UsageStore(database).series(
        msgspec.structs.replace(query, **fields), now=NOON + 3 * HOUR
    )
    return {each.name: [point.resource_seconds for point in each.points] for each in series}


async def test_a_batch_is_written_once_though_it_is_repeated(database: Database) -> None:
    recording = await begun(database)
    await write(recording, job())
    ended = pod(finished=True, ended_at=at(1.5))
    for _ in range(3):
        await write(recording, ended)
    with pytest.raises(OutOfStepError):
        await write(recording, ended, previous="0", position="2")
    await write(recording, pod(deleted=True), previous="1", position="2")
    expected = [
        {"cpu": 7200, "example.com/gpu": 3600},
        {"cpu": 3600, "example.com/gpu": 1800},
    ]
    assert await usage(database) == {"research": expected}
    details = await HistoryStore(database).details("u", now=NOON)
    assert details is not None
    assert details.job.resource_seconds == {"cpu": 10800, "example.com/gpu": 5400}


async def test_running_pods_count_until_now(database: Database) -> None:
    recording = await begun(database)
    await write(recording, job())
    await write(recording, pod("p"), pod("q", started_at=at(1.5)))
    hours = [each["cpu"] for each in (await usage(database))["research"]]
    assert hours == [7200, 7200 + 3600, 14400]
    assert list(await usage(database, by="user", user="eve")) == []
    assert list(await usage(database, by="namespace", user="ada")) == ["default"]
    details = await HistoryStore(database).details("u", now=NOON + 2 * HOUR)
    assert details is not None and details.job.resource_seconds["cpu"] == 2 * 7200 + 3600


async def test_usage_is_that_of_the_account_of_the_job(database: Database) -> None:
    recording = await begun(database)
    await write(recording, job("u", account="physics"), job("v"))
    p, q = pod("p", finished=True, ended_at=at(0.5)), pod("q", job_uid="v")
    q = msgspec.structs.replace(q, finished=True, ended_at=at(0.5))
    await write(recording, p, q, pod("r"))
    found = await usage(database, by="account", end=NOON + HOUR)
    assert {name: amounts[0]["cpu"] for name, amounts in found.items()} == {
        "": 3600,
        "physics": 3600 + 7200,
    }
    assert list(await usage(database, account="none")) == []
    of_account = await usage(database, by="user", account="physics", end=NOON + HOUR)
    assert {name: amounts[0]["cpu"] for name, amounts in of_account.items()} == {"ada": 10800}
    jobs, _ = await HistoryStore(database).jobs(JobFilter(account="physics"), limit=5, now=NOON)
    assert [each.uid for each in jobs] == ["u"]


async def test_a_list_has_the_exit_codes_and_the_usage_of_its_jobs(database: Database) -> None:
    recording = await begun(database)
    jobs = [job("failed", phase="Failed"), job("done", phase="Completed"), job("new")]
    await write(recording, *jobs)
    ended = {"finished": True, "ended_at": at(1)}
    pods = [
        pod("a", job_uid="failed", exit_code=0, **ended),
        pod("b", job_uid="failed", exit_code=3, **ended),
        pod("c", job_uid="failed", exit_code=3, **ended),
        pod("e", job_uid="done", exit_code=0, **ended),
        pod("f", job_uid="done", exit_code=143, **ended),  # and created again
        pod("g", job_uid="new"),
    ]
    without_end = pod("d", job_uid="failed", deleted=True)
    await write(recording, *pods, without_end)
    for number in range(1, 3):  # delivered again
        await write(recording, *pods, previous=str(number), position=str(number + 1))
    found, _ = await HistoryStore(database).jobs(JobFilter(), limit=9, now=NOON + HOUR)
    assert {each.name: (each.exit_code, each.exit_codes) for each in found} == {
        "job-failed": (3, {"0": 1, "3": 2}),
        "job-done": (0, {"0": 1, "143": 1}),
        "job-new": (None, {}),
    }
    assert {each.name: each.resource_seconds["cpu"] / 7200 for each in found} == {
        "job-failed": 4, "job-done": 2, "job-new": 1
    }  # fmt: skip
    total = sum(each["cpu"] for each in (await usage(database, end=NOON + HOUR))["research"])
    assert sum(each.resource_seconds["cpu"] for each in found) == total


async def test_pods_that_end_before_their_job_is_known_are_counted_then(database: Database) -> None:
    recording = await begun(database)
    await write(recording, pod(finished=True, ended_at=at(1), exit_code=7))
    await write(recording, pod(deleted=True), previous="1", position="2")
    assert await usage(database) == {}
    await write(recording, job())
    assert (await usage(database))["research"][0]["cpu"] == 7200
    details = await HistoryStore(database).details("u", now=NOON)
    assert details is not None and details.job.exit_codes == {"7": 1}


async def test_a_job_that_is_never_observed_has_a_record_of_its_pods(database: Database) -> None:
    recording = await begun(database)
    await write(recording, pod(finished=True, ended_at=at(1), queue="other"))
    assert await recording.add_unknown_jobs(before=at(9), limit=10) == 0  # the pod exists
    await write(recording, pod(deleted=True), previous="1", position="2")
    assert await recording.add_unknown_jobs(before=at(0.5), limit=10) == 0
    assert await recording.add_unknown_jobs(before=at(9), limit=10) == 1
    found = await HistoryStore(database).find("u")
    assert found is not None
    assert (found.name, found.complete) == ("job-u", False)
    assert (await usage(database))["other"][0]["cpu"] == 7200


@pytest.mark.parametrize("watched", ["before the gap", "after the gap"])
@pytest.mark.parametrize(("position", "complete"), [("8", False), ("9", True), ("10", True)])
async def test_a_job_is_complete_if_the_pods_were_watched_up_to_its_end(
    database: Database, watched: str, position: str, complete: bool
) -> None:
    """Its times do not show that: here all changes of pods were received long after its end."""
    recording = await begun(database)
    ended = job(phase="Completed", finished_at=at(0.5), resource_version="9")
    annotated = job(phase="Completed", finished_at=at(0.5), resource_version="20")
    if watched == "before the gap":
        await write(recording, ended)
        await write(recording, annotated, previous="1", position="2")
    await write(recording, pod(job_uid="other"), position=position)
    last = await recording.position("pods")
    assert last is not None
    await recording.complete_list("pods", Position("30", at(2)), last=last, ended_at=at(2))
    if watched == "after the gap":
        await write(recording, ended)
    found = await HistoryStore(database).find("u")
    assert found is not None
    assert found.complete is complete


async def test_an_earlier_recorder_cannot_write(database: Database) -> None:
    first = await begun(database)
    await write(first, job())
    second = await begun(database)
    with pytest.raises(FencedError):
        await write(first, job(phase="Failed"), previous="1", position="2")
    await write(second, job(phase="Completed"), previous="1", position="2")
    found = await HistoryStore(database).find("u")
    assert found is not None and found.phase == "Completed"


async def test_two_recorders_at_the_same_time_do_not_interleave(database: Database) -> None:
    recorders = [Recording(database) for _ in range(6)]
    await asyncio.gather(*(each.begin() for each in recorders))
    results = await asyncio.gather(
        *(write(each, job()) for each in recorders), return_exceptions=True
    )
    assert sum(result is None for result in results) == 1
    assert all(result is None or isinstance(result, FencedError) for result in results)


async def test_text_of_any_kind_is_stored(database: Database) -> None:
    recording = await begun(database)
    text = "\u2028\U0001f600' OR 1=1 --" + "x" * 5000
    await write(recording, job(user=text, message=text, spec='{"a":"\\u0000"}', spec_bytes=9))
    history = HistoryStore(database)
    found = await history.details("u", now=NOON)
    assert found is not None
    assert (found.job.user, found.job.message, found.spec) == (text, text, {"a": "\0"})
    jobs, _ = await history.jobs(JobFilter(user=text), limit=5, now=NOON)
    assert [each.uid for each in jobs] == ["u"]


async def test_pages_contain_each_job_once(database: Database) -> None:
    recording = await begun(database)
    records = [
        job(str(number), phase="Completed", finished_at=at(number // 3)) for number in range(10)
    ]
    await write(recording, *records, job("running"))
    history, found = HistoryStore(database), []
    after: Cursor | None = None
    while True:
        which = JobFilter(namespace="default")
        page, after = await history.jobs(which, limit=4, now=NOON, after=after)
        found += [each.uid for each in page]
        if after is None:
            break
    assert found == ["running", *(str(number) for number in reversed(range(10)))]
    page, _ = await history.jobs(
        JobFilter(ended_to=NOON + 2 * HOUR, phases=("Completed",)), limit=9, now=NOON
    )
    assert [each.uid for each in page] == [str(number) for number in (5, 4, 3, 2, 1, 0)]


@pytest.mark.parametrize("forged", [{"namespace": "mallory"}, {"job": "another"}])
async def test_a_pod_that_names_the_uid_of_a_job_alone_is_not_billed_to_it(
    database: Database, forged: dict[str, str]
) -> None:
    """The API server stores owner references unchecked."""
    recording = await begun(database)
    early = pod("early", finished=True, ended_at=at(1), exit_code=1, **forged)
    await write(recording, early, pod("deleted", **forged), pod("running", **forged))
    await write(recording, job())
    ended = pod("deleted", deleted=True, **forged)
    await write(recording, ended, previous="1", position="2")
    history = HistoryStore(database)
    found = await history.details("u", now=NOON + 2 * HOUR)
    assert found is not None
    assert (found.job.resource_seconds, found.job.complete) == ({}, True)
    assert found.job.exit_codes == {}
    assert await usage(database) == {}
    await write(recording, pod("own", finished=True, ended_at=at(1)), previous="2", position="3")
    found = await history.details("u", now=NOON + 2 * HOUR)
    assert found is not None
    assert found.job.resource_seconds["cpu"] == 2 * 3600
    assert not await recording.add_unknown_jobs(before=at(3), limit=9)


async def test_old_rows_are_deleted_and_open_ones_kept(database: Database) -> None:
    recording = await begun(database)
    old = [
        job(f"old-{number}", finished_at=at(), deleted=True) for number in range(5)
    ]  # their deletion is observed an hour later
    await write(recording, *old, job("kept", finished_at=at()), job("running"))
    await write(recording, pod(job_uid="old-0", finished=True, ended_at=at(1), exit_code=1))
    commands = CommandStore(database)
    for number in range(4):
        record = CommandRecord(
            id=str(number),
            namespace="default",
            job="job",
            job_uid="u",
            action="AbortJob",
            who="ada",
            command=f"c-{number}",
            received_at=timestamp(NOON),
        )
        await commands.add(record)
    for number in range(3):
        outcome = Outcome(id=str(number), state=CommandState.EXECUTED, detail="", at=NOON)
        await commands.finish(outcome)
    settings = RetentionSettings(max_age=timedelta(days=1), batch=2)
    retention = Retention(database, settings)
    assert not any((await retention.delete_batch(NOON + 23 * HOUR)).values())
    numbers = []
    while any((deleted := await retention.delete_batch(NOON + 30 * HOUR)).values()):
        numbers.append((deleted["history_jobs"], deleted["commands"]))
        assert len(numbers) < 20
    assert numbers[:3] == [(2, 2), (2, 1), (1, 0)]
    jobs, _ = await HistoryStore(database).jobs(JobFilter(), limit=50, now=NOON)
    assert {each.uid for each in jobs} == {"kept", "running"}
    assert await database.read(lambda db: db.execute(sa.select(JOB_EXITS)).all()) == []
    history = await commands.history("jobs", "default", "job", limit=10)
    assert [each.id for each in history] == ["3"]
    assert await usage(database) == {}  # by hour; by day it is kept
    assert list(await usage(database, step=86400, start=NOON - 12 * HOUR)) == ["research"]


async def test_a_job_has_its_own_commands(database: Database) -> None:
    recording = await begun(database)
    await write(recording, job("u", name="train"))
    for uid in ("u", "earlier"):
        record = CommandRecord(
            id=f"of-{uid}",
            namespace="default",
            job="train",
            job_uid=uid,
            action="AbortJob",
            who="ada",
            command=f"c-{uid}",
            received_at=timestamp(NOON),
        )
        await CommandStore(database).add(record)
    details = await HistoryStore(database).details("u", now=NOON)
    assert details is not None
    assert [each.id for each in details.commands] == ["of-u"]


async def test_the_oldest_rows_beyond_the_maximum_are_deleted(database: Database) -> None:
    recording = await begun(database)
    for number in range(6):
        batch = Batch(
            resource="jobs",
            previous=str(number) if number else "",
            position=str(number + 1),
            observed_at=at(number),
            seen_at=at(number),
            records=[job(str(number), finished_at=at(), deleted=True)],
        )
        await recording.write(batch)
    retention = Retention(database, RetentionSettings(max_rows=2))
    await retention.delete_batch(NOON + 9 * HOUR)
    jobs, _ = await HistoryStore(database).jobs(JobFilter(), limit=50, now=NOON)
    assert {each.uid for each in jobs} == {"3", "4", "5"}  # those as old as the limit stay


async def test_the_timeline_is_of_the_latest_job_of_a_name(database: Database) -> None:
    recording = await begun(database)
    phases = (
        PhaseEntry(phase="Pending", entered_at=at()),
        PhaseEntry(phase="Pending", entered_at=at(0.1), reason="queued"),
        PhaseEntry(phase="Running", entered_at=at(1), reason="started"),
    )
    earlier = job("1", name="train", finished_at=at(), phase="Failed")
    latest = job(
        "2", name="train", phases=phases, tasks='[{"name":"t","replicas":2,"phases":{"Running":2}}]'
    )
    await write(recording, earlier, latest)
    found = await HistoryStore(database).timeline("default", "jobs", "train")
    assert found is not None
    assert (found.job.uid, found.pods) == ("2", {"Running": 2})
    assert [(each.phase, each.entered_at, each.left_at, each.reason) for each in found.phases] == [
        ("Pending", NOON, NOON + HOUR, "queued"),
        ("Running", NOON + HOUR, None, "started"),
    ]
    assert await HistoryStore(database).timeline("default", "batchjobs", "train") is None
