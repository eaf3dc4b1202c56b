"""A Hugging Face folder as a Checkpoint: which shard each tensor comes from, and the small files. Never pickle."""
import hashlib
from collections.abc import Mapping
from pathlib import Path

from ..errors import ModelError
from ..models.config import ModelConfig
from . import declared, recommended
from .arranged_weights import arranged
from .contents import Checkpoint, Weights
from .folder_config import model_config
from .folder_names import decoder_tensors
from .folder_weights import open_weights
from .json_object import read_bounded, read_object
from .mxfp4_experts import ExpertWeights, mxfp4_experts
from .numbers import DTYPES
from .quantization import Quantization, quantization
from .safetensors import TYPES, SafetensorsFile, open_safetensors
from .tokenizer_files import read_tokenizer_files
from .weight_names import check_tensors, expected_tensors

_INDEX = "model.safetensors.index.json"


def open_folder(folder: Path) -> Checkpoint:
    said = declared.of_folder(folder, read_object(folder / "config.json"))
    config, quantised = model_config(said), quantization(said)
    text = read_tokenizer_files(folder, said, config.vocab_size)
    declared.refuse_unread(said)
    holders = {name: shard for name, shard in _holders(folder).items() if not _needless(name, config)}
    weights = _weights(config, holders, quantised)
    check_tensors(folder.name, config, weights.shapes)
    for name, kind in weights.formats.items():
        if kind in TYPES and kind not in DTYPES:
            raise ModelError(f"{folder.name}: {name} has the type {kind}, which is not supported")
    return Checkpoint(
        name=folder.resolve().name,
        config=config,
        fingerprint=_fingerprint(folder, holders),
        tokenizer=text.tokenizer,
        bos_id=text.bos_id,
        bos_text=text.bos_text,
        eos_text=text.eos_text,
        eos_ids=text.eos_ids,
        chat_template=text.chat_template,
        sampling=recommended.of_folder(folder),
        weights=weights,
    )


def _weights(
    config: ModelConfig, holders: Mapping[str, SafetensorsFile], quantised: Quantization | None
) -> Weights:
    """The decoder's tensors, whatever the files call them and in which form they have them."""
    plain, experts = mxfp4_experts(config, holders)
    own, changes = decoder_tensors(config, plain)
    weights = arranged(config, open_weights(own, quantised, expected_tensors(config)), changes)
    if twice := sorted(experts.keys() & weights.shapes.keys()):
        raise ModelError(f"{twice[0]} is there as plain numbers and in MXFP4")
    return ExpertWeights(weights, experts) if experts else weights


def _holders(folder: Path) -> dict[str, SafetensorsFile]:
    """The file each tensor is taken from. An index alone decides, whatever else lies in the folder."""
    if (folder / _INDEX).is_file():
        index = read_object(folder / _INDEX).object("weight_map")
        if index is None:
            raise ModelError(f"{_INDEX}: weight_map is missing")
        places = {name: index.need(name, str) for name in index.values}
        for name in places.values():
            if not name.endswith(".safetensors") or any(letter in name for letter in "/\\\0"):
                raise ModelError(f"{_INDEX}: {name[:80]!r} is not the name of a .safetensors file in the folder")
        shards = {name: open_safetensors(folder / name) for name in sorted(set(places.values()))}
        for name, shard in places.items():
            if name not in shards[shard].tensors:
                raise ModelError(f"{shard}: {name[:80]} is missing, though {_INDEX} says that it is here")
        return {name: shards[shard] for name, shard in places.items()}
    files = sorted(folder.glob("*.safetensors"))
    whole = [file for file in files if file.name == "model.safetensors"] or files
    if not whole:
        pickled = any(folder.glob("*.bin")) or any(folder.glob("*.pt*"))
        why = "; pickled weights (.bin, .pt) are never loaded, for they can run code" if pickled else ""
        raise ModelError(f"{folder}: there are no .safetensors files{why}")
    if len(whole) > 1:
        raise ModelError(f"{folder}: {len(whole)} .safetensors files, but no {_INDEX} to say what is where")
    file = open_safetensors(whole[0])
    return dict.fromkeys(file.tensors, file)


def _needless(name: str, config: ModelConfig) -> bool:
    """Written by some, used by none: a head beside a tied embedding, which is the head, and old rotary tables."""
    head = config.tie_word_embeddings and name.startswith("lm_head.") and name != "lm_head.bias"
    return head or name.endswith(".rotary_emb.inv_freq")


def _fingerprint(folder: Path, holders: dict[str, SafetensorsFile]) -> str:
    """Two fine-tunes can have the same tables, so the first bytes of every tensor count too."""
    digest = hashlib.sha256(read_bounded(folder / "config.json"))
    if (folder / declared.NAME).is_file():
        digest.update(read_bounded(folder / declared.NAME))
    for name, shard in sorted(holders.items()):
        stored = shard.tensors[name]
        with shard.path.open("rb") as file:
            file.seek(stored.offset)
            digest.update(f"{name} {stored.dtype} {stored.shape} ".encode() + file.read(min(stored.nbytes, 4096)))
    return digest.hexdigest()
