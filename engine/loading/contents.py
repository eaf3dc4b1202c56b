"""Checkpoint: a model as its files describe it, whatever the format. Not loaded weights: those are read when asked."""
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from tokenizers import Tokenizer

from ..models.config import ModelConfig
from ..text.codec import Codec
from .coded import Coded
from .numbers import DTYPES, Floats, Numbers, Quantized

EXPERT = ".mlp.experts."
"""What the names of experts' tensors have in them, and no others."""
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
Hold = Literal["nothing", "experts", "all"]
"""Which quantised matrices PyTorch is to have as they are stored, where no kernel multiplies them so: experts, or the
layers', head and embedding too."""
_TOGETHER = re.compile(r"\.(?:([qkv])|gate|up)_proj\.weight$")


class Weights(Protocol):
    """The tensors of some files under their Hugging Face names, each read anew whenever it is asked for.

    formats: what each is stored in ("F32", "BF16", "Q4_1", "AWQ" …), in the order of the files. shapes: of the values.
    Where `rows` are asked for, a range of dimension 0, only they are read.
    """

    @property
    def formats(self) -> Mapping[str, str]: ...

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...

    def read(self, name: str, rows: range | None = None) -> Numbers:
        """float32 where the file is quantised, else the file's own dtype. The rows of q and k as Hugging Face has them:
        the first half of a head's rotates with the second."""

    def bits(self, name: str) -> int | None:
        """4 or 8 where `quantized` has the matrix in so many; None where it would have to be rounded for that."""

    def quantized(self, name: str, rows: range | None = None) -> Quantized | None:
        """A matrix as blocks of one of BLOCK_QUANTISED, where `bits` says so; else None. The rows in the same order."""

    def coded(self, name: str, rows: range | None = None) -> Coded | None:
        """A matrix of AWQ, GPTQ, compressed-tensors or FP8, as it is; else None."""

    def blocks(self, name: str, rows: range | None = None) -> Quantized | None:
        """A matrix in the GGUF blocks that it is stored in, whatever their type, or in those of MXFP4; else None."""

    def kept_bytes(self, name: str) -> int | None:
        """What a matrix takes in memory that `blocks` or `coded` has, as kernels.grouped or Mxfp4; else None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Everything here was checked when it was opened: the names and shapes are those that `config` asks for.

    bos_id: the token that raw text begins with; None where the model wants none. bos_text and eos_text are what a chat
    template calls `bos_token` and `eos_token`, "" where there is none.
    eos_ids: every token that ends an answer, from all the places that name one.
    sampling: what the makers recommend, by the names of SamplingParams.
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
    weights: Weights

    def codec(self) -> Codec:
        """Of its tokenizer and template. Making one takes a while."""
        return Codec(
            self.tokenizer, self.chat_template, bos_text=self.bos_text, eos_text=self.eos_text, bos_id=self.bos_id,
            eos_ids=self.eos_ids,
        )

    def array(self, name: str, rows: range | None = None) -> Floats:
        """One tensor as float32, or some rows of it, without PyTorch."""
        return self.weights.read(name, rows).float32()

    def arrays(self) -> Iterator[tuple[str, Floats]]:
        """All of them in the order of the files, so that no more than one need be in memory."""
        for name in self.weights.formats:
            yield name, self.array(name)

    def quantized(self, name: str, rows: range | None = None) -> Quantized | None:
        return self.weights.quantized(name, rows)

    def quantised(self) -> list[str]:
        """The formats of its matrices that are not plain numbers."""
        return sorted({self.weights.formats[name] for name in self._matrices()} - DTYPES.keys())

    def rounded(self) -> list[str]:
        """The quantised formats of this checkpoint that `quantized` has not: in 4 or 8 bits they are rounded again."""
        formats = {self.weights.formats[name] for name in self._matrices() if self.weights.bits(name) is None}
        return sorted(formats - DTYPES.keys())

    def held(self, hold: Hold) -> dict[str, int]:
        """By name what each matrix takes in memory that stays as it is stored: such as are multiplied as one do so
        together, or not at all."""
        sizes, apart = dict[str, int](), set[str]()
        for name in self._matrices():
            if not (_multiplied(name) if hold == "all" else hold == "experts" and EXPERT in name):
                continue
            size = self.weights.kept_bytes(name)
            if size is None:
                apart.add(_whole(name))
            else:
                sizes[name] = size
        forms: dict[str, set[bool]] = {}
        for name in sizes:
            forms.setdefault(_whole(name), set()).add(self.weights.formats[name] == "MXFP4")
        apart |= {whole for whole, kinds in forms.items() if len(kinds) > 1}
        return {name: size for name, size in sizes.items() if _whole(name) not in apart}

    def _matrices(self) -> list[str]:
        return [name for name, shape in self.weights.shapes.items() if len(shape) == 2]

    def pieces(self, *, keep: bool, hold: Hold = "nothing") -> Iterator[tuple[str, Any]]:
        """The same as models.weights.assign takes them, some rows at a time. keep: the layers' matrices and the head
        come quantised, where a form of kernels.quantized can hold them as they are. hold: what comes as it is stored,
        whatever that is; experts in MXFP4 always do."""
        from .torch_tensors import pieces

        return pieces(self.weights, keep=keep, held=self.held(hold).keys())

    def tensors(self) -> Iterator[tuple[str, Any]]:
        """`torch.Tensor`s in the dtype that `Weights.read` says. Only this asks for PyTorch: importing it takes most of
        a second and 200 MB, which a path without it is to be spared."""
        from .torch_tensors import as_tensor

        for name in self.weights.formats:
            yield name, as_tensor(self.weights.read(name))


def _multiplied(name: str) -> bool:
    return name.endswith("_proj.weight") or name in (HEAD, EMBEDDING)


def _whole(name: str) -> str:
    """What it is a part of."""
    return _TOGETHER.sub(lambda found: ".qkv" if found[1] else ".gate_up", name)
