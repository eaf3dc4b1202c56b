"""Reasoning and answer, told apart in a stream: the same whatever the pieces."""
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken

from hamdam.engine.chat import Chat, ChatMessage
from hamdam.engine.text.codec import Codec
from hamdam.engine.text.reasoning import PAIRS, ReasoningSplitter, tags_of

THINK = PAIRS[0]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant{{ '\\n' }}"
)
KEEPS = CHATML.replace(
    "{{ m.content }}", "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
)
OPENS = KEEPS + "<think>{{ '\\n' }}"


def split(pieces: list[str], **options: bool) -> tuple[str, str]:
    splitter = ReasoningSplitter(THINK, **options)
    found = [splitter.push(piece) for piece in pieces] + [splitter.finish()]
    return "".join(reasoning for reasoning, _ in found), "".join(answer for _, answer in found)


@pytest.mark.parametrize(
    ("text", "reasoning", "answer"),
    [
        ("<think>\nI wonder.\n</think>\n\nYes.", "I wonder.", "Yes."),
        ("\n <think>a\n\nb</think>c ", "a\n\nb", "c "),
        ("<think>\n\n</think>\n\nYes.", "", "Yes."),
        ("No thought at all, \n", "", "No thought at all, \n"),
        ("  <thin air", "", "  <thin air"),
        ("The tag <think> opens, </think> closes.", "", "The tag <think> opens, </think> closes."),
        ("<think>a <b> </thin d</think>e<think>f", "a <b> </thin d", "e<think>f"),
        ("<think>cut off \n", "cut off", ""),
        ("<think>cut in the tag</thi", "cut in the tag</thi", ""),
        ("<thi", "", "<thi"),
        ("<think>only thought</think> \n", "only thought", ""),
        ("", "", ""),
    ],
)
def test_reasoning_is_what_stands_between_the_tags_at_the_beginning(text: str, reasoning: str, answer: str) -> None:
    for pieces in ([text], list(text), [text[:5], text[5:]]):
        assert split(pieces) == (reasoning, answer)


@pytest.mark.parametrize(
    ("text", "reasoning", "answer"),
    [
        ("I wonder.\n</think>\n\nYes.", "I wonder.", "Yes."),
        ("<think>\nonce more</think>Yes", "once more", "Yes"),
        ("</think>Yes", "", "Yes"),
        ("never closed", "never closed", ""),
        ("\n<t", "<t", ""),
    ],
)
def test_where_the_prompt_opened_it_all_is_reasoning_up_to_the_closing_tag(text, reasoning, answer) -> None:
    for pieces in ([text], list(text)):
        assert split(pieces, opened=True) == (reasoning, answer)


def test_reasoning_that_was_cut_goes_on_where_it_was() -> None:
    assert split([" and", " so\n", "</think>\nYes"], going_on=True) == (" and so", "Yes")


def test_what_cannot_become_a_tag_is_told_at_once() -> None:
    splitter = ReasoningSplitter(THINK)
    pieces = ("<think>", "\n", "one", " two", " </", "b> ", "</think>", "\n", "x", "<")
    assert [splitter.push(piece) for piece in pieces] == [
        ("", ""), ("", ""), ("one", ""), (" two", ""), ("", ""), (" </b>", ""), ("", ""), ("", ""), ("", "x"),
        ("", "<"),
    ]  # fmt: skip


PIECES = st.lists(st.sampled_from(["<think>", "</think>", "<thi", "nk>", "</", "think", ">", " ", "\n", "سلام", "a"]))


@given(pieces=PIECES, opened=st.booleans(), data=st.data())
def test_the_same_comes_out_for_every_split_of_the_stream(pieces, opened: bool, data: st.DataObject) -> None:
    text = "".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    others = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = split([text], opened=opened)
    assert split(pieces, opened=opened) == split(others, opened=opened) == split(list(text), opened=opened) == whole
    reasoning, answer = whole
    assert "".join((reasoning + answer).split()) in "".join(text.split()) or THINK.closing in text, "nothing is made up"


def test_the_tags_are_those_of_the_template_or_of_the_added_tokens() -> None:
    assert tags_of("", ["<think>", "</think>"]) == THINK
    assert tags_of("{{ m.content.split('</think>')[-1] }}<think>\n", []) == THINK
    assert tags_of(CHATML, ["[THINK]", "[/THINK]"]) == PAIRS[-1]
    assert tags_of(CHATML, ["<think>"]) is None


