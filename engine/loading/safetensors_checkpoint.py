"""A Hugging Face folder as a Checkpoint: which shard each tensor comes from, and the small files. Never pickle."""
import hashlib
from pathlib import Path

from ..errors import ModelError
from ..models.config import ModelConfig
from . import recommended
from .contents import Checkpoint
from .folder_config import model_config
from .json_object import read_bounded, read_object
from .numbers import Numbers, Quantized
from .safetensors import SafetensorsFile, open_safetensors
from .tokenizer_files import read_tokenizer_files
from .weight_names import check_tensors

_INDEX = "model.safetensors.index.json"


class FolderWeights:
    """Implements contents.Weights: nothing in such a folder is quantised."""

    def __init__(self, holders: dict[str, SafetensorsFile]) -> None:
        in_order = sorted(holders.items(), key=lambda item: (item[1].path, item[1].tensors[item[0]].offset))
        self._holders = dict(in_order)
        self.formats = {name: shard.tensors[name].dtype for name, shard in in_order}

    def read(self, name: str) -> Numbers:
        return self._holders[name].read(name)

    def quantized(self, name: str) -> Quantized | None:
        return None


def open_folder(folder: Path) -> Checkpoint:
    config = model_config(read_object(folder / "config.json"))
    holders = {name: shard for name, shard in _holders(folder).items() if not _needless(name, config)}
    check_tensors(folder.name, config, {name: shard.tensors[name].shape for name, shard in holders.items()})
    text = read_tokenizer_files(folder, config.vocab_size)
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
        weights=FolderWeights(holders),
    )


def _holders(folder: Path) -> dict[str, SafetensorsFile]:
    """The file each tensor is taken from. An index alone decides, whatever else lies in the folder."""
    if (folder / _INDEX).is_file():
        index = read_object(folder / _INDEX).object("weight_map")
        if index is None:
            raise ModelError(f"{_INDEX}: weight_map is missing")
        places = {name: index.need(name, str) for name in index.values}
        for name in places.values():
            if not name.endswith(".safetensors") or "/" in name or "\\" in name:
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
    return (name == "lm_head.weight" and config.tie_word_embeddings) or name.endswith(".rotary_emb.inv_freq")


def _fingerprint(folder: Path, holders: dict[str, SafetensorsFile]) -> str:
    """Two fine-tunes can have the same tables, so the first bytes of every tensor count too."""
    digest = hashlib.sha256(read_bounded(folder / "config.json"))
    for name, shard in sorted(holders.items()):
        stored = shard.tensors[name]
        with shard.path.open("rb") as file:
            file.seek(stored.offset)
            digest.update(f"{name} {stored.dtype} {stored.shape} ".encode() + file.read(min(stored.nbytes, 4096)))
    return digest.hexdigest()
