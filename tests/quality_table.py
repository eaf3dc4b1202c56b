"""What fewer bits cost in quality, against the same model in float32: the README's table. By hand.

    python tests/quality_table.py [--tokens N] [--model FILE] [--threads N] [--rows ROW …]

The text and its windows are accuracy.py's. PyTorch reads a window as a whole, its keys and values as the cache has
them; native code decodes all of them side by side, a token a step. The default model is one of few bits (Q4_1): float32
computes with the numbers that they stand for, and what --quantize says rounds those again. Takes ten minutes.
"""
import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import conftest  # noqa: F401  (makes `hamdam` importable from a bare checkout)
import numpy as np
import torch
from accuracy import WINDOW, Likeness, reference_text, windows
from default_model import default_model_path
from native_path import decoded_logits, native
from numpy.typing import NDArray
from whole_windows import WholeWindows

from hamdam.engine.loading.checkpoint import Checkpoint, open_checkpoint

NATIVE = ("int8", "int16")
PYTORCH: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": torch.bfloat16},
    "quantize int8": {"quantize": "int8"},
    "quantize fp8": {"quantize": "fp8"},
    "quantize int4": {"quantize": "int4"},
    "KV bfloat16": {"kv_dtype": torch.bfloat16},
    "KV float16": {"kv_dtype": torch.float16},
    "KV int8": {"kv_dtype": torch.int8},
    "KV fp8": {"kv_dtype": torch.float8_e4m3fn},
}
Read = Callable[[list[list[int]]], list[NDArray[np.float32]]]
"""Texts -> the logits of each, [tokens, vocabulary]."""


@contextmanager
def reading(checkpoint: Checkpoint, way: str, threads: int) -> Iterator[Read]:
    if way not in NATIVE:
        whole = WholeWindows(checkpoint, longest=WINDOW, **PYTORCH[way])
        yield lambda texts: [whole.logits(ids) for ids in texts]
        return
    with native(checkpoint, dtype=way, threads=threads, kv_memory=1 << 30) as runner:
        yield lambda texts: decoded_logits(runner, texts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=4096, help="400 MB for every 1,024 of them")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", nargs="+", choices=(*NATIVE, *PYTORCH), default=(*NATIVE, *PYTORCH), metavar="ROW")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    checkpoint = open_checkpoint(args.model or default_model_path())
    ids = checkpoint.tokenizer.encode(reference_text(), add_special_tokens=False).ids[: args.tokens]
    texts, began = list(windows(ids)), time.monotonic()
    right = [*map(WholeWindows(checkpoint, longest=WINDOW).logits, texts)]
    print(f"{checkpoint.name}: {len(ids)} tokens in windows of {WINDOW}, {time.monotonic() - began:.0f} s")
    print("| | perplexity | × float32 | KL, nats | same likeliest token |\n| --- | --- | --- | --- | --- |", flush=True)
    for at, way in enumerate(args.rows):
        likeness = Likeness()
        with reading(checkpoint, way, args.threads) as read:
            for ids, logits, own in zip(texts, right, read(texts), strict=True):
                likeness.add(ids, logits, own)
        said = likeness.figures()
        if not at:
            print(f"| float32 | {said['perplexity_float32']:.4f} | 1 | 0 | 100 % |")
        print(f"| {way} | {said['perplexity']:.4f} | {said['ratio']:.5f} | {said['divergence']:.6f} "
              f"| {said['agreement']:.2%} |", flush=True)
        print(f"{way}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
