"""Which tensors a model of a given config has, by name and shape. Not what files call them, and no values."""
from collections.abc import Mapping

from ..errors import ModelError
from ..models.config import ModelConfig

Shape = tuple[int, ...]

def expected_tensors(config: ModelConfig) -> dict[str, Shape]:
    """A tied head is not among them: it is the embedding."""
    hidden, head_dim = config.hidden_size, config.head_dim
    q_width, kv_width = config.num_heads * head_dim, config.num_kv_heads * head_dim
    layer: dict[str, Shape] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q_width, hidden),
        "self_attn.k_proj.weight": (kv_width, hidden),
        "self_attn.v_proj.weight": (kv_width, hidden),
        "self_attn.o_proj.weight": (hidden, q_width),
        "post_attention_layernorm.weight": (hidden,),
    }
    if config.post_norms:
        layer |= {"pre_feedforward_layernorm.weight": (hidden,), "post_feedforward_layernorm.weight": (hidden,)}
    if config.attention_bias:
        layer |= {
            "self_attn.q_proj.bias": (q_width,),
            "self_attn.k_proj.bias": (kv_width,),
            "self_attn.v_proj.bias": (kv_width,),
        }
    if config.attention_output_bias:
        layer["self_attn.o_proj.bias"] = (hidden,)
    if config.qk_norm:
        layer |= {"self_attn.q_norm.weight": (head_dim,), "self_attn.k_norm.weight": (head_dim,)}
    if config.attention_sinks:
        layer["self_attn.sinks"] = (config.num_heads,)
    expected: dict[str, Shape] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for number in range(config.num_layers):
        own = layer | _mlp(config, number)
        expected |= {f"model.layers.{number}.{name}": shape for name, shape in own.items()}
    expected["model.norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        expected["lm_head.weight"] = (config.vocab_size, hidden)
    return expected


def _mlp(config: ModelConfig, layer: int) -> dict[str, Shape]:
    experts = config.experts_of(layer)
    if experts is None:
        return _gated("mlp", config.hidden_size, config.intermediate_size, biases=False)
    expected: dict[str, Shape] = {"mlp.gate.weight": (experts.count, config.hidden_size)}
    if experts.biases:
        expected["mlp.gate.bias"] = (experts.count,)
    for number in range(experts.count):
        name = f"mlp.experts.{number}"
        expected |= _gated(name, config.hidden_size, experts.intermediate_size, biases=experts.biases)
    return expected


def _gated(name: str, hidden: int, wide: int, *, biases: bool) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {
        f"{name}.gate_proj.weight": (wide, hidden),
        f"{name}.up_proj.weight": (wide, hidden),
        f"{name}.down_proj.weight": (hidden, wide),
    }
    return shapes | {key.replace(".weight", ".bias"): shape[:1] for key, shape in shapes.items() if biases}


def check_tensors(source: str, config: ModelConfig, found: Mapping[str, Shape]) -> None:
    """ModelError unless `found` is what the config asks for: a weight that was never set gives fluent nonsense."""
    expected = expected_tensors(config)
    missing = [name for name in expected if name not in found]
    unexpected = [name for name in found if name not in expected]
    both = (("missing", missing), ("unexpected", unexpected))
    faults = [f"{what}: {_listed(names)}" for what, names in both if names]
    if faults:
        raise ModelError(f"{source}: tensors {'; '.join(faults)}")
    for name, shape in expected.items():
        if found[name] != shape:
            raise ModelError(f"{source}: {name} has the shape {list(found[name])}, the config asks for {list(shape)}")


def _listed(names: list[str]) -> str:
    shown = ", ".join(repr(name[:80])[1:-1] for name in names[:5])  # names come from the file: no line breaks
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
