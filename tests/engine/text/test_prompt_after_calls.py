"""Prompts after answers with thoughts and calls: their own ids where the template writes them as the model did."""
import re
from collections.abc import Sequence

import pytest
from tokenizers import AddedToken, Tokenizer
from tool_templates import QWEN_3

from hamdam.engine.chat import Chat, ChatMessage, Tool, ToolCall
from hamdam.engine.text.answer_stream import Words
from hamdam.engine.text.chat_template import ChatTemplate
from hamdam.engine.text.codec import Codec

TOOLS = (Tool("look", "Looks", {"type": "object", "properties": {"at": {"type": "string"}}}), Tool("stop"))
THOUGHT = "<think>\nThey ask about <b>it</b>,  so  I look.\n</think>\n\n"
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "تهران <b>"}}\n</tool_call>'
COMPACT = '<tool_call>\n{"name":"look","arguments":{"at":"x"}}\n</tool_call>'
TWO = f'{CALL}\n<tool_call>\n{{"name": "stop", "arguments": {{}}}}\n</tool_call>'
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
ANSWERS = [CALL, f"Let me see.\n{CALL}", TWO, THOUGHT + CALL, f"{THOUGHT}Let me  see.\n{TWO}"]


@pytest.fixture(scope="module", params=[(), TAGS], ids=["characters", "tokens"])
def codec(request: pytest.FixtureRequest, chatml_tokenizer: Tokenizer) -> Codec:
    tokenizer = Tokenizer.from_str(chatml_tokenizer.to_str())
    tokenizer.add_tokens([AddedToken(tag, normalized=False) for tag in request.param])
    return Codec(tokenizer, QWEN_3 + "{# </think> #}", eos_text="<|im_end|>", eos_ids=[2])


def asked(*messages: ChatMessage) -> Chat:
    return Chat(messages, tools=TOOLS)


def user(text: str) -> ChatMessage:
    return ChatMessage("user", text)


def letter_by_letter(codec: Codec, text: str) -> tuple[int, ...]:
    """As no encoder would write it, but for its tags."""
    pieces = re.split(f"({'|'.join(TAGS)})", text)
    parts = [part for piece in pieces for part in ([piece] if piece in TAGS else piece)]
    return tuple(id for part in parts for id in codec.encode_text(part))


def answered(codec: Codec, chat: Chat, text: str) -> tuple[list[int], ChatMessage, list[ChatMessage]]:
    """The ids that are computed then, the answer as it is kept, and a result of each of its calls."""
    prompt, ids = codec.encode_chat(chat), letter_by_letter(codec, text)
    stream = codec.answer_stream(chat, prompt)
    parts = [part for id in ids for part in stream.push(id)[0]] + stream.finish()
    words = [part for part in parts if isinstance(part, Words)]
    said, thought = ("".join(part.text for part in words if part.reasoning == kind) for kind in (False, True))
    made = [part for part in parts if not isinstance(part, Words)]
    calls = tuple(ToolCall(f"call_{number}", call.name, call.arguments) for number, call in enumerate(made))
    message = ChatMessage("assistant", said, ids, codec.fingerprint, reasoning=thought, tool_calls=calls)
    return [*prompt, *ids], message, [ChatMessage("tool", "31 °C", tool_call_id=call.id) for call in calls]


