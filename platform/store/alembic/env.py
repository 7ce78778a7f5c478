"""Alembic's environment: runs the revisions on the connection that the caller provides.

The caller holds the lock and commits, so that an upgrade is atomic.
"""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
with context.begin_transaction():
    context.run_migrations()
