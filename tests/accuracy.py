"""What the native path costs in quality, against the same model in float32: perplexity, divergence, agreement. By hand.

    python tests/accuracy.py [--tokens N] [--dtype int8 | int16] [--text FILE …] [--threads N] [--json FILE]

The text is the language reference that every Python carries (its hash is printed: it differs a little from version to
version), or the given files. It is read in windows of 1,024 tokens: as a whole by PyTorch in float32, and by the native
path as answers are computed, a token a step, windows side by side; of one window it is also seen that computing it as a
prompt gives the same logits, bit for bit. Ends with 1 where that is not so, or where int8, the default, is worse than
it may be. Takes a few minutes and 3 GB.
"""
import argparse
import hashlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

import conftest  # noqa: F401  (makes `hamdam` importable from a bare checkout)
import numpy as np
import torch
from default_model import default_model_path
from native_path import decoded_logits, native, prefilled_logits
from numpy.typing import NDArray
from whole_windows import WholeWindows

from hamdam.engine.execution.packed_weights import open_packed
from hamdam.engine.execution.quality import EXACT_ABOVE
from hamdam.engine.loading.checkpoint import Checkpoint, open_checkpoint

WINDOW = 1024  # tokens
SIDE_BY_SIDE = 4  # windows: their logits are kept, 200 MB each
MOST_PERPLEXITY, MOST_DIVERGENCE = 1.002, 0.001  # of int8: times that of float32; nats a token


@dataclass
class Likeness:
    """Sums over `tokens` predicted ones. Nats."""

    tokens: int = 0
    reference: float = 0.0  # -log p of the text's tokens
    own: float = 0.0
    divergence: float = 0.0  # KL(float32 || own)
    agreed: int = 0  # where the likeliest token is the same

    def add(self, ids: list[int], right: NDArray[np.float32], found: NDArray[np.float32]) -> None:
        """Both [tokens, vocabulary]: a text's logits."""
        for start in range(0, len(ids) - 1, 128):
            targets = torch.tensor(ids[start + 1 : start + 129])[:, None]
            end = start + len(targets)
            p, q = (torch.from_numpy(x[start:end]).double().log_softmax(-1) for x in (right, found))
            self.tokens += len(targets)
            self.reference -= float(p.gather(1, targets).sum())
            self.own -= float(q.gather(1, targets).sum())
            self.divergence += float((p.exp() * (p - q)).sum())
            self.agreed += int((p.argmax(-1) == q.argmax(-1)).sum())

    @property
    def perplexities(self) -> tuple[float, float]:
        return float(np.exp(self.reference / self.tokens)), float(np.exp(self.own / self.tokens))

    def figures(self) -> dict[str, float]:
        right, own = self.perplexities
        return {
            "tokens": self.tokens, "perplexity_float32": right, "perplexity": own, "ratio": own / right,
            "divergence": self.divergence / self.tokens, "agreement": self.agreed / self.tokens,
        }


def reference_text() -> str:
    return "\n\n".join(topics[name] for name in sorted(topics))


def windows(ids: list[int]) -> Iterator[list[int]]:
    for start in range(0, len(ids), WINDOW):
        if len(window := ids[start : start + WINDOW]) > 1:
            yield window


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--dtype", choices=EXACT_ABOVE, help="both, where it is not given")
    parser.add_argument("--text", type=Path, nargs="+")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--threads", type=int, default=1, help="more are slower where others compute as well")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    checkpoint = open_checkpoint(args.model or default_model_path())
    text = "\n\n".join(path.read_text() for path in args.text) if args.text else reference_text()
    ids = checkpoint.tokenizer.encode(text, add_special_tokens=False).ids[: args.tokens]
    digest = hashlib.sha256(np.array(ids, "<u4").tobytes()).hexdigest()[:16]
    print(f"{checkpoint.name}: {len(ids)} tokens in windows of {WINDOW}; sha256 of the ids {digest}", file=sys.stderr)
    dtypes = [args.dtype] if args.dtype else list(EXACT_ABOVE)
    found, same = measure(checkpoint, list(windows(ids)), dtypes, args.threads)

    print(f"{'':8}{'perplexity':>12}{'× float32':>12}{'KL, nats':>12}{'agreement':>12}{'prefill':>10}")
    right = next(iter(found.values())).perplexities[0]
    print(f"{'float32':8}{right:12.4f}{1:12.5f}{0:12.6f}{1:12.2%}")
    for dtype, likeness in found.items():
        own = likeness.figures()
        print(f"{dtype:8}{own['perplexity']:12.4f}{own['ratio']:12.5f}{own['divergence']:12.6f}"
              f"{own['agreement']:12.2%}{'same bits' if same[dtype] else 'DIFFERS':>10}")
    if args.json:
        facts = {"model": checkpoint.name, "ids": digest, "window": WINDOW}
        args.json.write_text(json.dumps(facts | {name: own.figures() for name, own in found.items()}, indent=2) + "\n")
    fine = all(same.values())
    if default := found.get("int8"):
        own = default.figures()
        fine &= own["ratio"] <= MOST_PERPLEXITY and own["divergence"] <= MOST_DIVERGENCE
    return 0 if fine else 1


def measure(
    checkpoint: Checkpoint, texts: list[list[int]], dtypes: list[str], threads: int
) -> tuple[dict[str, Likeness], dict[str, bool]]:
    """And whether computing a prompt gave the very logits that decoding it gave."""
    torch.set_num_threads(threads)
    right = WholeWindows(checkpoint, longest=WINDOW)
    weights = open_packed(checkpoint, None)
    found, same = {dtype: Likeness() for dtype in dtypes}, dict.fromkeys(dtypes, True)
    began = time.monotonic()
    for first in range(0, len(texts), SIDE_BY_SIDE):
        some = texts[first : first + SIDE_BY_SIDE]
        for dtype in dtypes:
            knobs = {"kv_memory": SIDE_BY_SIDE * WINDOW << 16, "max_batch_tokens": WINDOW}
            with native(checkpoint, dtype=dtype, threads=threads, weights=weights, **knobs) as runner:
                decoded = decoded_logits(runner, some)
                if not first:
                    same[dtype] = all(
                        np.array_equal(prefilled_logits(runner, some[0], *ends), decoded[0][ends[-1] - 1])
                        for ends in ((len(some[0]),), (len(some[0]) // 3, len(some[0]) // 2))
                    )
            for ids, own in zip(some, decoded, strict=True):
                found[dtype].add(ids, right.logits(ids), own)
        print(f"{first + len(some)} of {len(texts)} windows, {time.monotonic() - began:.0f} s", file=sys.stderr)
    return found, same


if __name__ == "__main__":
    sys.exit(main())