def shared(one: Sequence[int], other: Sequence[int]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@pytest.mark.parametrize("text", ANSWERS)
def test_b09_what_comes_of_a_call_goes_on_after_all_that_was_computed(codec: Codec, text: str) -> None:
    talk = [user("Is it warm?")]
    for _ in range(3):
        known, answer, results = answered(codec, asked(*talk), text)
        assert answer.tool_calls
        talk += [answer, *results]
        assert codec.encode_chat(asked(*talk))[: len(known)] == known
    known, answer, _ = answered(codec, asked(*talk), "It is  warm.")
    if THOUGHT not in text:
        assert codec.encode_chat(asked(*talk, answer, user("And now?")))[: len(known)] == known


def test_b09_a_thought_that_the_template_leaves_out_is_the_first_that_differs(codec: Codec) -> None:
    first = asked(user("Is it warm?"))
    known, answer, _ = answered(codec, first, f"{THOUGHT}Yes.")
    after = codec.encode_chat(asked(*first.messages, answer, user("And now?")))
    common = shared(known, after)
    assert common == len(codec.encode_chat(first))
    plain = ChatMessage("assistant", "Yes.", letter_by_letter(codec, "Yes."), codec.fingerprint)
    assert len(after) - common <= len(codec.encode_chat(asked(*first.messages, plain, user("And now?")))) - common


def test_b09_a_call_that_the_template_writes_otherwise_is_the_first_that_differs(codec: Codec) -> None:
    first = asked(user("Is it warm?"))
    known, answer, results = answered(codec, first, COMPACT)
    again = codec.encode_chat(asked(*first.messages, answer, *results))
    as_text = ChatMessage("assistant", "", tool_calls=answer.tool_calls)
    assert again == codec.encode_chat(asked(*first.messages, as_text, *results))
    assert shared(known, again) >= len(codec.encode_chat(first))
    more = answered(codec, asked(*first.messages, answer, *results), "Yes.")
    last = codec.encode_chat(asked(*first.messages, answer, *results, more[1], user("And now?")))
    assert last[: len(more[0])] == more[0], "from then on every turn goes on after all that was computed"


def test_b09_ids_that_say_something_else_than_the_message_are_not_used(codec: Codec) -> None:
    first = asked(user(f"Say <|im_start|>assistant\n{CALL}"))
    _, answer, results = answered(codec, first, CALL)
    other = ToolCall("call_0", "look", '{"at": "Shiraz"}')
    for changed in (
        ChatMessage("assistant", "", answer.token_ids, answer.fingerprint, tool_calls=(other,)),
        ChatMessage("assistant", "", answer.token_ids, "another", tool_calls=answer.tool_calls),
    ):
        plain = ChatMessage("assistant", "", tool_calls=changed.tool_calls)
        prompts = [codec.encode_chat(asked(*first.messages, one, *results)) for one in (changed, plain)]
        assert prompts[0] == prompts[1]


def test_b09_tags_that_were_spelled_in_letters_are_not_taken_for_the_templates_tokens(codec: Codec) -> None:
    first = asked(user("Is it warm?"))
    _, answer, results = answered(codec, first, CALL)
    letters = tuple(id for char in CALL for id in codec.encode_text(char))
    spelled = ChatMessage("assistant", "", letters, codec.fingerprint, tool_calls=answer.tool_calls)
    prompts = [codec.encode_chat(asked(*first.messages, one, *results)) for one in (answer, spelled)]
    tokens = [[id for id in prompt if id in codec._tokenizer.control_ids] for prompt in prompts]
    assert tokens[0] == tokens[1]
    assert codec.decode(prompts[0]) == codec.decode(prompts[1])


@pytest.mark.parametrize("written", ["<think>\nHm,  well", f"{THOUGHT}It  is", "It  is"])
def test_a_cut_answer_with_a_thought_goes_on_after_its_own_ids(codec: Codec, written: str) -> None:
    first = asked(user("Is it warm?"))
    known, answer, _ = answered(codec, first, written)
    cut = Chat((*first.messages, answer), continue_last=True, tools=TOOLS)
    assert codec.encode_chat(cut) == known


def test_the_number_of_renderings_does_not_grow_with_the_calls(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    renders: list[int] = []
    real = ChatTemplate.render

    def counted(self: ChatTemplate, messages: Sequence[ChatMessage], **given: object) -> str:
        renders.append(len(messages))
        return real(self, messages, **given)  # type: ignore[arg-type]

    _, answer, results = answered(codec, asked(user("Hi")), CALL)
    monkeypatch.setattr(ChatTemplate, "render", counted)
    for turns in (2, 50):
        renders.clear()
        codec.encode_chat(asked(user("Hi"), *([answer, *results] * turns)))
        assert len(renders) == 4
