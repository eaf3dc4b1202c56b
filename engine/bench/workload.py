"""Workload: one kind of work for the engine, counted to the token. It runs nothing.

decode   `batch` sequences get their next tokens after prompts of `context` tokens; the first three are not counted
prefill  one prompt of `prompt` tokens, none of them computed before, in pieces as the scheduler cuts them
mixed    every step holds `batch` decoding sequences of `context` tokens and one whole prompt of `prompt` tokens
"""
from collections.abc import Sequence
from dataclasses import dataclass

from ..config import BLOCK_SIZE

WARM_UP = 3  # tokens of each that are drawn before the counting begins
BATCHES, CONTEXTS, PROMPTS = (1, 4, 16, 32, 64), (128, 1024), (512, 2048)
MIXED_BATCH, MIXED_CHUNK = 16, 256
STEPS = 32  # counted in one repeat
REPEATS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    kind: str  # decode | prefill | mixed
    batch: int = 0
    context: int = 0
    prompt: int = 0
    steps: int = STEPS  # counted in one repeat, of decode and mixed

    @property
    def name(self) -> str:
        match self.kind:
            case "decode":
                return f"decode {self.batch} × {self.context}"
            case "prefill":
                return f"prefill {self.prompt}"
        return f"mixed {self.batch} × {self.context} + {self.prompt}"

    @property
    def longest(self) -> int:
        """Tokens of its longest sequence when a repeat is over."""
        return max(self.context + WARM_UP + self.steps if self.batch else 0, self.prompt + 1)

    @property
    def blocks(self) -> int:
        """KV blocks that it needs at most: two more a sequence than its tokens fill, to copy one and to grow by one."""
        decoding = self.batch * (-(-(self.context + WARM_UP + self.steps) // BLOCK_SIZE) + 2)
        return decoding + (-(-self.prompt // BLOCK_SIZE) + 2 if self.prompt else 0)

    def budget(self, chunk: int) -> int:
        """Tokens that a step may hold, where a prompt is otherwise cut into pieces of `chunk`."""
        return self.batch + self.prompt if self.kind == "mixed" else max(chunk, self.batch + 1)


def workloads(
    batches: Sequence[int] = BATCHES,
    contexts: Sequence[int] = CONTEXTS,
    prompts: Sequence[int] = PROMPTS,
    *,
    steps: int = STEPS,
) -> list[Workload]:
    """What `hamdam bench engine` measures: decode by context and batch, then prompts, then both at once."""
    return [
        *(Workload(kind="decode", batch=b, context=c, steps=steps) for c in contexts for b in batches),
        *(Workload(kind="prefill", prompt=prompt) for prompt in prompts),
        Workload(kind="mixed", batch=MIXED_BATCH, context=contexts[0], prompt=MIXED_CHUNK, steps=steps),
    ]
