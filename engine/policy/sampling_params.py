"""SamplingParams: what a client may ask of the sampler, checked on construction by field name. No tensors here."""
import math
from dataclasses import dataclass, fields, replace
from typing import Any

from ..errors import InvalidField
from .structured_outputs import StructuredOutputs

MAX_STOP_STRINGS, MAX_STOP_LENGTH, MAX_STOP_IDS, MAX_N = 16, 256, 64, 16
MAX_BIASES, MAX_ALLOWED, MAX_BAD_WORDS = 1024, 4096, 64  # each costs every step a little
MAX_TOP_LOGPROBS = 20
BANNED = -100.0  # a bias that says "never", as OpenAI's interface has it


def _number(name: str, value: object, low: float, high: float, *, above: bool = False) -> None:
    """Refuses anything but a finite number in [low, high], or (low, high] with `above`."""
    if type(value) is not int and not (isinstance(value, float) and math.isfinite(value)):  # an int may exceed floats
        raise InvalidField(name, "a finite number is needed")
    if not low <= value <= high or (above and value == low):
        raise InvalidField(name, f"must be {'above' if above else 'at least'} {low:g} and at most {high:g}")


def _integer(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidField(name, "a whole number is needed")
    if not low <= value <= high:
        raise InvalidField(name, f"must be between {low} and {high}")


def _biases(given: object) -> tuple[tuple[int, float], ...]:
    """From an object of ids, which JSON has as texts, and numbers."""
    if not isinstance(given, dict):
        raise InvalidField("logit_bias", "an object of token ids and numbers is needed")
    biases = {}
    for name, bias in given.items():
        if not (isinstance(name, str) and name.isascii() and name.isdigit() and len(name) <= 10):
            raise InvalidField("logit_bias", f"{name!r:.40} is not a token id")
        biases[int(name)] = bias  # "7" and "07" are one id, of which the last counts
    return tuple(sorted(biases.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """temperature 0 is greedy (ties to the lowest id). `seed` gives the same ids whatever else is in the batch.

    `max_tokens` None: up to the context's end; a larger value than fits is clipped and ends with reason "length".
    `min_tokens` counts generated tokens only and holds back every end and stop id until then.
    `top_p` 0 is refused; 1 keeps all. `top_k` 0 and `min_p` 0 are off.
    `presence_penalty` and `frequency_penalty` count what was generated, `repetition_penalty` (1 is off) the prompt too.
    `logit_bias` is added to the logits of ids; -100 bans one. None but `allowed_token_ids` are drawn, ends among them
    only where they are listed. `bad_words` are not generated in the tokenizer's own spelling. `include_stop_str` leaves
    the stop string that ended an answer in its text. `logprobs` gives each token of the answer its log-probability, and
    `top_logprobs` that of so many of the likeliest tokens beside it; `prompt_logprobs` is both for the prompt's tokens
    from the second one on. `structured_outputs` is the form that the answer has; what holds where it meets other
    parameters is said in execution/masks.py. `thinking_budget` is how many tokens a thought may have.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    include_stop_str: bool = False
    logprobs: bool = False
    top_logprobs: int = 0
    prompt_logprobs: int | None = None
    thinking_budget: int | None = None
    structured_outputs: StructuredOutputs | None = None

    def __post_init__(self) -> None:
        _number("temperature", self.temperature, 0, 2)
        _number("top_p", self.top_p, 0, 1, above=True)
        _number("min_p", self.min_p, 0, 1)
        _integer("top_k", self.top_k, 0, 1_000_000)
        _number("presence_penalty", self.presence_penalty, -2, 2)
        _number("frequency_penalty", self.frequency_penalty, -2, 2)
        _number("repetition_penalty", self.repetition_penalty, 0.01, 10)
        _integer("n", self.n, 1, MAX_N)
        _integer("min_tokens", self.min_tokens, 0, 1 << 31)
        if self.seed is not None:
            _integer("seed", self.seed, -(1 << 63), (1 << 64) - 1)
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 1, 1 << 53)
            if self.min_tokens > self.max_tokens:
                raise InvalidField("min_tokens", "must not be above max_tokens")
        for name in ("ignore_eos", "include_stop_str", "logprobs"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidField(name, "true or false is needed")
        _integer("top_logprobs", self.top_logprobs, 0, MAX_TOP_LOGPROBS)
        if self.top_logprobs and not self.logprobs:
            raise InvalidField("top_logprobs", "logprobs has to be true for it")
        if self.prompt_logprobs is not None:
            _integer("prompt_logprobs", self.prompt_logprobs, 0, MAX_TOP_LOGPROBS)
        if self.thinking_budget is not None:
            _integer("thinking_budget", self.thinking_budget, 0, 1 << 31)
        self._check_stops()
        self._check_ids()

    def _check_stops(self) -> None:
        for name, texts, most in (("stop", self.stop, MAX_STOP_STRINGS), ("bad_words", self.bad_words, MAX_BAD_WORDS)):
            if not isinstance(texts, tuple) or len(texts) > most:
                raise InvalidField(name, f"at most {most} strings")
            for text in texts:
                if not isinstance(text, str) or not text or len(text) > MAX_STOP_LENGTH:
                    raise InvalidField(name, f"each must be a text of 1 to {MAX_STOP_LENGTH} characters")
        if not isinstance(self.stop_token_ids, tuple) or len(self.stop_token_ids) > MAX_STOP_IDS:
            raise InvalidField("stop_token_ids", f"at most {MAX_STOP_IDS} ids")
        for token in self.stop_token_ids:
            _integer("stop_token_ids", token, 0, 1 << 31)

    def _check_ids(self) -> None:
        if len(self.logit_bias) > MAX_BIASES:
            raise InvalidField("logit_bias", f"at most {MAX_BIASES} ids")
        for token, bias in self.logit_bias:
            _integer("logit_bias", token, 0, 1 << 31)
            _number("logit_bias", bias, -100, 100)
        if self.allowed_token_ids is None:
            return
        if not isinstance(self.allowed_token_ids, tuple) or not 0 < len(self.allowed_token_ids) <= MAX_ALLOWED:
            raise InvalidField("allowed_token_ids", f"a list of 1 to {MAX_ALLOWED} ids is needed")
        for token in self.allowed_token_ids:
            _integer("allowed_token_ids", token, 0, 1 << 31)

    @property
    def penalises(self) -> bool:
        return self.presence_penalty != 0 or self.frequency_penalty != 0 or self.repetition_penalty != 1

    @property
    def leaves_logits_alone(self) -> bool:
        """But for the ends that min_tokens holds back."""
        return not (self.penalises or self.logit_bias or self.bad_words or self.allowed_token_ids is not None)

    def choice(self, index: int) -> "SamplingParams":
        """The parameters of the `index`-th of `n` answers: one answer, whose seed follows from the given one. The
        prompt's logprobs are the first one's."""
        if index == 0:
            return replace(self, n=1)
        seed = None if self.seed is None else (self.seed + index * 0x9E3779B97F4A7C15) % (1 << 63)
        return replace(self, n=1, seed=seed, prompt_logprobs=None)

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> "SamplingParams":
        """From a client's object: unknown names are refused; None means the default; one text may stand for a list."""
        known = {f.name for f in fields(cls)}
        for name in given:
            if name not in known:
                raise InvalidField(name, "not a sampling parameter that this server has")
        values = {k: v for k, v in given.items() if v is not None}
        for name in ("stop", "bad_words"):
            if isinstance(values.get(name), str):
                values[name] = (values[name],)
        for name in ("stop", "stop_token_ids", "bad_words", "allowed_token_ids"):
            if isinstance(values.get(name), list):
                values[name] = tuple(values[name])
        if "logit_bias" in values:
            values["logit_bias"] = _biases(values["logit_bias"])
        if "structured_outputs" in values:
            values["structured_outputs"] = StructuredOutputs.from_dict(values["structured_outputs"])
        return cls(**values)
