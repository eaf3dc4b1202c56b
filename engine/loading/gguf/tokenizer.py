"""A tokenizer rebuilt from the metadata of a GGUF file, with the ids of the original. Not from a tokenizer.json.

What cannot be rebuilt exactly is refused by name: a tokenizer that is almost right gives a model that is almost right.
"""
import math

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from ...errors import ModelError
from .header import GGUFHeader

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4  # tokenizer.ggml.token_type; 5 is unused, 6 a byte

_SWALLOW_NOTHING = ("<unk>", "<s>", "<|endoftext|>")
"""The added tokens of Phi 3 that leave the white space behind them: the others take it in, which no key says."""
_SQUEEZES = "tokenizer.ggml.remove_extra_whitespaces"
_LONGEST = 4096  # letters of a token; the real ones have up to some hundred spaces
_SPACE = "▁"  # stands for a space in SentencePiece's pieces

# How text is cut before the merges, by the name the file gives; the patterns are those of the original tokenizers.
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_LINES = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_MARKED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"


def _cased(ending: str, numbers: str) -> str:
    """Words in the case they are written in: CamelCase is two."""
    before = r"[^\r\n\p{L}\p{N}]?"
    words = f"{before}{_UPPER}*{_LOWER}+{ending}|{before}{_UPPER}+{_LOWER}*{ending}|"
    return words + numbers + r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _SPACES


_PATTERNS: dict[str, tuple[str, ...]] = {  # each cuts further what the one before it left
    "llama-bpe": (_CONTRACTIONS + r"\p{N}{1,3}" + _LINES,),
    "smaug-bpe": (_CONTRACTIONS + r"\p{N}{1,3}" + _LINES,),  # Llama 3's without its BOS: SmolLM 3's
    "qwen2": (_CONTRACTIONS + r"\p{N}" + _LINES,),
    "qwen35": (_MARKED + _SPACES,),
    "tekken": (_cased("", r"\p{N}"),),
    "gpt-4o": (_cased("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", r"\p{N}{1,3}"),),
    "dbrx": (_CONTRACTIONS + r"\p{N}{1,3}" + _LINES,),  # Phi 4's too
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}"),
    "deepseek-v3": (
        r"\p{N}{1,3}",
        "[一-龥\u3040-ゟ゠-ヿ]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        r"| ?[\p{P}\p{S}]+[\r\n]*" + _SPACES,
    ),
}
_ALIASES = {"llama3": "llama-bpe", "llama-v3": "llama-bpe", "deepseek-r1-qwen": "qwen2"}
_GPT2 = ("gpt-2", "gpt2")
_SINGLE_DIGITS = ("smollm", "starcoder", "refact", "command-r")  # GPT-2's rule, after every digit is cut off
_BOS_FIRST = ("llama-bpe", "tekken")  # where the file does not say whether
_WHOLE_WORDS = (*_BOS_FIRST, "smaug-bpe")  # a piece that is a token as it stands is not taken through the merges
_COMPOSED = ("qwen2", "qwen35", "command-r")  # letter and accent become one character first


def build_tokenizer(header: GGUFHeader) -> Tokenizer:
    """Also checks what the builder in Rust takes on trust. The ids are the places in tokenizer.ggml.tokens."""
    source = header.source
    model = header.need("tokenizer.ggml.model", str)
    if model not in ("gpt2", "llama"):
        raise ModelError(f"{source}: tokenizers of the model {model!r} are not supported")
    tokens = header.need_list("tokenizer.ggml.tokens", str)
    types = header.need_list("tokenizer.ggml.token_type", int)
    vocabulary = dict(zip(tokens, range(len(tokens)), strict=True))
    if len(types) != len(tokens):
        raise ModelError(f"{source}: {len(tokens)} tokens, but {len(types)} token types")
    if max(map(len, tokens), default=0) > _LONGEST:
        raise ModelError(f"{source}: a token of the vocabulary has more than {_LONGEST} letters")
    if "" in vocabulary or len(vocabulary) != len(tokens):
        raise ModelError(f"{source}: two tokens of the vocabulary are the same, or one is empty")
    if "tokenizer.ggml.precompiled_charsmap" in header.values or header.find(_SQUEEZES, bool):
        raise ModelError(f"{source}: a tokenizer that rewrites its text first is not supported")
    build = _byte_level if model == "gpt2" else _sentence_piece
    tokenizer = build(header, vocabulary, types)
    of_gemma = model == "llama" and not _prefixed(header)
    swallows = model == "llama" and header.find("general.architecture", str) == "phi3"
    added = [
        AddedToken(
            tokens[number], special=kind != _USER_DEFINED, normalized=False,
            rstrip=swallows and tokens[number] not in _SWALLOW_NOTHING,
        )
        for number, kind in enumerate(types)
        if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED) and not (of_gemma and _is_run(tokens[number]))
    ]
    tokenizer.add_tokens(added)
    bos = special_id(header, "bos")
    if bos is not None and _begins_with_bos(header):
        tokenizer.post_processor = processors.TemplateProcessing("bos $A", "bos $A $B", [("bos", bos)])
    return tokenizer


def special_id(header: GGUFHeader, name: str) -> int | None:
    """The id that the file gives for bos, eos, eot or eom."""
    number = header.find(f"tokenizer.ggml.{name}_token_id", int)
    if number is not None and not 0 <= number < len(header.need_list("tokenizer.ggml.tokens", str)):
        raise ModelError(f"{header.source}: {name}_token_id is {number}, which is not in the vocabulary")
    return number