def parts(codec: Codec, chat: Chat, text: str, tokenizer) -> list[tuple[bool, str]]:
    """What a model that writes `text` in answer to the chat is heard to say: reasoning or not, and the words."""
    stream = codec.answer_stream(chat, codec.encode_chat(chat))
    found = [part for id in tokenizer.encode(text, add_special_tokens=False).ids for part in stream.push(id)[0]]
    said: list[tuple[bool, str]] = []
    for part in (*found, *stream.finish()):
        same = bool(said) and said[-1][0] == part.reasoning
        said[-1:] = [(part.reasoning, said[-1][1] + part.text)] if same else [*said[-1:], (part.reasoning, part.text)]
    return said


HI = Chat((ChatMessage("user", "Hi"),))


@pytest.mark.parametrize("kind", ["words", "added", "special"])
def test_tags_are_found_as_words_as_added_tokens_and_as_special_ones(chatml_tokenizer, thinking, kind: str) -> None:
    tokenizer = {"words": chatml_tokenizer, "added": thinking}.get(kind)
    if tokenizer is None:
        tokenizer = type(thinking).from_str(chatml_tokenizer.to_str())
        tokenizer.add_special_tokens([AddedToken(tag, special=True) for tag in ("<think>", "</think>")])
    closed = Codec(tokenizer, KEEPS, eos_ids=[2])
    assert parts(closed, HI, "<think>\nA b.\n</think>\n\nسلام", tokenizer) == [(True, "A b."), (False, "سلام")]
    opened = Codec(tokenizer, OPENS, eos_ids=[2])
    assert parts(opened, HI, "A b.\n</think>\n\nسلام", tokenizer) == [(True, "A b."), (False, "سلام")]


def test_a_question_that_ends_with_the_tag_opens_nothing(thinking) -> None:
    codec = Codec(thinking, "{% for m in messages %}{{ m.content }}{% endfor %}" + "{# <think></think> #}")
    assert parts(codec, Chat((ChatMessage("user", "What is <think>"),)), "Yes", thinking) == [(False, "Yes")]


def test_a_model_without_tags_has_no_reasoning(chatml_tokenizer) -> None:
    codec = Codec(chatml_tokenizer, CHATML, eos_ids=[2])
    assert parts(codec, HI, "<think>a</think>b", chatml_tokenizer) == [(False, "<think>a</think>b")]


@pytest.mark.parametrize(
    ("template", "before", "rest", "said"),
    [
        (KEEPS, "<think>\nOne two", " three</think>Yes", [(True, " three"), (False, "Yes")]),
        (OPENS, "<think>\nOne two", " three</think>Yes", [(True, " three"), (False, "Yes")]),
    ],
)
def test_reasoning_that_was_cut_is_in_the_prompt_that_goes_on(thinking, template, before, rest, said) -> None:
    codec = Codec(thinking, template, eos_ids=[2], clock=lambda: datetime(2026, 1, 1))
    cut = Chat((*HI.messages, ChatMessage("assistant", "", reasoning="One two")), continue_last=True)
    prompt = thinking.decode(codec.encode_chat(cut), skip_special_tokens=False)
    assert prompt.endswith(f"<|im_start|>assistant\n{before}")
    assert parts(codec, cut, rest, thinking) == said
    answering = Chat((*HI.messages, ChatMessage("assistant", "Yes", reasoning="One two")), continue_last=True)
    prompt = thinking.decode(codec.encode_chat(answering), skip_special_tokens=False)
    assert prompt.endswith(f"<|im_start|>assistant\n{before}\n</think>\n\nYes")
    assert parts(codec, answering, " <think> sir", thinking) == [(False, " <think> sir")]


def test_the_next_prompt_has_an_answers_reasoning_only_where_the_template_keeps_it(thinking) -> None:
    ids = tuple(thinking.encode("<think>\nHm.\n</think>\n\nYes", add_special_tokens=False).ids)
    for template, kept in ((CHATML + "{# <think></think> #}", 0), (KEEPS, 1)):
        codec = Codec(thinking, template, eos_ids=[2])
        answer = ChatMessage("assistant", "Yes", ids, codec.fingerprint, "Hm.")
        prompt = thinking.decode(
            codec.encode_chat(Chat((*HI.messages, answer, *HI.messages))), skip_special_tokens=False
        )
        assert prompt.count("Hm.") == prompt.count("<think>") == kept
        assert prompt.count("Yes<|im_end|>") == 1
