"""Alembic's environment: runs the versions on the connection that `monitor.store.migrate` hands in."""

from __future__ import annotations

from alembic import context

from monitor.store.tables import metadata


def run() -> None:
    """Each version in a transaction of its own, so that a long upgrade holds no lock longer than one step needs."""
    connection = context.config.attributes.get("connection")
    if context.is_offline_mode():
        context.configure(dialect_name="postgresql", target_metadata=metadata, transaction_per_migration=True)
    else:
        context.configure(connection=connection, target_metadata=metadata, transaction_per_migration=True)
    with context.begin_transaction():
        context.run_migrations()


run()