def _begins_with_bos(header: GGUFHeader) -> bool:
    """What the file says, and where it says nothing, what its kind of tokenizer does."""
    said = header.find("tokenizer.ggml.add_bos_token", bool)
    if said is not None:
        return said
    return header.find("tokenizer.ggml.model", str) == "llama" or _pre_tokenizer_name(header) in _BOS_FIRST


def _pre_tokenizer_name(header: GGUFHeader) -> str:
    name = header.find("tokenizer.ggml.pre", str) or ""
    return _ALIASES.get(name, name)


def _byte_level(header: GGUFHeader, vocabulary: dict[str, int], types: list[int]) -> Tokenizer:
    """GPT-2's kind: every byte is a character of an alphabet of 256, and the file lists the merges in order."""
    name, source = _pre_tokenizer_name(header), header.source
    cut: list[pre_tokenizers.PreTokenizer] = []
    if name in _PATTERNS:
        cut = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in _PATTERNS[name]]
    elif name in _SINGLE_DIGITS:
        cut = [pre_tokenizers.Digits(individual_digits=True)]
    elif name not in _GPT2:
        raise ModelError(f"{source}: the pre-tokenizer {name[:80]!r} is not supported")
    merges = _merges(source, header.need_list("tokenizer.ggml.merges", str), vocabulary, types)
    whole_words = name in _WHOLE_WORDS or header.find("general.architecture", str) == "gpt-oss"  # not others' gpt-4o
    tokenizer = Tokenizer(BPE(vocabulary, merges, ignore_merges=whole_words))
    if name in _COMPOSED:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=name not in _PATTERNS)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _merges(source: str, lines: list[str], vocabulary: dict[str, int], types: list[int]) -> list[tuple[str, str]]:
    """Two pieces a line, which make a third. They are checked all at once, and one by one to name what is wrong."""
    pieces = " ".join(lines).split(" ") if lines else []
    merges = list(zip(pieces[::2], pieces[1::2], strict=False))
    made = list(map("".join, merges))
    control = {token for token, number in vocabulary.items() if types[number] == _CONTROL}
    whole = list(map(" ".join, merges)) == lines
    if not (whole and all(map(vocabulary.__contains__, pieces + made)) and control.isdisjoint(made)):
        for line in lines:
            pair = line.split(" ")
            if len(pair) != 2 or not vocabulary.keys() >= {*pair, "".join(pair)}:
                raise ModelError(f"{source}: the merge {line[:80]!r} does not fit the vocabulary")
            if "".join(pair) in control:
                raise ModelError(f"{source}: the merge {line[:80]!r} would make a control token out of text")
    return merges


def _sentence_piece(header: GGUFHeader, vocabulary: dict[str, int], types: list[int]) -> Tokenizer:
    """Llama 2's kind: a space is a letter, bytes stand in for unknown letters, the pieces' scores order the merges."""
    scores = header.need_list("tokenizer.ggml.scores", float)
    if len(scores) != len(types):
        raise ModelError(f"{header.source}: {len(types)} tokens, but {len(scores)} scores")
    prefixed = _prefixed(header)
    if not prefixed:
        vocabulary, types, scores = _with_runs(vocabulary, types, scores)
        if len(vocabulary) != len(types):
            raise ModelError(f"{header.source}: two tokens of the vocabulary are the same run of spaces")
    unknown = next((token for token, number in vocabulary.items() if types[number] == _UNKNOWN), None)
    bytes_known = all(f"<0x{byte:02X}>" in vocabulary for byte in range(256))
    merges = _merges_by_score(header.source, vocabulary, types, scores)
    tokenizer = Tokenizer(BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=bytes_known))
    spaces_to_letter = normalizers.Replace(" ", _SPACE)
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend(_SPACE), spaces_to_letter]) if prefixed else spaces_to_letter
    )
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefixed else steps)
    return tokenizer


def _prefixed(header: GGUFHeader) -> bool:
    return header.find("tokenizer.ggml.add_space_prefix", bool) is not False


def _is_run(token: str) -> bool:
    return set(token) == {" "}


def _with_runs(
    vocabulary: dict[str, int], types: list[int], scores: list[float]
) -> tuple[dict[str, int], list[int], list[float]]:
    """Gemma's runs of spaces, which its files call user-defined, as the pieces that are made before all others."""
    first = max(scores, default=0.0) + 1
    runs = {number for token, number in vocabulary.items() if types[number] == _USER_DEFINED and _is_run(token)}
    return (
        {token.replace(" ", _SPACE) if number in runs else token: number for token, number in vocabulary.items()},
        [_NORMAL if number in runs else kind for number, kind in enumerate(types)],
        [first if number in runs else score for number, score in enumerate(scores)],
    )


def _merges_by_score(
    source: str, vocabulary: dict[str, int], types: list[int], scores: list[float]
) -> list[tuple[str, str]]:
    """Every way to make a piece of two, the best score first. Normal pieces only: no text becomes a control token."""
    normal = {token: scores[number] for token, number in vocabulary.items() if types[number] == _NORMAL}
    merges: list[tuple[str, str]] = []
    before = None
    for piece, score in sorted(normal.items(), key=lambda item: -item[1]):
        cuts = ((piece[:middle], piece[middle:]) for middle in range(1, len(piece)))
        ways = [(left, right) for left, right in cuts if left in normal and right in normal]
        if not ways:
            continue
        if not math.isfinite(score) or (score == before and set(piece) != {_SPACE}):  # runs of spaces all come last
            raise ModelError(f"{source}: the scores of the vocabulary do not order its merges")
        before = score
        merges += sorted(ways, key=lambda way: (vocabulary[way[0]], vocabulary[way[1]]))  # as the originals were made
    return merges
