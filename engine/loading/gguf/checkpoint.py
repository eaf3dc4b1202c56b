"""A GGUF file as a Checkpoint. What its keys mean: config.py. Its bytes: header.py and weights.py."""
from collections.abc import Iterable
from pathlib import Path

from ...models.config import ModelConfig
from .. import declared, recommended
from ..arranged_weights import arranged
from ..contents import Checkpoint
from ..tokenizer_files import check_rows, ends_by_template, first_id
from ..weight_names import check_tensors
from .config import model_config
from .header import read_header
from .names import decoder_tensors
from .tokenizer import build_tokenizer, special_id
from .weights import GGUFWeights, sample_digest

_NAMED_ENDS = ("<|endoftext|>", "<|end_of_text|>", "<|eom_id|>")
"""What ends a text wherever there is such a token. A file says one end, or two; a folder's generation_config.json may
list more, which are known here by name."""


def open_gguf(path: Path) -> Checkpoint:
    header = declared.of_gguf(path, read_header(path))
    config = model_config(path, header)
    tokenizer = build_tokenizer(header)
    tokens = header.need_list("tokenizer.ggml.tokens", str)
    check_rows(path.name, len(tokens) - 1, config.vocab_size)
    bos, eos, eot, eom = (special_id(header, name) for name in ("bos", "eos", "eot", "eom"))
    bos_text, eos_text = ("" if number is None else tokens[number] for number in (bos, eos))
    template = header.find("tokenizer.chat_template", str)
    named = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.content in _NAMED_ENDS}
    ends = {eos, eot, eom, *named, *ends_by_template(template, tokenizer, bos_text, eos_text)}
    sampling = recommended.of_gguf(header)
    declared.refuse_unread(header)
    infos = decoder_tensors(config, header)
    weights = arranged(config, GGUFWeights(path, infos, _rotary_pairs(config, infos)))
    check_tensors(path.name, config, weights.shapes)
    return Checkpoint(
        name=path.name.removesuffix(".gguf"),
        config=config,
        fingerprint=sample_digest(path, header.tensors, header.digest),
        tokenizer=tokenizer,
        bos_id=first_id(tokenizer, bos),
        bos_text=bos_text,
        eos_text=eos_text,
        eos_ids=frozenset(end for end in ends if end is not None),
        chat_template=template,
        sampling=sampling,
        weights=weights,
    )


def _rotary_pairs(config: ModelConfig, infos: Iterable[str]) -> dict[str, int]:
    """By name, the heads of q and k. Files of these architectures, and of no others, store their rows as pairs."""
    if config.architecture not in ("llama", "mistral", "mixtral", "smollm3"):
        return {}
    heads = {".q_proj.": config.num_heads, ".k_proj.": config.num_kv_heads}
    return {name: count for name in infos for part, count in heads.items() if part in name}
