"""An index of the names of Command objects."""

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create the index."""
    op.create_index("commands_by_command", "commands", ["namespace", "command"], if_not_exists=True)
