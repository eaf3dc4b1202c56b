"""The engine's front door: everything that `hamdam.server` may use of it. Importing it imports no torch."""
from .chat import ROLES, Chat, ChatMessage, Owner
from .config import BLOCK_SIZE, EngineConfig
from .engine import Engine
from .errors import (
    EngineError,
    EngineStopped,
    InvalidField,
    ModelError,
    PromptTooLong,
    QueueFull,
    Refusal,
    SequenceFailed,
    TooManyInFlight,
)
from .events import EngineStats, Event, Finished, Prefilled, Queued, Started, Text, Timings, Usage
from .generation import Generation
from .opening import open_engine
from .policy.sampling_params import SamplingParams

__all__ = [
    "BLOCK_SIZE",
    "ROLES",
    "Chat",
    "ChatMessage",
    "Engine",
    "EngineConfig",
    "EngineError",
    "EngineStats",
    "EngineStopped",
    "Event",
    "Finished",
    "Generation",
    "InvalidField",
    "ModelError",
    "Owner",
    "Prefilled",
    "PromptTooLong",
    "QueueFull",
    "Queued",
    "Refusal",
    "SamplingParams",
    "SequenceFailed",
    "Started",
    "Text",
    "Timings",
    "TooManyInFlight",
    "Usage",
    "open_engine",
]
