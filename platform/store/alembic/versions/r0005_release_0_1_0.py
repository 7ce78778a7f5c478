"""The tables of release 0.1.0, the first one: no database is older."""

revision = "0005"
down_revision = None


def upgrade() -> None:
    """Change nothing: an empty database gets the current tables without revisions."""
