"""Checkpoint: a model as its files describe it, whatever the format. Not loaded weights: `tensors` reads those."""
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer

from ..models.config import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Everything here was checked when it was opened: the names and shapes are those that `config` asks for.

    bos_id: the token that raw text begins with; None where the model wants none. bos_text and eos_text are what a chat
    template calls `bos_token` and `eos_token`, "" where there is none.
    eos_ids: every token that ends an answer, from all the places that name one.
    sampling: what the makers recommend, by the names of SamplingParams.
    tensors: Hugging Face names and values, float32 where the file is quantised, else the file's own dtype.
    """

    name: str
    config: ModelConfig
    fingerprint: str  # sha256 in hexadecimal, of the header and a sample of every tensor
    tokenizer: Tokenizer
    bos_id: int | None
    bos_text: str
    eos_text: str
    eos_ids: frozenset[int]
    chat_template: str | None
    sampling: Mapping[str, float | int]
    tensors: Callable[[], Iterator[tuple[str, torch.Tensor]]]
