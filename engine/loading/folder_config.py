"""config.json of a Hugging Face folder as a ModelConfig. What we do not do is refused by name, never dropped."""
from ..errors import ModelError
from ..models.config import Experts, ModelConfig
from ..models.rope import Rope
from .declared import HINT
from .families import FAMILIES, Family
from .folder_rope import rope_of
from .json_object import JsonObject

_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
_LOCAL_THETA = 10_000.0  # of gemma3's layers with a window, where nothing is said
_OF_GEMMA3 = {
    "vocab_size": 262_208, "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
}  # fmt: skip
_MOST_LAYERS = 2048  # more are refused, and no list of so many is made before


def model_config(config: JsonObject) -> ModelConfig:
    config = _of_text(config)
    kind = config.need("model_type", str)
    family = FAMILIES.get(kind)
    if family is None:
        known = ", ".join(FAMILIES)
        raise ModelError(f"{config.source}: architecture {kind[:80]!r} is not supported (supported: {known}; {HINT})")
    _refuse_what_we_do_not_do(config, kind, family)
    hidden, heads = config.need("hidden_size", int), config.need("num_attention_heads", int)
    head_dim = config.find("head_dim", int) or family.head_dim or hidden // max(heads, 1)
    said_bias = config.find("attention_bias", bool) if family.asks_for_bias else None
    bias = family.biased if said_bias is None else said_bias
    tied = config.find("tie_word_embeddings", bool)
    gemma = family.architecture.startswith("gemma")
    scalar = config.find("query_pre_attn_scalar", float)
    try:
        rope, local_rope, part = _positions(config, family)
        window, full_layers = _windows(config, family)
        return ModelConfig(
            architecture=family.architecture,
            vocab_size=config.need("vocab_size", int),
            hidden_size=hidden,
            num_layers=config.need("num_hidden_layers", int),
            num_heads=heads,
            num_kv_heads=config.find("num_key_value_heads", int) or heads,
            head_dim=head_dim,
            intermediate_size=config.need("intermediate_size", int),
            rms_norm_eps=config.need("rms_norm_eps", float),
            rope=rope,
            max_context=config.need("max_position_embeddings", int),
            rotary_dim=None if part is None else int(head_dim * part),
            local_rope=local_rope,
            unturned_layers=_unturned(config, family),
            tie_word_embeddings=family.tied if tied is None else tied,
            attention_bias=bias,
            attention_output_bias=bias and family.asks_for_bias,
            qk_norm=family.qk_norm,
            sliding_window=window,
            full_layers=full_layers,
            attention_scale=_root(256.0 if scalar is None else scalar) if gemma else None,
            attention_soft_cap=_soft_cap(config, kind, "attn_logit_softcapping", 50.0),
            attention_sinks=kind == "gpt_oss",
            activation=_ACTIVATIONS[_activation(config, family)],
            post_norms=gemma,
            norm_offset=gemma,
            wide_norms=gemma,
            embedding_scale=hidden**0.5 if gemma else 1.0,
            logit_soft_cap=_soft_cap(config, kind, "final_logit_softcapping", 30.0),
            experts=_experts(config, family),
            dense_layers=_dense(config, kind),
        )
    except ModelError as error:
        said = str(error)
        raise error if said.startswith(config.source) else ModelError(f"{config.source}: {error}") from error


def _of_text(config: JsonObject) -> JsonObject:
    """What a model that reads pictures too says of the part that reads text; what it leaves unsaid is usual there."""
    kind = config.values.get("model_type")
    text = config.object("text_config") if kind in ("gemma3", "mistral3") else None
    if text is None:
        return config
    if kind == "mistral3":  # a ministral3 inside is another model, and refused by that name
        return JsonObject(text.source, {"model_type": "mistral", **text.values})
    return JsonObject(text.source, {**_OF_GEMMA3, **text.values, "model_type": "gemma3_text"})


def _root(scalar: float) -> float:
    if not scalar > 0:
        raise ModelError(f"query_pre_attn_scalar is {scalar}, which makes no sense")
    return float(scalar**-0.5)


def _soft_cap(config: JsonObject, kind: str, key: str, usual: float) -> float | None:
    """null means none. Where the key is absent, gemma2 has its usual one."""
    if kind == "gemma2" and key not in config.values:
        return usual
    return config.find(key, float) if kind.startswith("gemma") else None


def _activation(config: JsonObject, family: Family) -> str:
    gemma = family.architecture.startswith("gemma")
    own = config.find("hidden_activation", str) if gemma else config.find("hidden_act", str)
    return own or ("gelu_pytorch_tanh" if gemma else "silu")


def _refuse_what_we_do_not_do(config: JsonObject, kind: str, family: Family) -> None:
    if (activation := _activation(config, family)) not in _ACTIVATIONS:
        raise ModelError(f"{config.source}: hidden_act {activation[:80]!r} is not supported")
    for key in ("mlp_bias", "use_bidirectional_attention"):
        if config.find(key, bool):
            raise ModelError(f"{config.source}: {key} is not supported")
    if kind == "gemma3_text" and config.find("attn_logit_softcapping", float) is not None:
        raise ModelError(f"{config.source}: attn_logit_softcapping is not supported in this family")


