"""The tokenizer files of a Hugging Face folder, and what holds for every tokenizer. Not GGUF's (gguf_tokenizer.py)."""
from tokenizers import Tokenizer

from ..errors import ModelError


def check_vocabulary(source: str, tokenizer: Tokenizer, rows: int) -> None:
    largest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if largest >= rows:
        raise ModelError(f"{source}: the tokenizer has the id {largest}, the embedding only {rows} rows")


def end_of_turn(template: str | None, tokenizer: Tokenizer, bos_text: str, eos_text: str) -> int | None:
    return None
