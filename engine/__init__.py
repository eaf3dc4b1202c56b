"""The engine's front door: everything that `hamdam.server` may use of it. Importing it imports no torch."""
from .bench.compiling import compile_native
from .bench.driver import BenchError, Driver, Repeat
from .bench.engine_bench import Measured, Point, Skipped, measure, open_driver
from .bench.kernel_bench import measure_kernels
from .bench.machine import Machine, this_machine
from .bench.operation import Ceiling, KernelPoint
from .bench.pairing import PAIRS, Figure, Ratio, ratios
from .bench.phases import Phases
from .bench.spread import Spread
from .bench.workload import BATCHES, CONTEXTS, PROMPTS, REPEATS, STEPS, Workload, workloads
from .chat import ROLES, Chat, ChatMessage, Owner, Tool, ToolCall
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
from .events import (
    Called,
    EngineStats,
    Event,
    Finished,
    Prefilled,
    PromptLogprobs,
    Queued,
    Reasoning,
    Started,
    Text,
    Timings,
    TokenLogprob,
    Usage,
)
from .generation import Generation
from .memory import Memory
from .model_check import ModelCheck, ModelFacts, ModelFit, Room, check_model
from .opening import open_engine
from .policy.sampling_params import SamplingParams
from .policy.sampling_schema import SAMPLING_SCHEMA

__all__ = [
    "BATCHES",
    "BLOCK_SIZE",
    "CONTEXTS",
    "PAIRS",
    "PROMPTS",
    "REPEATS",
    "ROLES",
    "SAMPLING_SCHEMA",
    "STEPS",
    "BenchError",
    "Called",
    "Ceiling",
    "Chat",
    "ChatMessage",
    "Driver",
    "Engine",
    "EngineConfig",
    "EngineError",
    "EngineStats",
    "EngineStopped",
    "Event",
    "Figure",
    "Finished",
    "Generation",
    "InvalidField",
    "KernelPoint",
    "Machine",
    "Measured",
    "Memory",
    "ModelCheck",
    "ModelError",
    "ModelFacts",
    "ModelFit",
    "Owner",
    "Phases",
    "Point",
    "Prefilled",
    "PromptLogprobs",
    "PromptTooLong",
    "QueueFull",
    "Queued",
    "Ratio",
    "Reasoning",
    "Refusal",
    "Repeat",
    "Room",
    "SamplingParams",
    "SequenceFailed",
    "Skipped",
    "Spread",
    "Started",
    "Text",
    "Timings",
    "TokenLogprob",
    "TooManyInFlight",
    "Tool",
    "ToolCall",
    "Usage",
    "Workload",
    "check_model",
    "compile_native",
    "measure",
    "measure_kernels",
    "open_driver",
    "open_engine",
    "ratios",
    "this_machine",
    "workloads",
]
