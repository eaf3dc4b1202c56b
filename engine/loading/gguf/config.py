"""A GGUF file's metadata as a ModelConfig. What we do not do is refused by name, never dropped.

Some of what a config.json says has no key in GGUF: which layers have a window, or no positions, or how scores are
scaled. There it is known by the architecture alone, as llama.cpp knows it.
"""
import math
from pathlib import Path

from ...errors import ModelError
from ...models.config import Experts, ModelConfig
from ...models.rope import Rope
from ..declared import HINT
from .header import GGUFHeader
from .names import decoder_name
from .weights import read_numbers

_ARCHITECTURES = {  # what ModelConfig calls them
    "llama": "llama", "mistral3": "mistral", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3moe": "qwen3_moe",
    "phi3": "phi3", "smollm3": "smollm3", "gemma2": "gemma2", "gemma3": "gemma3", "gpt-oss": "gpt_oss",
}  # fmt: skip
_WINDOWLESS = {"gemma2": 2, "gemma3": 6, "gpt-oss": 2}  # each n-th layer sees everything
_UNTURNED = {"smollm3": 4}  # each n-th layer turns nothing
_USUAL_WINDOW = {"gemma2": 4096}  # its first files do not say it
_NEUTRAL: dict[str, tuple[float, ...]] = {  # keys that change what is computed, and the values with which they do not
    "attention.causal": (True,), "attention.clamp_kqv": (0,), "attention.max_alibi_bias": (0,),
    "attention.output_scale": (0, 1), "attention.shared_kv_layers": (0,), "attention.temperature_length": (0,),
    "attention.temperature_scale": (0,), "embedding_scale": (0, 1), "expert_gating_func": (0, 1),
    "expert_group_count": (0, 1), "expert_shared_count": (0,), "expert_weights_scale": (0, 1),
    "interleave_moe_layer_step": (0, 1), "leading_dense_block_count": (0,), "logit_scale": (0, 1),
    "nextn_predict_layers": (0,), "residual_scale": (0, 1), "rope.scaling.alpha": (0,),
    "rope.scaling.yarn_ext_factor": (-1, 1), "rope.scaling.yarn_log_multiplier": (0,),
    "use_parallel_residual": (False,),
}  # fmt: skip
_OTHER_SCALE = {("gemma2", 46), ("gemma3", 62)}  # by their layers, the 27B models: hidden_size / heads, not head_dim


