"""check_model: what a model is, and whether and how it will run here, by its headers. It loads no weights."""
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .config import BLOCK_SIZE, EngineConfig
from .errors import ModelError
from .execution.holding import hold_of
from .execution.kv_cache import blocks_that_fit, bytes_per_block, context_limit, kv_dtype, memory_on_cpu, no_more_than
from .execution.runners import Choice, choose
from .loading.checkpoint import Checkpoint, open_checkpoint
from .loading.contents import EXPERT
from .memory import Memory, memory_here

BYTES = {"float32": 4, "bfloat16": 2}
ROUNDED = {"int8": 1.0, "fp8": 1.0, "int4": 0.625}  # bytes of a number of a layer's matrix, with its share of scales
LENGTHS = (2_048, 8_192, 32_768, 131_072)  # tokens of conversations that are counted, besides the longest
BESIDE = 300 << 20  # bytes that a server takes beside weights and KV, about


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What the files say. `formats`: the share of all parameters that each of the files' own types holds."""

    name: str
    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    parameters: int
    formats: Mapping[str, float]
    file_bytes: int
    max_context: int  # tokens it was trained for
    tokenizer: str
    vocabulary: int
    has_template: bool
    ends: Mapping[int, str]  # every id that ends an answer, with its name


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """How many conversations of so many tokens have their KV in memory at a time."""

    tokens: int
    as_set: int  # in the KV memory that a server would take
    at_most: int  # in all the memory that is free beside weights and process


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFit:
    """What the model takes on this machine; bytes."""

    path: str  # what computes, in words
    dtype: str
    slower: str | None  # why it is not native code, where that could have been
    weights: Mapping[str, int]  # as they will be kept, and then as others of a dtype would be
    kv_dtype: str
    kv_per_token: int
    kv_memory: int
    context: int  # tokens that a conversation may have
    rooms: tuple[Room, ...]
    memory: Memory
    needed: int  # with room for one conversation


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCheck:
    """`why_not`: one line where the model will not run here. `facts` and `fit`: as far as they could be found out."""

    path: str
    why_not: str | None
    facts: ModelFacts | None = None
    fit: ModelFit | None = None


def check_model(config: EngineConfig) -> ModelCheck:
    """Never raises for what a file holds, whatever it is."""
    facts = None
    try:
        checkpoint = open_checkpoint(config.model)
        facts = _facts(config.model, checkpoint)
        fit = _fit(checkpoint, config)
    except ModelError as error:
        return ModelCheck(path=str(config.model), why_not=str(error), facts=facts)
    except OSError as error:
        return ModelCheck(path=str(config.model), why_not=f"{config.model}: {error.strerror or error}", facts=facts)
    return ModelCheck(path=str(config.model), why_not=_too_little(fit), facts=facts, fit=fit)


def _facts(path: Path, checkpoint: Checkpoint) -> ModelFacts:
    model, shapes = checkpoint.config, checkpoint.weights.shapes
    codec = checkpoint.codec()
    held = Counter[str]()
    for name, kind in checkpoint.weights.formats.items():
        held[kind] += math.prod(shapes[name])
    parameters = held.total()
    return ModelFacts(
        name=checkpoint.name,
        architecture=model.architecture,
        layers=model.num_layers,
        hidden=model.hidden_size,
        heads=model.num_heads,
        kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        parameters=parameters,
        formats={kind: count / parameters for kind, count in held.most_common()},
        file_bytes=sum(file.stat().st_size for file in _files(path)),
        max_context=model.max_context,
        tokenizer=type(checkpoint.tokenizer.model).__name__,
        vocabulary=codec.vocab_size,
        has_template=checkpoint.chat_template is not None,
        ends={id: checkpoint.tokenizer.id_to_token(id) or "" for id in sorted(checkpoint.eos_ids)},
    )


def _files(path: Path) -> list[Path]:
    """Those with weights."""
    return [path] if path.is_file() else [*path.glob("*.safetensors")] or [*path.glob("*.gguf")]


