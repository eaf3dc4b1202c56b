"""The tables, as SQLAlchemy classes. Rows only: who may read them the queries decide, which all start from a user.

Times are whole microseconds since 1970 in UTC (integers sort and compare the same everywhere). JSON columns are text.
"""
from typing import Any

from sqlalchemy import JSON, ForeignKey, Index, LargeBinary, MetaData, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


class Table(DeclarativeBase):
    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {dict[str, Any]: JSON, list[Any]: JSON}  # noqa: RUF012  (SQLAlchemy reads it from the class)


class User(Table):
    """`name_key` is the one folded spelling that sign-up, sign-in and reset look names up by.

    role: admin | member. state: active | disabled.
    """

    __tablename__ = "users"
    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    name_key: Mapped[str] = mapped_column(unique=True)
    password_hash: Mapped[str | None]
    role: Mapped[str] = mapped_column(default="member")
    state: Mapped[str] = mapped_column(default="active")
    settings: Mapped[dict[str, Any]] = mapped_column(default=dict)
    created_at: Mapped[int]


class SetupLink(Table):
    """The one-time link that makes the first admin (people/setup_link.py): at most one row."""

    __tablename__ = "setup_links"
    secret_hash: Mapped[str] = mapped_column(primary_key=True)
    created_at: Mapped[int]


class Login(Table):
    """A sign-in of a browser. Only the hash of its secret is kept."""

    __tablename__ = "logins"
    id: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    secret_hash: Mapped[str] = mapped_column(unique=True)
    created_at: Mapped[int]
    last_used_at: Mapped[int]
    expires_at: Mapped[int]
    agent: Mapped[str] = mapped_column(default="")


class ApiKey(Table):
    """`prefix` is what a person may see of a key later. `service` keys speak for many people."""

    __tablename__ = "api_keys"
    id: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), index=True)
    prefix: Mapped[str]
    hash: Mapped[str] = mapped_column(unique=True)
    label: Mapped[str] = mapped_column(default="")
    service: Mapped[bool] = mapped_column(default=False)
    scopes: Mapped[list[Any]] = mapped_column(default=list)
    created_at: Mapped[int]
    expires_at: Mapped[int | None]
    last_used_at: Mapped[int | None]
    revoked_at: Mapped[int | None]


class Conversation(Table):
    """title_source: none | auto | user. `revision` grows with every change a list of conversations shows.

    `deleted_at` stays empty: what is deleted is gone.
    """

    __tablename__ = "conversations"
    __table_args__ = (Index("ix_conversations_user_id_updated_at", "user_id", "updated_at"),)
    id: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    title: Mapped[str] = mapped_column(default="")
    title_source: Mapped[str] = mapped_column(default="none")
    model: Mapped[str] = mapped_column(default="default")
    settings: Mapped[dict[str, Any]] = mapped_column(default=dict)
    active_leaf_id: Mapped[str | None]
    revision: Mapped[int] = mapped_column(default=1)
    created_at: Mapped[int]
    updated_at: Mapped[int]
    archived_at: Mapped[int | None]
    pinned_at: Mapped[int | None]
    deleted_at: Mapped[int | None]


class Message(Table):
    """One node of a conversation's tree; `parent_id` never changes. role: user | assistant | system | tool.

    status: in_progress | completed | incomplete | cancelled | failed | interrupted (a question is completed at once).
    `token_ids` are the answer's sampled ids, little-endian uint32, under `ids_fingerprint`. `response_id` is the run
    that wrote it last, `last_sequence` the number of that run's last event.
    """

    __tablename__ = "messages"
    __table_args__ = (
        UniqueConstraint("user_id", "client_id"),
        Index("ix_messages_conversation_id_created_at", "conversation_id", "created_at"),
    )
    id: Mapped[str] = mapped_column(primary_key=True)
    # Here too, because `client_id` is unique per user.
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    conversation_id: Mapped[str] = mapped_column(ForeignKey("conversations.id", ondelete="CASCADE"))
    parent_id: Mapped[str | None] = mapped_column(ForeignKey("messages.id", ondelete="CASCADE"), index=True)
    role: Mapped[str]
    status: Mapped[str] = mapped_column(index=True)
    parts: Mapped[list[Any]] = mapped_column(default=list)
    text: Mapped[str] = mapped_column(default="")
    model: Mapped[str | None]
    finish_reason: Mapped[str | None]
    error: Mapped[dict[str, Any] | None]
    usage: Mapped[dict[str, Any] | None]
    timings: Mapped[dict[str, Any] | None]
    token_ids: Mapped[bytes | None] = mapped_column(LargeBinary)
    ids_fingerprint: Mapped[str | None]
    response_id: Mapped[str | None] = mapped_column(unique=True)
    client_id: Mapped[str | None]
    last_sequence: Mapped[int] = mapped_column(default=0)
    created_at: Mapped[int]


class AuditEntry(Table):
    """Appended to, never changed. `detail` never holds what people write."""

    __tablename__ = "audit"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    at: Mapped[int] = mapped_column(index=True)
    actor_id: Mapped[str | None]
    address: Mapped[str | None]
    action: Mapped[str]
    target: Mapped[str | None]
    detail: Mapped[dict[str, Any]] = mapped_column(default=dict)
