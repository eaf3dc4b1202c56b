"""The real Engine, policy and a (byte-level) tokenizer over a runner that answers by a script instead of a network.

Everything above the runner is what people use; only the arithmetic is replaced, so tests are exact and quick.
`python tests/scripted.py --data DIR --port N [--step-seconds S]` serves it, for the crash test say.
"""
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from hamdam.engine import Engine, EngineConfig
from hamdam.engine.policy.batch import Batch, Broken, Logprobs, Result, Scored
from hamdam.engine.policy.sequence import Status
from hamdam.engine.text.codec import Codec

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    """One token a byte (so a Persian letter is two), and ChatML's three added tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<|im_start|>", "<|im_end|>", "<|endoftext|>")])
    return tokenizer


def reply(question: str) -> str:
    """`say X` answers X, `count N` counts to N, anything else is echoed."""
    if match := re.fullmatch(r"(?s)say (.*)", question):
        return match[1]
    if match := re.fullmatch(r"count (\d+)", question):
        return " ".join(str(i) for i in range(1, int(match[1]) + 1))
    return f"You wrote: {question}"


class ScriptedRunner:
    """Emits the ids of `script(last question)`, then the end token. `gate`, when set, lets one step pass per permit."""

    ahead = False  # whether it asks what each step foresees, as a runner does that computes beside us

    def __init__(
        self,
        tokenizer: Tokenizer,
        script: Callable[[str], str] = reply,
        *,
        num_blocks: int = 4096,
        max_context: int = 8192,
        step_seconds: float = 0.0,
    ) -> None:
        self.tokenizer, self.script = tokenizer, script
        self.num_blocks, self.max_context, self.step_seconds = num_blocks, max_context, step_seconds
        self.vocab_size = tokenizer.get_vocab_size()
        self.end = tokenizer.token_to_id("<|im_end|>")
        self.filler = tokenizer.encode("+").ids[0]
        self.eos_ids = frozenset({self.end, tokenizer.token_to_id("<|endoftext|>")})
        self.description = "a script"
        self.kv_fingerprint = "scripted"
        self.gate: threading.Semaphore | None = None
        self.steps = 0
        self.computed = 0  # tokens
        self.batches: list[list[tuple[int, int]]] = []  # (sequence id, tokens) of every step
        self.broken: set[int] = set()  # sequence ids whose next row fails
        self.closed = False
        self._answers: dict[int, list[int]] = {}

    def run(self, batch: Batch) -> list[Result]:
        if self.gate:
            self.gate.acquire()
        if self.step_seconds:
            time.sleep(self.step_seconds)
        self.steps += 1
        self.computed += batch.tokens
        self.batches.append([(row.sequence.id, row.count) for row in batch.rows])
        drawn = [
            self._scored(row.sequence) if row.sample and row.sequence.status is not Status.FINISHED else None
            for row in batch.rows
        ]
        if self.ahead:
            batch.foresee()
        return drawn

    def close(self) -> None:
        self.closed = True

    def _scored(self, sequence) -> int | Scored | Broken:
        """Who asks for logprobs is told that the n-th id of an answer has -n, and those that follow it 1 less each."""
        if sequence.given is not None:
            return Scored(sequence.given, Logprobs(-0.5, ((sequence.given, -0.5),) * sequence.params.top_logprobs))
        id, position = self._sample(sequence), sequence.num_generated
        if isinstance(id, Broken) or not sequence.params.logprobs:
            return id
        top = tuple(((id + k) % self.vocab_size, float(-position - k)) for k in range(sequence.params.top_logprobs))
        return Scored(id, Logprobs(float(-position), top))

    def _sample(self, sequence) -> int | Broken:
        if sequence.id in self.broken:
            return Broken("not a number")
        if sequence.id not in self._answers:
            self._answers[sequence.id] = self._answer(sequence.ids[: sequence.num_prompt])
        answer, position = self._answers[sequence.id], sequence.num_generated
        if position < len(answer):
            return answer[position]
        ends = self.end in sequence.stop_ids and position >= sequence.params.min_tokens
        return self.end if ends else self.filler

    def _answer(self, prompt: list[int]) -> list[int]:
        text = self.tokenizer.decode(prompt, skip_special_tokens=False)
        talk, _, begun = text.rpartition("<|im_start|>assistant\n")
        question = talk.rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]
        return self.tokenizer.encode(self.script(question).removeprefix(begun)).ids


def scripted_engine(script: Callable[[str], str] = reply, *, config: EngineConfig | None = None, **of_runner) -> Engine:
    """An Engine that is not started yet. `engine.runner` is the ScriptedRunner, to count steps or to hold them back."""
    tokenizer = byte_tokenizer()
    runner = ScriptedRunner(tokenizer, script, **of_runner)
    codec = Codec(tokenizer, CHATML, bos_text="", eos_text="<|im_end|>", bos_id=None, eos_ids=runner.eos_ids)
    return Engine(config or EngineConfig(model=Path("scripted")), codec, runner, model_name="scripted")


if __name__ == "__main__":
    import argparse

    import conftest  # noqa: F401  (makes `hamdam` importable from a bare checkout)

    from hamdam.server.serving import serve
    from hamdam.server.settings import Settings

    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    args = parser.parse_args()
    serve(Settings(data=args.data, port=args.port), lambda settings: scripted_engine(step_seconds=args.step_seconds))