def _fit(checkpoint: Checkpoint, config: EngineConfig) -> ModelFit:
    model, choice = checkpoint.config, choose(checkpoint.config, config)
    context = context_limit(config, model)
    weights = _weights(checkpoint, config, choice)
    memory = _memory_of_gpu() if choice.device == "cuda" else memory_here()
    taken = next(iter(weights.values())) + (BESIDE if choice.device == "cpu" else 0)
    if choice.device == "cpu":
        kv_memory = memory_on_cpu(config)
    elif config.kv_memory is not None:
        kv_memory = no_more_than(memory.total, config.kv_memory)
    else:
        kv_memory = max(0, int(config.gpu_memory * memory.total) - (memory.total - memory.free) - taken)
    kept = kv_dtype(config, choice.dtype)
    block, blocks = bytes_per_block(model, kept), blocks_that_fit(kv_memory, model, kept)
    at_most = max(0, memory.free - taken) // block
    longest = min(context, blocks * BLOCK_SIZE + 1)
    lengths = [*(length for length in LENGTHS if length < context), context]
    return ModelFit(
        path=_words(choice),
        dtype=choice.dtype,
        slower=choice.slower,
        weights=weights,
        kv_dtype=kept,
        kv_per_token=block // BLOCK_SIZE,
        kv_memory=kv_memory,
        context=longest,
        rooms=tuple(
            Room(tokens=length, as_set=blocks // -(-length // BLOCK_SIZE), at_most=at_most // -(-length // BLOCK_SIZE))
            for length in lengths
        ),
        memory=memory,
        needed=taken + block * -(-min(LENGTHS[0], longest) // BLOCK_SIZE),
    )


def _weights(checkpoint: Checkpoint, config: EngineConfig, choice: Choice) -> dict[str, int]:
    """As they will be kept comes first."""
    shapes = checkpoint.weights.shapes
    plain = {dtype: size * sum(map(math.prod, shapes.values())) for dtype, size in BYTES.items()}
    formats = checkpoint.quantised()
    if choice.native:
        from .execution.packed_weights import packed_bytes  # needs numba, as the path does that was chosen

        return {choice.dtype: packed_bytes(checkpoint)} | plain
    if config.quantize is not None:
        if formats:
            raise ModelError(f"quantize {config.quantize} is for plain weights, and these are {' and '.join(formats)}")
        each = ROUNDED[config.quantize]
        size = sum(
            math.prod(shape) * (each if name.endswith("_proj.weight") else BYTES[choice.dtype])
            for name, shape in shapes.items()
        )
        return {f"{choice.dtype}, rounded to {config.quantize}": int(size)} | plain
    if formats and choice.device == "cuda" and choice.dtype == "bfloat16":
        return {"stored": sum(file.stat().st_size for file in _files(config.model))} | plain
    held = checkpoint.held(hold_of(config, choice.device))
    if held:
        rest = sum(math.prod(shape) for name, shape in shapes.items() if name not in held)
        what = "experts as stored" if all(EXPERT in name for name in held) else "matrices as stored"
        return {f"{choice.dtype}, {what}": sum(held.values()) + rest * BYTES[choice.dtype]} | plain
    return {choice.dtype: plain[choice.dtype]} | plain


def _words(choice: Choice) -> str:
    if choice.native:
        return f"native code on the CPU, {choice.dtype}"
    return f"PyTorch on the {'GPU' if choice.device == 'cuda' else 'CPU'}, {choice.dtype}"


def _memory_of_gpu() -> Memory:
    from .execution.gpu_memory import free_and_total  # PyTorch, only where a GPU was chosen

    free, total = free_and_total()
    return Memory(total, free)


def _too_little(fit: ModelFit) -> str | None:
    needed, total, free = (number / 1e9 for number in (fit.needed, fit.memory.total, fit.memory.free))
    if not fit.memory.total or fit.needed <= fit.memory.free:
        return None
    if fit.needed > fit.memory.total:
        return f"it needs {needed:.1f} GB of memory, and there are {total:.1f} GB"
    return f"it needs {needed:.1f} GB of memory, and of {total:.1f} GB only {free:.1f} are free"
