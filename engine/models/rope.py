"""Rope: how positions turn a model's queries and keys: the name of the way, and its numbers. No angles: rotary.py."""
import math
from dataclasses import dataclass

from ..errors import ModelError

KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Checked on construction, ModelError names the field. What a kind does not use is left as it is.

    default   RoFormer's own (arXiv:2104.09864)
    linear    all frequencies divided by `factor`: positions closer together (arXiv:2306.15595)
    dynamic   a larger theta, the longer the served context is than the original one
    llama3    slow frequencies divided by `factor`, fast ones kept, what lies between blended
    yarn      the same with other bounds, and scores that are scaled (arXiv:2309.00071)
    longrope  a divisor for each frequency, from one of two lists by the length served (arXiv:2402.13753)
    """

    theta: float
    kind: str = "default"
    factor: float = 1.0  # how many times longer than the original context the new one is
    original_context: int = 0  # tokens before the context was made longer; of all but default and linear
    low_freq_factor: float = 1.0  # llama3: turns in the original context up to which a frequency is slow
    high_freq_factor: float = 4.0  # llama3: turns from which on it is fast
    beta_fast: float = 32.0  # yarn: the same two bounds
    beta_slow: float = 1.0
    truncate: bool = True  # yarn: the bounds are rounded to whole frequencies
    attention_factor: float | None = None  # yarn, longrope: multiplies queries and keys; None: worked out of `factor`
    short_factors: tuple[float, ...] = ()  # longrope: divisors, one for each frequency
    long_factors: tuple[float, ...] = ()
    divisors: tuple[float, ...] = ()  # llama3's blend worked out, as some files give it; one for each frequency

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ModelError(f"rotary scaling {self.kind!r} is not supported (supported: {', '.join(KINDS)})")
        numbers = {"rope_theta": self.theta, "rotary scaling factor": self.factor}
        if self.kind == "llama3":
            numbers |= {"low_freq_factor": self.low_freq_factor, "high_freq_factor": self.high_freq_factor}
        if self.kind == "yarn":
            numbers |= {"beta_slow": self.beta_slow, "beta_fast": self.beta_fast}
        if self.attention_factor is not None:
            numbers["attention_factor"] = self.attention_factor
        for name, number in numbers.items():
            if not (math.isfinite(number) and number > 0):
                raise ModelError(f"{name} is {number}, which makes no sense")
        if self.kind == "llama3" and not self.divisors and self.low_freq_factor >= self.high_freq_factor:
            raise ModelError(
                f"low_freq_factor {self.low_freq_factor} is not below high_freq_factor {self.high_freq_factor}"
            )
        if self.kind == "yarn" and self.beta_slow >= self.beta_fast:
            raise ModelError(f"beta_slow {self.beta_slow} is not below beta_fast {self.beta_fast}")
        if self.kind == "yarn" and self.theta <= 1:
            raise ModelError(f"rope_theta is {self.theta}; yarn needs one above 1")
        if self.kind not in ("default", "linear") and self.original_context < 2 and not self.divisors:
            raise ModelError(f"original_max_position_embeddings is {self.original_context}, which makes no sense")

    def check_factors(self, pairs: int) -> None:
        """ModelError where there are not `pairs` factors in each list that counts."""
        lists = [self.divisors] if self.divisors else []
        if self.kind == "longrope":
            lists += [self.short_factors, self.long_factors]
        for factors in lists:
            if len(factors) != pairs or not all(math.isfinite(factor) and factor > 0 for factor in factors):
                raise ModelError(f"rotary factors must be {pairs} positive numbers")

    @property
    def scores_factor(self) -> float:
        """What queries and keys are both multiplied by."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.factor <= 1:
            return 1.0
        if self.kind == "yarn":
            return 0.1 * math.log(self.factor) + 1
        if self.kind == "longrope":
            return math.sqrt(1 + math.log(self.factor) / math.log(self.original_context))
        return 1.0
