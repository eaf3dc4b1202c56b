"""Quantization: what config.json says about quantised weights, checked before any of them is read. It reads no tensor.

AWQ, GPTQ, compressed-tensors, FP8, MXFP4. Nothing that is said is passed over: what we do not do is refused by name.
Sources: the configs that AutoAWQ, GPTQModel, llm-compressor and the makers of FP8 models write beside their files.
"""
from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import ModelError
from .json_object import JsonObject

LARGEST_GROUP = 1 << 20


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a matrix [out, in] may be stored.

    layout: the tensors that it is made of: "awq", "gptq", "packed" (compressed-tensors' words) or "bytes".
    floating: its numbers are float8_e4m3fn; else they are whole.
    group: inputs that share a scale; None: a row has one, or the whole matrix.
    block: outputs and inputs that share one; None: no such blocks.
    symmetric: zero is the middle of the numbers.
    raised: what a stored zero is less than the real one (GPTQ's first format: 1).
    """

    name: str  # what the format is called
    layout: str
    bits: int
    floating: bool = False
    group: int | None = None
    block: tuple[int, int] | None = None
    symmetric: bool = True
    raised: int = 0


@dataclass(frozen=True, slots=True)
class Quantization:
    """schemes: a matrix is stored in one of them, or as plain numbers. plain: modules that are said to be plain."""

    source: str
    schemes: tuple[Scheme, ...]
    plain: tuple[str, ...]

    def says_plain(self, module: str) -> bool:
        return any(f".{name}." in f".{module}." for name in self.plain)


def quantization(config: JsonObject) -> Quantization | None:
    """None where config.json says nothing of it. ModelError names what is not supported."""
    said = config.object("quantization_config") or config.object("compression_config")  # as it was called once
    if not said:
        return None
    method = said.need("quant_method", str)
    if method not in _METHODS:
        known = f"(supported: {', '.join(_METHODS)})"
        raise ModelError(f"{config.source}: weights quantised with {method[:80]!r} are not supported {known}")
    schemes, plain = _METHODS[method](said)
    return Quantization(said.source, schemes, plain)


Found = tuple[tuple[Scheme, ...], tuple[str, ...]]


def _awq(said: JsonObject) -> Found:
    bits = _one_of(said, "bits", (4,))
    version = (said.find("version", str) or "gemm").lower()
    if version != "gemm":
        raise ModelError(f"{said.source}: version {version[:40]!r} is not supported (supported: gemm)")
    if said.find("zero_point", bool) is False:
        raise ModelError(f"{said.source}: zero_point false is not supported")
    scheme = Scheme("AWQ", "awq", bits, group=_group(said), symmetric=False)
    return (scheme,), _names(said, "modules_to_not_convert")


def _gptq(said: JsonObject) -> Found:
    bits = _one_of(said, "bits", (2, 3, 4, 8))
    form = said.find("checkpoint_format", str) or "gptq"
    if form not in ("gptq", "gptq_v2"):
        raise ModelError(f"{said.source}: checkpoint_format {form[:40]!r} is not supported (supported: gptq, gptq_v2)")
    if said.find("is_marlin_format", bool):
        raise ModelError(f"{said.source}: is_marlin_format is not supported")
    if (pack := said.find("pack_dtype", str) or "int32") != "int32":
        raise ModelError(f"{said.source}: pack_dtype {pack[:40]!r} is not supported")
    if said.values.get("dynamic"):
        raise ModelError(f"{said.source}: dynamic, other bits for some modules, is not supported")
    if (kind := said.find("format", str) or "int") != "int" and kind not in ("gptq", "gptq_v2"):
        raise ModelError(f"{said.source}: format {kind[:40]!r} is not supported")
    symmetric = said.find("sym", bool)
    scheme = Scheme(
        "GPTQ", "gptq", bits, group=_group(said), symmetric=symmetric is not False, raised=1 if form == "gptq" else 0
    )
    return (scheme,), _names(said, "modules_to_not_convert")


def _fp8(said: JsonObject) -> Found:
    activations = said.find("activation_scheme", str) or "dynamic"
    if activations != "dynamic":
        raise ModelError(f"{said.source}: activation_scheme {activations[:40]!r} is not supported (supported: dynamic)")
    if (kind := said.find("fmt", str) or "e4m3") != "e4m3":
        raise ModelError(f"{said.source}: fmt {kind[:40]!r} is not supported (supported: e4m3)")
    if (kind := said.find("scale_fmt", str) or "float") not in ("float", "ue8m0"):
        raise ModelError(f"{said.source}: scale_fmt {kind[:40]!r} is not supported")
    block = _block(said, "weight_block_size")
    scheme = Scheme("FP8", "bytes", 8, floating=True, block=block)
    return (scheme,), (*_names(said, "modules_to_not_convert"), *_names(said, "ignored_layers"))


def _compressed(said: JsonObject) -> Found:
    for key in ("kv_cache_scheme", "transform_config"):
        if said.values.get(key):
            raise ModelError(f"{said.source}: {key} is not supported")
    sparsity = said.object("sparsity_config")
    if sparsity and (kind := sparsity.find("format", str) or "dense") != "dense":
        raise ModelError(f"{said.source}: sparsity_config with format {kind[:40]!r} is not supported")
    if (status := said.find("quantization_status", str) or "compressed") not in ("compressed", "frozen"):
        raise ModelError(f"{said.source}: quantization_status {status[:40]!r} is not supported")
    groups = said.object("config_groups")
    if not groups:
        raise ModelError(f"{said.source}: config_groups is missing")
    whole = said.find("format", str)
    schemes = tuple(_compressed_scheme(group, group.find("format", str) or whole) for group in _objects(groups))
    return schemes, _names(said, "ignore")


def _compressed_scheme(group: JsonObject, form: str | None) -> Scheme:
    weights = group.object("weights")
    if weights is None:
        raise ModelError(f"{group.source}: weights is missing")
    if group.values.get("output_activations"):
        raise ModelError(f"{group.source}: output_activations is not supported")
    activations = group.object("input_activations")
    if activations and activations.values.get("dynamic") is not True:
        raise ModelError(f"{activations.source}: an activation scheme that is not dynamic is not supported")
    kind = weights.find("type", str) or "int"
    strategy = weights.find("strategy", str) or ("tensor" if weights.values.get("group_size") is None else "group")
    if strategy not in ("tensor", "channel", "group", "block"):
        raise ModelError(f"{weights.source}: strategy {strategy[:40]!r} is not supported")
    if weights.find("dynamic", bool):
        raise ModelError(f"{weights.source}: dynamic is not supported")
    known = {"pack-quantized": "int", "int-quantized": "int", "float-quantized": "float", "naive-quantized": kind}
    if form not in known:
        raise ModelError(f"{group.source}: format {str(form)[:40]!r} is not supported (supported: {', '.join(known)})")
    if kind not in ("int", "float") or known[form] != kind:
        raise ModelError(f"{weights.source}: type {kind[:40]!r} in the format {form} is not supported")
    bits = _one_of(weights, "num_bits", (4, 8) if form == "pack-quantized" else (8,))
    symmetric = weights.find("symmetric", bool) is not False
    if kind == "float" and not symmetric:
        raise ModelError(f"{weights.source}: symmetric false is not supported for floats")
    block = _block(weights, "block_structure") if strategy == "block" else None
    if (strategy == "block") != (block is not None):
        raise ModelError(f"{weights.source}: block_structure is missing")
    name = f"{'FP' if kind == 'float' else 'INT'}{bits}"
    layout = "packed" if form == "pack-quantized" else "bytes"
    size = _group(weights) if strategy == "group" else None
    return Scheme(name, layout, bits, kind == "float", size, block, symmetric)


def _mxfp4(said: JsonObject) -> Found:
    """Only experts' matrices are stored so, under names that say it (mxfp4_experts.py)."""
    return (), _names(said, "modules_to_not_convert")


_METHODS = {"awq": _awq, "gptq": _gptq, "compressed-tensors": _compressed, "fp8": _fp8, "mxfp4": _mxfp4}


def _one_of(said: JsonObject, key: str, choices: tuple[int, ...]) -> int:
    value = said.need(key, int)
    if value not in choices:
        raise ModelError(f"{said.source}: {key} {value} is not supported (supported: {', '.join(map(str, choices))})")
    return value


def _group(said: JsonObject) -> int | None:
    """Inputs that share a scale; None, written -1, for a whole row."""
    size = said.need("group_size", int)
    if size == -1:
        return None
    if not 0 < size <= LARGEST_GROUP:
        raise ModelError(f"{said.source}: group_size is {size}, which makes no sense")
    return size


def _block(said: JsonObject, key: str) -> tuple[int, int] | None:
    value = said.values.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2 or not all(
        type(size) is int and 0 < size <= LARGEST_GROUP for size in value
    ):
        raise ModelError(f"{said.source}: {key} is not two sizes")
    return value[0], value[1]


def _names(said: JsonObject, key: str) -> tuple[str, ...]:
    """Patterns ("re:…") are left out: what they mean shows in the files, where a plain matrix is a plain tensor."""
    names = said.values.get(key) or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ModelError(f"{said.source}: {key} is not a list of names")
    return tuple(name for name in names if not name.startswith("re:"))


def _objects(holder: JsonObject) -> Iterator[JsonObject]:
    for key in holder.values:
        one = holder.object(key)
        if one is None:
            raise ModelError(f"{holder.source}: {key} is not an object")
        yield one
