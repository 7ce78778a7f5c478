"""Schema migrations: databases of earlier releases are upgraded, newer ones refused."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from support.postgres import Postgres, postgres

from batholith.store import history_tables, idempotency, migrations
from batholith.store.commands import METADATA, CommandStore
from batholith.store.database import Database, SchemaTooNewError
from batholith.store.migrations import HEAD, MIGRATIONS

RELEASE = Path(__file__).parents[1] / "data" / "store" / "release-0.1.0.sql"
pytestmark = pytest.mark.process
assert history_tables.JOBS.metadata is idempotency.IDEMPOTENCY_KEYS.metadata is METADATA


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres() as started:
        yield started


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'api.db'}"
    found: str = request.getfixturevalue("server").url
    engine = sa.create_engine(found, isolation_level="AUTOCOMMIT")
    with engine.connect() as db:
        db.execute(sa.text("DROP SCHEMA public CASCADE"))
        db.execute(sa.text("CREATE SCHEMA public"))
    engine.dispose()
    return found


def execute(url: str, *statements: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as db:
        for statement in statements:
            db.execute(sa.text(statement))
    engine.dispose()


def create_release(url: str) -> None:
    """Create the database of release 0.1.0."""
    script = RELEASE.read_text()
    if url.startswith("sqlite"):
        script = script.replace("BYTEA", "BLOB").replace("DOUBLE PRECISION", "DOUBLE")
    execute(url, *filter(str.strip, script.split(";\n")))


def differences(url: str) -> list[Any]:
    """What Alembic would generate to reach the tables of the code."""

    engine = sa.create_engine(url)
    with engine.connect() as db:
        context = MigrationContext.configure(db, opts={"compare_type": True})
        found: list[Any] = compare_metadata(context, METADATA)
    engine.dispose()
    return found


async def test_a_new_database_gets_the_tables_of_the_code(url: str) -> None:
    database = Database(url, timeout=60)
    await database.migrate(MIGRATIONS)
    await database.migrate(MIGRATIONS)
    await database.close()
    assert differences(url) == []


async def test_a_database_of_an_earlier_release_is_upgraded(url: str) -> None:
    create_release(url)
    database = Database(url, timeout=60)
    await database.migrate(MIGRATIONS)
    [record] = await CommandStore(database).list_open(limit=10)
    assert (record.id, record.who) == ("1", "ada")
    query = sa.select(history_tables.USAGE)
    [found] = await database.read(lambda db: db.execute(query).all())
    assert (*found,) == (3600, 7200, "research", "ada", "", "default", "cpu", 1.5, 0)
    await database.close()
    assert differences(url) == []


async def test_a_newer_database_is_refused_and_not_modified(url: str) -> None:
    execute(
        url,
        "CREATE TABLE alembic_version (version_num VARCHAR(32) PRIMARY KEY)",
        "INSERT INTO alembic_version VALUES ('0999')",
    )
    database = Database(url, timeout=60)
    with pytest.raises(SchemaTooNewError, match=r"revision 0999.*downgrades are not supported"):
        await database.migrate(MIGRATIONS)
    await database.close()
    engine = sa.create_engine(url)
    assert len(sa.inspect(engine).get_table_names()) == 1
    engine.dispose()


async def test_an_upgrade_takes_place_as_a_whole_or_not_at_all(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(RuntimeError):
        pass

    def interrupt(*_: object, **__: object) -> None:
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(migrations.ALEMBIC_VERSION, "create", interrupt)
        database = Database(url, timeout=60)
        with pytest.raises(KilledError):
            await database.migrate(MIGRATIONS)
        await database.close()
    engine = sa.create_engine(url)
    assert sa.inspect(engine).get_table_names() == []
    engine.dispose()
    database = Database(url, timeout=60)
    await database.migrate(MIGRATIONS)
    await database.close()


async def test_replicas_migrate_at_the_same_time(url: str) -> None:
    create_release(url)
    replicas = [Database(url, timeout=60) for _ in range(8)]
    await asyncio.gather(*(replica.migrate(MIGRATIONS) for replica in replicas))
    for replica in replicas:
        assert len(await CommandStore(replica).list_open(limit=10)) == 1
        await replica.close()


def test_the_revisions_are_one_sequence_that_ends_with_the_head() -> None:
    config = Config()
    directory = Path(migrations.__file__).parent / "alembic"
    config.set_main_option("script_location", str(directory))
    config.set_main_option("path_separator", "os")
    script = ScriptDirectory.from_config(config)
    found = [each.revision for each in script.walk_revisions()][::-1]
    assert found == [f"{number:04}" for number in range(5, len(found) + 5)]
    assert found[-1] == HEAD
    files = {path.stem for path in (directory / "versions").glob("r*.py")}
    assert {name[1:5] for name in files} == set(found)
