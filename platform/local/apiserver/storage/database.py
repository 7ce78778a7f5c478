"""Tables of the store, defined with SQLAlchemy."""

from pathlib import Path

from sqlalchemy import (
    BigInteger,
    Column,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    create_engine,
)

_PAGE_SIZE = 8192
_metadata = MetaData()
_objects = Table(
    "objects",
    _metadata,
    Column("grp", Text, primary_key=True),
    Column("plural", Text, primary_key=True),
    Column("ns", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("rv", BigInteger, nullable=False),
    Column("data", LargeBinary, nullable=False),
)
_log = Table(
    "log",
    _metadata,
    Column("rv", Integer, primary_key=True),
    Column("grp", Text, nullable=False),
    Column("plural", Text, nullable=False),
    Column("ns", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("data", LargeBinary, nullable=False),
)
_meta = Table(
    "meta",
    _metadata,
    Column("key", Text, primary_key=True),
    Column("value", BigInteger, nullable=False),
)


def create(path: Path) -> None:
    """Create a database with empty tables at *path*, atomically."""
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    engine = create_engine(f"sqlite:///{draft}")
    with engine.begin() as connection:
        # Objects of some kilobytes fit these pages, which halves the time of a write.
        connection.exec_driver_sql(f"PRAGMA page_size={_PAGE_SIZE}")
        _metadata.create_all(connection)
    engine.dispose()
    draft.chmod(0o600)
    draft.replace(path)
