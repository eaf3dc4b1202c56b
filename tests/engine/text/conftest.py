"""Tiny tokenizers and templates for the tests of the text room, small enough to know every id; nothing to download."""
import hypothesis
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from hamdam.engine.text.codec import Codec

hypothesis.settings.register_profile("untimed", deadline=None)  # a busy machine is no fault of the code
hypothesis.settings.load_profile("untimed")

CHATML = """{% for message in messages %}<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

SENTENCES = [
    "system user assistant Hello, how are you? I am fine, thank you very much.\n\n  code  indented\n",
    "سلام، حالت چطور است؟ خوبم، ممنون. می‌روم کتاب‌ها را بیاورم.  سلام",
    "def main():\n    return [1, 2, 3]\n\n\nprint('done')\n",
]


@pytest.fixture(scope="session")
def byte_fallback() -> Tokenizer:
    """SentencePiece's way: words with a mark for the space before, and a token for each byte of what is no word."""
    words = ["▁", "▁Hello", "▁world", "Hello", ",", ".", "!", "▁leading", "▁x", "▁▁▁▁", "می", "روم", "ok", "»"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    model = models.BPE({p: i for i, p in enumerate(pieces)}, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<unk>", "<s>", "</s>")])
    return tokenizer


def byte_level(*special: str, soft: tuple[str, ...] = ()) -> Tokenizer:
    """GPT-2's way, with some merges learnt; `special` are control tokens, `soft` are added without being special."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=alphabet, special_tokens=list(special), show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES * 3, trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in soft])
    return tokenizer


@pytest.fixture(scope="session")
def chatml_tokenizer() -> Tokenizer:
    return byte_level("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@pytest.fixture(scope="session")
def chatml(chatml_tokenizer: Tokenizer) -> Codec:
    return Codec(chatml_tokenizer, CHATML, eos_text="<|im_end|>", eos_ids=[2])


@pytest.fixture(scope="session")
def thinking(chatml_tokenizer: Tokenizer) -> Tokenizer:
    """Qwen's shape: `<think>` is an added token, not a special one."""
    return byte_level("<|endoftext|>", "<|im_start|>", "<|im_end|>", soft=("<think>", "</think>"))


@pytest.fixture(scope="session")
def llama3() -> Tokenizer:
    """A post-processor that adds BOS, beside templates that may write it too."""
    tokenizer = byte_level("<|begin|>", "<|header|>", "<|/header|>", "<|eot|>")
    tokenizer.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", 0)])
    return tokenizer
