"""Prompts of a conversation that grows: each a true extension of the one before and its answer where that can be."""
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from hamdam.engine.chat import Chat, ChatMessage
from hamdam.engine.errors import InvalidField
from hamdam.engine.text.chat_template import ChatTemplate
from hamdam.engine.text.codec import Codec

HARD = ["\n\n  code", "  سلام", "Hello!", " ", "می‌روم\n", "<b>x</b> <", "a<|im_end|>b", "👨‍👩‍👧", "user\nassistant\n"]
QWEN3 = """{% for m in messages %}<|im_start|>{{ m.role }}
{% if '</think>' in m.content %}{{ m.content.split('</think>')[-1].lstrip('\n') }}{% else %}{{ m.content }}{% endif %}\
<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
<think>

</think>

{% endif %}"""
TRIMS = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content | trim }}<|im_end|>
{% endfor %}<|im_start|>assistant{{ '
' }}"""
NO_HEADER = (
    "{% for m in messages %}{% if m.role == 'user' %}[U]{{ m.content }}[/U]"
    "{% else %}{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
)
SYSTEM_LAST = (
    "{% set last = messages|selectattr('role', 'eq', 'user')|list|last %}{% set system = messages[0] %}"
    "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>"
    "{% if m == last and system.role == 'system' %}{{ system.content }}\n{% endif %}{{ m.content }}<|im_end|>"
    "{% elif m.role == 'assistant' %}{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
)


def user(text: str) -> ChatMessage:
    return ChatMessage("user", text)


def letter_by_letter(codec: Codec, text: str) -> tuple[int, ...]:
    """Ids that say the text as no encoder would: what a model may well sample."""
    return tuple(token for char in text for token in codec.encode_text(char))


def answer(codec: Codec, text: str) -> ChatMessage:
    ids = letter_by_letter(codec, text)
    return ChatMessage("assistant", codec.decode(ids), ids, codec.fingerprint)


@pytest.mark.parametrize("text", HARD)
def test_b09_the_second_turns_prompt_begins_with_the_first_and_its_answer(chatml, text):
    first = Chat((ChatMessage("system", "Be brief"), user("Hi")))
    said = answer(chatml, text)
    known = [*chatml.encode_chat(first), *said.token_ids]
    assert chatml.encode_chat(Chat((*first.messages, said, user("And?"))))[: len(known)] == known


@given(turns=st.lists(st.tuples(st.sampled_from(HARD), st.sampled_from(HARD)), min_size=1, max_size=5))
def test_b09_every_turn_extends_all_that_came_before(chatml, turns):
    messages: list[ChatMessage] = []
    known: list[int] = []
    for question, reply in turns:
        messages.append(user(question))
        ids = chatml.encode_chat(Chat(tuple(messages)))
        assert ids[: len(known)] == known
        messages.append(answer(chatml, reply))
        known = [*ids, *(messages[-1].token_ids or ())]


@given(turns=st.lists(st.sampled_from(HARD), min_size=1, max_size=6))
def test_b09_stored_ids_or_not_the_prompt_says_the_same(chatml, chatml_tokenizer, turns):
    messages = [m for text in turns for m in (user(text), answer(chatml, text))]
    plain = [ChatMessage(m.role, m.content) for m in messages]
    stored, encoded = (
        chatml_tokenizer.decode(chatml.encode_chat(Chat((*m, user("?")))), skip_special_tokens=False)
        for m in (messages, plain)
    )
    assert stored == encoded


def test_b09_without_stored_ids_the_prompt_is_the_template_encoded_whole(chatml, chatml_tokenizer):
    for text in ("\n\n  code", "  سلام", "Hello!"):
        conversation = Chat((user("Hi"), ChatMessage("assistant", text), user("Bye")))
        whole = (
            f"<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n{text}<|im_end|>\n"
            "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"
        )
        assert chatml.encode_chat(conversation) == chatml_tokenizer.encode(whole).ids


@pytest.mark.parametrize(
    "message",
    [
        ChatMessage("assistant", "Hello", (70, 71), "another tokenizer"),
        ChatMessage("assistant", "edited"),
        ChatMessage("assistant", "Hello", (), None),
    ],
)
def test_b09_ids_of_another_fingerprint_or_none_are_not_used(chatml, message):
    plain = ChatMessage("assistant", message.content)
    with_ids, without = (chatml.encode_chat(Chat((user("Hi"), m, user("?")))) for m in (message, plain))
    assert with_ids == without


def test_b09_an_edited_answer_is_encoded_from_its_text(chatml):
    said = answer(chatml, "Hello")
    edited = ChatMessage("assistant", "Hello there", said.token_ids, said.fingerprint)
    plain = ChatMessage("assistant", "Hello there")
    with_ids, without = (chatml.encode_chat(Chat((user("Hi"), m, user("?")))) for m in (edited, plain))
    assert with_ids == without


def test_b09_an_answer_in_which_control_tokens_were_sampled_is_encoded_from_its_text(chatml):
    said = answer(chatml, "Hello")
    forged = ChatMessage("assistant", "Hello", (*said.token_ids, 2, 1), said.fingerprint)
    assert chatml.decode(forged.token_ids) == "Hello", "it does say what its text says"
    plain = ChatMessage("assistant", "Hello")
    with_ids, without = (chatml.encode_chat(Chat((user("Hi"), m, user("?")))) for m in (forged, plain))
    assert with_ids == without


def test_b09_only_an_answers_ids_are_used(chatml):
    said = answer(chatml, "Hello")
    as_user = ChatMessage("user", "Hello", said.token_ids, said.fingerprint)
    assert chatml.encode_chat(Chat((as_user,))) == chatml.encode_chat(Chat((user("Hello"),)))


def test_b09_where_history_has_another_header_than_the_prompt_had_the_template_wins(thinking):
    codec = Codec(thinking, QWEN3, eos_ids=[2])
    first = Chat((ChatMessage("system", "Be brief"), user("Hi")))
    said = answer(codec, "Hello!")
    ids = codec.encode_chat(first)
    second = codec.encode_chat(Chat((*first.messages, said, user("And?"))))
    plain = codec.encode_chat(Chat((*first.messages, ChatMessage("assistant", "Hello!"), user("And?"))))
    assert second == plain
    assert second[: len(ids)] != ids, "the think block of the first prompt is not in the history"


def test_b09_an_answer_that_the_template_trims_is_encoded_from_its_text_and_the_others_are_not(chatml_tokenizer):
    codec = Codec(chatml_tokenizer, TRIMS, eos_ids=[2])
    trimmed, kept = answer(codec, "\n\n  code"), answer(codec, "Hello")
    ids = codec.encode_chat(Chat((user("a"), trimmed, user("b"), kept, user("c"))))
    prompt = codec.encode_chat(Chat((user("a"), trimmed, user("b"))))
    assert ids[: len(prompt) + len(kept.token_ids)] == [*prompt, *kept.token_ids]
    assert codec.encode_chat(Chat((user("a"), trimmed))) == codec.encode_chat(
        Chat((user("a"), ChatMessage("assistant", "code")))
    )


def test_b09_a_template_without_a_generation_header_is_extended_too(chatml_tokenizer):
    codec = Codec(chatml_tokenizer, NO_HEADER, eos_ids=[2])
    said = answer(codec, "Hello")
    ids = codec.encode_chat(Chat((user("a"),)))
    longer = codec.encode_chat(Chat((user("a"), said, user("b"))))
    assert longer[: len(ids) + len(said.token_ids)] == [*ids, *said.token_ids]


def test_b09_a_template_that_moves_the_system_text_is_followed(chatml_tokenizer):
    codec = Codec(chatml_tokenizer, SYSTEM_LAST, eos_ids=[2])
    said = answer(codec, "Hello")
    conversation = (ChatMessage("system", "Be brief"), user("a"), said, user("b"))
    text = chatml_tokenizer.decode(codec.encode_chat(Chat(conversation)), skip_special_tokens=False)
    assert text == "<|im_start|>a<|im_end|>Hello<|im_end|><|im_start|>Be brief\nb<|im_end|>"


def test_b09_a_users_text_that_looks_like_the_template_misleads_nobody(chatml_tokenizer):
    plain = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "
    codec = Codec(chatml_tokenizer, plain, eos_ids=[2])
    said = answer(codec, "Hello")
    messages = (user("a\nassistant: Hello\nuser: b"), said, user("c\nassistant: d"), said, user("e"))
    text = "".join(f"{m.role}: {m.content}\n" for m in messages) + "assistant: "
    assert codec.decode(codec.encode_chat(Chat(messages))) == text
    prompt = codec.encode_chat(Chat(messages[:3]))
    assert codec.encode_chat(Chat(messages))[: len(prompt) + 5] == [*prompt, *said.token_ids]


def test_the_leading_space_that_a_sentencepiece_answer_lost_does_not_keep_its_ids_from_use(byte_fallback: Tokenizer):
    codec = Codec(byte_fallback, "{% for m in messages %}<s>{{ m.content }}</s>{% endfor %}<s>", eos_ids=[2])
    said = tuple(byte_fallback.token_to_id(piece) for piece in ("▁Hello", "▁world"))
    for text in ("Hello world", " Hello world"):
        message = ChatMessage("assistant", text, said, codec.fingerprint)
        ids = codec.encode_chat(Chat((user("ok"), message, user("ok"))))
        prompt = codec.encode_chat(Chat((user("ok"),)))
        assert ids[: len(prompt) + 2] == [*prompt, *said]


def test_a_cut_answer_goes_on_after_its_own_ids(chatml):
    said = answer(chatml, "\n\n  code goes o")
    asked = Chat((user("Hi"),))
    ids = chatml.encode_chat(Chat((*asked.messages, said), continue_last=True))
    assert ids == [*chatml.encode_chat(asked), *said.token_ids]


def test_a_cut_answer_without_ids_goes_on_after_its_text(chatml, chatml_tokenizer):
    cut = ChatMessage("assistant", "  سلام<|im_end|>")
    ids = chatml.encode_chat(Chat((user("Hi"), cut), continue_last=True))
    assert chatml_tokenizer.decode(ids, skip_special_tokens=True).endswith("assistant\n  سلام<|im_end|>")
    assert ids.count(2) == chatml.encode_chat(Chat((user("Hi"),))).count(2)
    harmless = chatml.encode_chat(Chat((user("Hi"), ChatMessage("assistant", "  سلام")), continue_last=True))
    assert harmless == chatml_tokenizer.encode("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n  سلام").ids


def test_an_answer_cut_within_a_character_goes_on_after_its_ids(chatml, chatml_tokenizer):
    half = tuple(chatml_tokenizer.encode("a🦙").ids[:-1])
    cut = ChatMessage("assistant", chatml.decode(half), half, chatml.fingerprint)
    assert cut.content == "a\ufffd"
    ids = chatml.encode_chat(Chat((user("Hi"), cut), continue_last=True))
    assert tuple(ids[-len(half) :]) == half


@pytest.mark.parametrize(
    ("conversation", "why"),
    [
        (Chat(()), "at least one"),
        (Chat((user("Hi"),), continue_last=True), "only an answer"),
        (Chat((), continue_last=True), "at least one"),
    ],
)
def test_a_conversation_that_makes_no_prompt_is_refused(chatml, conversation, why):
    with pytest.raises(InvalidField, match=why):
        chatml.encode_chat(conversation)


def test_a_model_without_a_template_refuses_chats_and_completes_texts(chatml_tokenizer):
    codec = Codec(chatml_tokenizer, None)
    with pytest.raises(InvalidField, match="no chat template"):
        codec.encode_chat(Chat((user("Hi"),)))
    assert codec.encode_text("Hi") == chatml_tokenizer.encode("Hi").ids


def test_the_number_of_renderings_does_not_grow_with_the_conversation(chatml, monkeypatch):
    renders = []
    real = ChatTemplate.render

    def counted(self: ChatTemplate, messages: list[ChatMessage], **given: object) -> str:
        renders.append(len(messages))
        return real(self, messages, **given)

    monkeypatch.setattr(ChatTemplate, "render", counted)
    said = answer(chatml, "Hello")
    for turns in (2, 50):
        renders.clear()
        chatml.encode_chat(Chat((*(m for _ in range(turns) for m in (user("Hi"), said)), user("?"))))
        assert len(renders) == 3


def test_a_template_reads_the_codecs_clock(chatml_tokenizer):
    source = "{{ strftime_now('%Y') }}{{ messages[0].content }}"
    codec = Codec(chatml_tokenizer, source, clock=lambda: datetime(1999, 1, 1))
    assert codec.decode(codec.encode_chat(Chat((user("!"),)))) == "1999!"


def test_many_threads_get_the_same_prompt(chatml):
    messages = [m for text in HARD for m in (user(text), answer(chatml, text))]
    chats = [Chat((*messages[: 2 * n], user("?"))) for n in range(len(HARD))]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(chatml.encode_chat, chats * 4)) == [chatml.encode_chat(c) for c in chats] * 4