def _positions(config: JsonObject, family: Family) -> tuple[Rope, Rope | None, float | None]:
    """Of all layers, of those with a window if theirs is another one, and the part of a head that turns."""
    said = config.object("rope_parameters") or config.object("rope_scaling")  # the first since transformers 5
    if family.architecture == "gpt_oss" and not {"rope_parameters", "rope_scaling"} & config.values.keys():
        raise ModelError("rope_scaling is missing")  # null says that there is none
    local: JsonObject | None = None
    if said is not None and ("full_attention" in said.values or "sliding_attention" in said.values):
        local = said.object("sliding_attention")
        said = said.object("full_attention")
    theta, trained = config.find("rope_theta", float), config.need("max_position_embeddings", int)
    rope = rope_of(config, said, theta=family.theta if theta is None else theta, trained=trained)
    local_rope = None
    if family.architecture == "gemma3":
        theta = config.find("rope_local_base_freq", float)
        local_rope = rope_of(config, local, theta=_LOCAL_THETA if theta is None else theta, trained=trained)
    elif local is not None and rope_of(config, local, theta=rope.theta, trained=trained) != rope:
        raise ModelError("rotary positions of another kind in layers with a window are not supported in this family")
    parts = {
        part for keys in (config, said, local)
        if keys is not None and (part := keys.find("partial_rotary_factor", float)) is not None
    }  # fmt: skip
    if len(parts) > 1 or (parts not in (set(), {1.0}) and not family.partial):
        raise ModelError(f"partial_rotary_factor {min(parts)} is not supported")
    return rope, local_rope, parts.pop() if parts else None


def _unturned(config: JsonObject, family: Family) -> frozenset[int]:
    if family.architecture != "smollm3":
        return frozenset()
    layers = min(config.need("num_hidden_layers", int), _MOST_LAYERS)
    listed = config.values.get("no_rope_layers")
    if listed is None:
        interval = _interval(config, "no_rope_layer_interval", 4)
        return frozenset(layer for layer in range(layers) if (layer + 1) % interval == 0)
    if not isinstance(listed, list) or len(listed) < layers or any(turned not in (0, 1) for turned in listed):
        raise ModelError("no_rope_layers is not a 0 or 1 for each layer")
    return frozenset(layer for layer in range(layers) if not listed[layer])  # 1: it is turned, whatever the name says


def _windows(config: JsonObject, family: Family) -> tuple[int | None, frozenset[int]]:
    """The window, and the layers that have none."""
    window = config.find("sliding_window", int) if "sliding_window" in config.values else family.usual_window
    if family.window == "none" or (family.window == "switched" and not config.find("use_sliding_window", bool)):
        window = None
    changes_nothing = window is None or window >= config.need("max_position_embeddings", int)
    if changes_nothing and family.architecture != "gemma3":  # there it says which layers turn in another way
        return None, frozenset()
    layers = config.need("num_hidden_layers", int)
    kinds = config.values.get("layer_types")
    if kinds is None:
        kinds = _usual_kinds(config, family, min(layers, _MOST_LAYERS))
    if not isinstance(kinds, list) or len(kinds) != min(layers, _MOST_LAYERS):
        raise ModelError("layer_types is not a list of one kind a layer")
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise ModelError(f"layer_types has {str(kind)[:80]!r}, which is not supported")
    full = frozenset(layer for layer, kind in enumerate(kinds) if kind == "full_attention")
    return (None, frozenset()) if len(full) == len(kinds) else (window, full)


def _usual_kinds(config: JsonObject, family: Family, layers: int) -> list[str]:
    """Where the file does not list them."""
    sliding = [True] * layers
    if family.architecture == "smollm3":
        unturned = _unturned(config, family)
        sliding = [layer in unturned for layer in range(layers)]
    elif family.window == "switched" and family.experts == "none":
        first = config.find("max_window_layers", int)
        sliding = [layer >= (28 if first is None else first) for layer in range(layers)]
    elif family.window == "alternating":
        pattern = _interval(config, "sliding_window_pattern", family.pattern)
        sliding = [(layer + 1) % pattern != 0 for layer in range(layers)]
    return ["sliding_attention" if slides else "full_attention" for slides in sliding]


def _experts(config: JsonObject, family: Family) -> Experts | None:
    if family.experts == "none":
        return None
    count = config.find("num_local_experts", int) or config.find("num_experts", int) or config.need(family.experts, int)
    own_size = config.find("moe_intermediate_size", int) if family.architecture == "qwen3_moe" else None
    normalised = config.find("norm_topk_prob", bool) if family.architecture == "qwen3_moe" else None
    gpt_oss = family.architecture == "gpt_oss"
    limit, alpha = config.find("swiglu_limit", float), config.find("swiglu_alpha", float)
    return Experts(
        count=count,
        per_token=config.need("num_experts_per_tok", int),
        intermediate_size=config.need("intermediate_size", int) if own_size is None else own_size,
        normalised=family.normalised if normalised is None else normalised,
        biases=gpt_oss,
        clamp=(7.0 if limit is None else limit) if gpt_oss else None,
        sigmoid_factor=(1.702 if alpha is None else alpha) if gpt_oss else 1.0,
    )


def _dense(config: JsonObject, kind: str) -> frozenset[int]:
    if kind != "qwen3_moe":
        return frozenset()
    layers = min(config.need("num_hidden_layers", int), _MOST_LAYERS)
    listed = config.numbers("mlp_only_layers")
    step = _interval(config, "decoder_sparse_step", 1)
    return frozenset(layer for layer in range(layers) if layer in listed or (layer + 1) % step)


def _interval(config: JsonObject, key: str, usual: int) -> int:
    """Each how many-th layer is another one."""
    said = config.find(key, int)
    if said is not None and said < 1:
        raise ModelError(f"{key} is {said}, which makes no sense")
    return usual if said is None else said
