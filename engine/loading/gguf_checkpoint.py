"""A GGUF file as a Checkpoint: what its keys mean. Its bytes are read by gguf.py (header) and gguf_weights.py."""
from pathlib import Path

from ..errors import ModelError
from ..models.config import ModelConfig
from ..models.rope import Rope
from . import declared, recommended
from .contents import Checkpoint
from .gguf import GGUFHeader, TensorInfo, read_header
from .gguf_tokenizer import build_tokenizer, special_id
from .gguf_weights import GGUFWeights, read_numbers, sample_digest
from .tokenizer_files import check_rows, end_of_turn, first_id
from .weight_names import check_tensors, hugging_face_name

_ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")
_ROPE_FREQS = "rope_freqs.weight"


def open_gguf(path: Path) -> Checkpoint:
    header = declared.of_gguf(path, read_header(path))
    names = {hugging_face_name(name): info for name, info in header.tensors.items() if name != _ROPE_FREQS}
    config = _config(path, header, names)
    check_tensors(path.name, config, {name: info.shape for name, info in names.items()})
    tokenizer = build_tokenizer(header)
    tokens = header.need_list("tokenizer.ggml.tokens", str)
    check_rows(path.name, len(tokens) - 1, config.vocab_size)
    bos, eos, eot, eom = (special_id(header, name) for name in ("bos", "eos", "eot", "eom"))
    bos_text, eos_text = ("" if number is None else tokens[number] for number in (bos, eos))
    template = header.find("tokenizer.chat_template", str)
    ends = {eos, eot, eom, end_of_turn(template, tokenizer, bos_text, eos_text)}
    return Checkpoint(
        name=path.name.removesuffix(".gguf"),
        config=config,
        fingerprint=sample_digest(path, header.tensors, header.digest),
        tokenizer=tokenizer,
        bos_id=first_id(tokenizer, bos),
        bos_text=bos_text,
        eos_text=eos_text,
        eos_ids=frozenset(end for end in ends if end is not None),
        chat_template=template,
        sampling=recommended.of_gguf(header),
        weights=GGUFWeights(path, names, _rotary_pairs(config, names)),
    )


def _config(path: Path, header: GGUFHeader, names: dict[str, TensorInfo]) -> ModelConfig:
    source = header.source
    kind = header.need("general.architecture", str)
    if kind not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise ModelError(f"{source}: architecture {kind[:80]!r} is not supported (supported: {known})")
    if (header.find("split.count", int) or 0) > 1:
        raise ModelError(f"{source}: one part of a split model; join the parts first")
    if header.find(f"{kind}.expert_count", int):
        raise ModelError(f"{source}: mixtures of experts are not supported")
    embedding = names.get("model.embed_tokens.weight")
    if embedding is None:
        raise ModelError(f"{source}: tensors missing: model.embed_tokens.weight")
    hidden = header.need(f"{kind}.embedding_length", int)
    heads = header.need(f"{kind}.attention.head_count", int)
    head_dim = header.find(f"{kind}.attention.key_length", int) or hidden // max(heads, 1)
    if (header.find(f"{kind}.attention.value_length", int) or head_dim) != head_dim:
        raise ModelError(f"{source}: values of another width than keys are not supported")
    if (header.find(f"{kind}.rope.dimension_count", int) or head_dim) != head_dim:
        raise ModelError(f"{source}: rotary positions on a part of the head are not supported")
    try:
        return ModelConfig(
            architecture=kind,
            vocab_size=embedding.shape[0],
            hidden_size=hidden,
            num_layers=header.need(f"{kind}.block_count", int),
            num_heads=heads,
            num_kv_heads=header.find(f"{kind}.attention.head_count_kv", int) or heads,
            head_dim=head_dim,
            intermediate_size=header.need(f"{kind}.feed_forward_length", int),
            rms_norm_eps=header.need(f"{kind}.attention.layer_norm_rms_epsilon", float),
            rope=_rope(header, kind, _rope_factors(path, header, head_dim)),
            max_context=header.need(f"{kind}.context_length", int),
            tie_word_embeddings="lm_head.weight" not in names,
            attention_bias="model.layers.0.self_attn.q_proj.bias" in names,
            attention_output_bias="model.layers.0.self_attn.o_proj.bias" in names,
            qk_norm="model.layers.0.self_attn.q_norm.weight" in names,
            sliding_window=header.find(f"{kind}.attention.sliding_window", int) or None,
        )
    except ModelError as error:
        raise ModelError(f"{source}: {error}") from error


def _rope(header: GGUFHeader, kind: str, divisors: tuple[float, ...]) -> Rope:
    name = header.find(f"{kind}.rope.scaling.type", str)
    theta = header.find(f"{kind}.rope.freq_base", float)
    factor = header.find(f"{kind}.rope.scaling.factor", float)
    if factor is None:
        factor = header.find(f"{kind}.rope.scale_linear", float)  # what older files call it
    scaled = name if name is not None else "linear" if factor is not None else "none"
    return Rope(
        theta=10000.0 if theta is None else theta,
        kind="default" if scaled == "none" else scaled,
        factor=1.0 if factor is None else factor,
        original_context=header.find(f"{kind}.rope.scaling.original_context_length", int)
        or header.need(f"{kind}.context_length", int),
        divisors=divisors,
    )


def _rope_factors(path: Path, header: GGUFHeader, head_dim: int) -> tuple[float, ...]:
    """Llama 3's scaling as it comes in GGUF: one divisor for each frequency, in a tensor of its own."""
    info = header.tensors.get(_ROPE_FREQS)
    if info is None:
        return ()
    if info.type != 0 or info.shape != (head_dim // 2,):
        raise ModelError(f"{header.source}: {_ROPE_FREQS} is not {head_dim // 2} numbers of F32")
    factors = read_numbers(path, info).values.tolist()
    return () if all(factor == 1.0 for factor in factors) else tuple(factors)


def _rotary_pairs(config: ModelConfig, names: dict[str, TensorInfo]) -> dict[str, int]:
    """By name, the heads of q and k. Files of the architecture "llama", and of no other, store their rows as pairs."""
    if config.architecture != "llama":
        return {}
    heads = {".q_proj.": config.num_heads, ".k_proj.": config.num_kv_heads}
    return {name: count for name in names for part, count in heads.items() if part in name}
