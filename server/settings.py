"""Settings: the server's knobs, and the only reader of the environment and of hamdam.toml. The engine's own knobs are engine/config.py."""
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one peer may take (protocol.md, Limits). Told to clients in `session.created.limits`."""

    frame_bytes: int = 1 << 20
    text_bytes: int = 256 << 10
    body_bytes: int = 8 << 20
    sockets_per_user: int = 32
    running_per_user: int = 2
    queued_per_user: int = 4
    queued_in_all: int = 256
    events_per_second: int = 30
    event_burst: int = 60
    rate_grace_s: float = 10.0
    upgrades_per_minute: int = 10  # unauthenticated, per address
    outgoing_frames: int = 256
    outgoing_bytes: int = 512 << 10
    slow_consumer_s: float = 10.0
    replay_s: float = 60.0  # how long an ended run can be replayed from memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    data: Path
    host: str = "127.0.0.1"
    port: int = 8000
    public_url: str | None = None  # None: the request's own host
    model: str | None = None  # None: the default model
    device: str = "auto"
    dtype: str = "auto"
    kv_memory: int = 1 << 30  # bytes
    max_context: int | None = None  # tokens
    limits: Limits = field(default_factory=Limits)
