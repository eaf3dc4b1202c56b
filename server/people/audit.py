"""The audit log: who did what to whom, appended in the deed's own transaction. It never holds what people write."""
from sqlalchemy.ext.asyncio import AsyncSession

from ..storage.clock import now_us
from ..storage.tables import AuditEntry


def record(
    sql: AsyncSession,
    action: str,
    *,
    actor_id: str | None = None,
    address: str | None = None,
    target: str | None = None,
    **detail: str | int | bool,
) -> None:
    """`actor_id` None: the `hamdam` command on the machine itself, or somebody who is not signed in."""
    sql.add(
        AuditEntry(at=now_us(), actor_id=actor_id, address=address, action=action, target=target, detail=dict(detail))
    )
