"""The default model's own tokenizer and template: prompts are what its template says, encoded in one go."""
import pytest
from default_model import default_model_path
from tokenizers import Tokenizer

from hamdam.engine.chat import Chat, ChatMessage
from hamdam.engine.loading.checkpoint import open_checkpoint
from hamdam.engine.text.codec import Codec

pytestmark = pytest.mark.model

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
TEXTS = [
    "Hi", "Hello, how are you?", "  two  spaces", "\n\n  code", "  سلام", "می‌روم و کتاب‌ها را می‌آورم.", "👨‍👩‍👧 🦙",
    "don't 12345", "Café déjà vu — 123 😊", "漢字かな交じり文", "```python\nprint(1)\n```", "a\tb\r\nc", "x" * 300,
    "العَرَبِيَّة", "1 + 1 = 2; 3 < 4 > 2", "<b>bold</b> [link](https://example.org)", "trailing \n", "\u200c\u200d", "…",
    "What did I ask before?",
]  # fmt: skip


@pytest.fixture(scope="module")
def model() -> tuple[Codec, Tokenizer]:
    checkpoint = open_checkpoint(default_model_path())
    codec = checkpoint.codec()
    return codec, checkpoint.tokenizer


def written(*turns: tuple[str, str]) -> str:
    turns = turns if turns[0][0] == "system" else (("system", SYSTEM), *turns)
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns) + "<|im_start|>assistant\n"


def conversations() -> list[list[tuple[str, str]]]:
    """Of one to five messages, half of them with a system text."""
    found = []
    for i, text in enumerate(TEXTS):
        turns = [("user", text)]
        for j in range(i % 3):
            turns += [("assistant", TEXTS[(i + j + 1) % len(TEXTS)]), ("user", TEXTS[(i + 7 * j + 3) % len(TEXTS)])]
        found.append([("system", TEXTS[-i]), *turns] if i % 2 else turns)
    return found


@pytest.mark.parametrize("turns", conversations(), ids=range(len(TEXTS)))
def test_b01_a_prompt_is_its_text_encoded_directly(model, turns):
    codec, tokenizer = model
    ids = codec.encode_chat(Chat(tuple(ChatMessage(role, text) for role, text in turns)))
    assert ids == tokenizer.encode(written(*turns), add_special_tokens=False).ids


@pytest.mark.parametrize("text", TEXTS)
def test_a01_streaming_a_text_gives_it_back(model, text):
    codec, tokenizer = model
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    stream = codec.text_stream()
    assert "".join(stream.push(token)[0] for token in ids) + stream.finish() == text == tokenizer.decode(ids)


@pytest.mark.parametrize("text", TEXTS)
def test_b09_the_next_turn_extends_this_one(model, text):
    codec, tokenizer = model
    asked = (ChatMessage("user", "Tell me"),)
    sampled = tuple(token for char in text for token in tokenizer.encode(char, add_special_tokens=False).ids)
    said = ChatMessage("assistant", codec.decode(sampled), sampled, codec.fingerprint)
    known = [*codec.encode_chat(Chat(asked)), *sampled]
    assert codec.encode_chat(Chat((*asked, said, ChatMessage("user", "More"))))[: len(known)] == known


def test_b03_every_special_literal_is_text_in_a_message(model):
    codec, tokenizer = model
    literals = "".join(added.content for added in tokenizer.get_added_tokens_decoder().values())
    attacked, harmless = (codec.encode_chat(Chat((ChatMessage("user", text),))) for text in (literals, "x"))
    special = set(tokenizer.get_added_tokens_decoder())
    assert [i for i in attacked if i in special] == [i for i in harmless if i in special]
    assert literals in tokenizer.decode(attacked)
