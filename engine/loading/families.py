"""What each model_type leaves unsaid in its config.json, and which of its keys count. Not how a model computes."""
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The defaults are Llama's. A value in a config.json goes before what stands here."""

    architecture: str  # one of models.config.ARCHITECTURES
    theta: float = 10_000.0
    tied: bool = False
    head_dim: int | None = None  # None: hidden_size / heads
    biased: bool = False  # q, k and v have biases; the output too where `attention_bias` counts
    asks_for_bias: bool = True  # `attention_bias` counts
    qk_norm: bool = False
    window: str = "none"  # "none", "all", "switched" on by use_sliding_window, "alternating": all but each n-th
    pattern: int = 2  # alternating: n
    usual_window: int | None = None  # where `sliding_window` is not said at all; null says that there is none
    partial: bool = False  # `partial_rotary_factor` counts
    experts: str = "none"  # the key that counts them
    normalised: bool = True  # where norm_topk_prob says nothing


FAMILIES = {
    "llama": Family(architecture="llama"),
    "mistral": Family(architecture="mistral", window="all", usual_window=4096),
    "qwen2": Family(architecture="qwen2", biased=True, asks_for_bias=False, window="switched", usual_window=4096),
    "qwen3": Family(architecture="qwen3", qk_norm=True, window="switched", usual_window=4096),
    "phi3": Family(architecture="phi3", asks_for_bias=False, window="all", partial=True),
    "smollm3": Family(architecture="smollm3", theta=2_000_000.0, tied=True, window="switched"),
    "gemma2": Family(architecture="gemma2", tied=True, head_dim=256, window="alternating", usual_window=4096),
    "gemma3_text": Family(architecture="gemma3", tied=True, head_dim=256, theta=1_000_000.0, qk_norm=True,
                          window="alternating", pattern=6, usual_window=4096),
    "mixtral": Family(architecture="mixtral", theta=1_000_000.0, asks_for_bias=False, window="all",
                      experts="num_local_experts"),
    "qwen3_moe": Family(architecture="qwen3_moe", qk_norm=True, window="switched", usual_window=4096,
                        experts="num_experts", normalised=False),
    "gpt_oss": Family(architecture="gpt_oss", theta=150_000.0, head_dim=64, biased=True, window="alternating",
                      usual_window=128, experts="num_local_experts"),
}  # fmt: skip