def model_config(path: Path, header: GGUFHeader) -> ModelConfig:
    source = header.source
    kind = header.need("general.architecture", str)
    if kind not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise ModelError(f"{source}: architecture {kind[:80]!r} is not supported (supported: {known}; {HINT})")
    if (header.find("split.count", int) or 0) > 1:
        raise ModelError(f"{source}: one part of a split model; join the parts first")
    _refuse_what_we_do_not_do(header, kind)
    experts = header.find(f"{kind}.expert_count", int)
    architecture = "mixtral" if kind == "llama" and experts else _ARCHITECTURES[kind]
    shapes = {decoder_name(name, architecture): info.shape for name, info in header.tensors.items()}
    if "model.embed_tokens.weight" not in shapes:
        raise ModelError(f"{source}: tensors missing: model.embed_tokens.weight")
    hidden = header.need(f"{kind}.embedding_length", int)
    heads = header.need(f"{kind}.attention.head_count", int)
    head_dim = header.find(f"{kind}.attention.key_length", int) or hidden // max(heads, 1)
    if (header.find(f"{kind}.attention.value_length", int) or head_dim) != head_dim:
        raise ModelError(f"{source}: values of another width than keys are not supported")
    turning = header.find(f"{kind}.rope.dimension_count", int) or head_dim
    if turning != head_dim and kind != "phi3":
        raise ModelError(f"{source}: rotary positions on a part of the head are not supported")
    layers, gemma = header.need(f"{kind}.block_count", int), kind.startswith("gemma")
    first = "model.layers.0"
    try:
        window, full_layers = _windows(header, kind, layers)
        return ModelConfig(
            architecture=architecture,
            vocab_size=shapes["model.embed_tokens.weight"][0],
            hidden_size=hidden,
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=header.find(f"{kind}.attention.head_count_kv", int) or heads,
            head_dim=head_dim,
            intermediate_size=header.need(f"{kind}.feed_forward_length", int),
            rms_norm_eps=header.need(f"{kind}.attention.layer_norm_rms_epsilon", float),
            rope=_rope(path, header, kind, turning // 2),
            max_context=header.need(f"{kind}.context_length", int),
            rotary_dim=None if turning == head_dim else turning,
            local_rope=_local_rope(header, kind),
            unturned_layers=_each(_UNTURNED.get(kind), layers),
            tie_word_embeddings="lm_head.weight" not in shapes,
            attention_bias=f"{first}.self_attn.q_proj.bias" in shapes,
            attention_output_bias=f"{first}.self_attn.o_proj.bias" in shapes,
            qk_norm=f"{first}.self_attn.q_norm.weight" in shapes,
            sliding_window=window,
            full_layers=full_layers,
            attention_scale=_scale(header, kind, layers, hidden / max(heads, 1)),
            attention_soft_cap=_soft_cap(header, kind, "attn_logit_softcapping", 50.0),
            attention_sinks=f"{first}.self_attn.sinks" in shapes,
            activation="gelu_tanh" if gemma else "silu",
            post_norms=gemma,
            wide_norms=gemma,  # they have the 1 that is added to them already
            embedding_scale=hidden**0.5 if gemma else 1.0,
            logit_soft_cap=_soft_cap(header, kind, "final_logit_softcapping", 30.0),
            experts=_experts(header, kind, experts) if experts else None,
        )
    except ModelError as error:
        said = str(error)
        raise error if said.startswith(source) else ModelError(f"{source}: {said}") from error


def _refuse_what_we_do_not_do(header: GGUFHeader, kind: str) -> None:
    for key, neutral in _NEUTRAL.items():
        said = header.values.get(f"{kind}.{key}")
        if said is not None and said not in neutral and not (kind == "gpt-oss" and key == "expert_gating_func"):
            raise ModelError(f"{header.source}: {kind}.{key} {str(said)[:40]} is not supported")


def _windows(header: GGUFHeader, kind: str, layers: int) -> tuple[int | None, frozenset[int]]:
    """The window, and the layers that have none. A gemma3 without a window is one; the others have theirs."""
    said = header.find(f"{kind}.attention.sliding_window", int)
    window = _USUAL_WINDOW.get(kind) if said is None else said or None
    if window is None:
        if kind == "gpt-oss":
            raise ModelError(f"{kind}.attention.sliding_window is missing")
        return None, frozenset()
    key = f"{kind}.attention.sliding_window_pattern"
    pattern = header.values.get(key)
    if isinstance(pattern, list):  # of each layer whether it has a window
        if len(pattern) != layers or not all(one in (0, 1) for one in pattern):
            raise ModelError(f"{key} is not a yes or no for each layer")
        return window, frozenset(number for number, one in enumerate(pattern) if not one)
    interval = header.find(key, int)
    if interval is not None and interval < 0:
        raise ModelError(f"{key} is {interval}, which makes no sense")
    return window, _each(_WINDOWLESS.get(kind) if interval is None else interval or None, layers)


def _each(interval: int | None, layers: int) -> frozenset[int]:
    """Numbers of each `interval`-th layer; none where that is None."""
    return frozenset(() if interval is None else range(interval - 1, min(layers, 1 << 16), interval))


def _scale(header: GGUFHeader, kind: str, layers: int, hidden_by_heads: float) -> float | None:
    said = header.find(f"{kind}.attention.scale", float)
    if said is None and (kind, layers) in _OTHER_SCALE:
        return float(hidden_by_heads**-0.5)
    return said or None


def _soft_cap(header: GGUFHeader, kind: str, key: str, usual: float) -> float | None:
    """gemma2 has its usual one where nothing is said; 0 means none."""
    said = header.find(f"{kind}.{key}", float)
    if kind == "gemma2" and said is None:
        return usual
    return said or None


def _experts(header: GGUFHeader, kind: str, count: int) -> Experts:
    own = header.find(f"{kind}.expert_feed_forward_length", int)
    normalised = header.find(f"{kind}.expert_weights_norm", bool)
    gpt_oss = kind == "gpt-oss"
    return Experts(
        count=count,
        per_token=header.need(f"{kind}.expert_used_count", int),
        intermediate_size=header.need(f"{kind}.feed_forward_length", int) if own is None else own,
        normalised=normalised is not False,
        biases=gpt_oss,
        clamp=7.0 if gpt_oss else None,
        sigmoid_factor=1.702 if gpt_oss else 1.0,
    )


def _rope(path: Path, header: GGUFHeader, kind: str, pairs: int) -> Rope:
    name = header.find(f"{kind}.rope.scaling.type", str)
    factor = header.find(f"{kind}.rope.scaling.factor", float)
    if factor is None:
        factor = header.find(f"{kind}.rope.scale_linear", float)  # what older files call it
    scaled = name if name is not None else "linear" if factor is not None else "none"
    theta, trained = header.find(f"{kind}.rope.freq_base", float), header.need(f"{kind}.context_length", int)
    original = header.find(f"{kind}.rope.scaling.original_context_length", int) or trained
    long, short = (_factors(path, header, f"rope_factors_{which}.weight", pairs) for which in ("long", "short"))
    if long or short:
        scaled, factor = "longrope", trained / original
    divisors = _factors(path, header, "rope_freqs.weight", pairs)
    fast, slow = (header.find(f"{kind}.rope.scaling.yarn_beta_{which}", float) for which in ("fast", "slow"))
    return Rope(
        theta=10000.0 if theta is None else theta,
        kind="default" if scaled == "none" else scaled,
        factor=1.0 if factor is None else factor,
        original_context=original,
        beta_fast=32.0 if fast is None else fast,
        beta_slow=1.0 if slow is None else slow,
        truncate=kind != "gpt-oss",
        attention_factor=_attention_factor(header, kind, scaled, 1.0 if factor is None else factor),
        short_factors=short,
        long_factors=long,
        divisors=() if all(divisor == 1.0 for divisor in divisors) else divisors,
    )


def _attention_factor(header: GGUFHeader, kind: str, scaled: str, factor: float) -> float | None:
    """Of longrope it is all, of yarn it comes on top of what yarn makes of the scaling factor."""
    whole = header.find(f"{kind}.rope.scaling.yarn_attn_factor", float)  # Hugging Face's attention_factor
    if whole is not None and scaled == "yarn":
        return whole
    said = header.find(f"{kind}.rope.scaling.attn_factor", float)
    if scaled == "longrope":
        return said
    if said is None or said == 1:
        return None
    if scaled != "yarn" or factor < 1:
        raise ModelError(f"{kind}.rope.scaling.attn_factor with rotary scaling {scaled[:80]!r} is not supported")
    return said * (0.1 * math.log(factor) + 1)


def _local_rope(header: GGUFHeader, kind: str) -> Rope | None:
    theta = header.find(f"{kind}.rope.freq_base_swa", float)
    if kind != "gemma3":
        if theta is not None and theta != header.find(f"{kind}.rope.freq_base", float):
            raise ModelError(f"{kind}.rope.freq_base_swa is not supported in this architecture")
        return None
    return Rope(theta=10000.0 if theta is None else theta)


def _factors(path: Path, header: GGUFHeader, name: str, pairs: int) -> tuple[float, ...]:
    """Rotary factors as they come in GGUF, one for each frequency, in a tensor of their own; () where it is absent."""
    info = header.tensors.get(name)
    if info is None:
        return ()
    if info.type != 0 or info.shape != (pairs,):
        raise ModelError(f"{name} is not {pairs} numbers of F32")
    return tuple(read_numbers(path, info).values.tolist())
