"""How Alembic reaches the database: on the server's own connection. It holds no step; those are in versions/.

A developer gives a file instead: `alembic -x database=FILE revision --autogenerate`.
"""
from alembic import context
from sqlalchemy import create_engine
from sqlalchemy.engine import Connection

from hamdam.server.storage.tables import Table


def run(connection: Connection) -> None:
    # Batch: SQLite changes a table by building it anew. The transaction is the caller's.
    context.configure(connection=connection, target_metadata=Table.metadata, render_as_batch=True)
    context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    engine = create_engine(f"sqlite:///{context.get_x_argument(as_dictionary=True)['database']}")
    with engine.begin() as own:
        run(own)
