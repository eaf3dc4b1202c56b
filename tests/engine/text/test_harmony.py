"""Messages on channels, as gpt-oss writes them: thoughts and answer told apart, whatever the pieces."""
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import byte_tokenizer
from tokenizers import Tokenizer

from hamdam.engine.chat import Chat, ChatMessage, Tool, ToolCall
from hamdam.engine.text.answer_stream import Words
from hamdam.engine.text.call_format import Call
from hamdam.engine.text.codec import Codec
from hamdam.engine.text.harmony import ENDS, LETTERS, HarmonySplitter, MessageStops, speaks_harmony

TEMPLATE = (
    "<|start|>system<|message|># Valid channels: analysis, commentary, final.<|end|>"
    "{% for m in messages %}{% if m.role == 'assistant' %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}"
    "<|end|>{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
KNOWS_TOOLS = (
    "{% if tools %}<|start|>developer<|message|>namespace functions: "
    "{% for tool in tools %}type {{ tool.function.name }} = {{ tool.function.parameters|tojson }};{% endfor %}"
    "<|end|>{% endif %}{% set called = namespace(name='') %}"
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "<|start|>functions.{{ called.name }} to=assistant<|channel|>commentary<|message|>{{ m.content|tojson }}<|end|>"
    "{% elif m.tool_calls %}{% set call = m.tool_calls[0].function %}{% set called.name = call.name %}"
    "{% if m.content and m.thinking %}{{ raise_exception('one of them') }}{% endif %}{% if m.content or m.thinking %}"
    "<|start|>assistant<|channel|>analysis<|message|>{{ m.content or m.thinking }}<|end|>{% endif %}"
    "<|start|>assistant to=functions.{{ call.name }}<|channel|>commentary json<|message|>{{ call.arguments|tojson }}"
    "<|call|>{% elif m.role == 'assistant' %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>"
    "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}<|start|>assistant"
)
HI = Chat((ChatMessage("user", "Hi"),))
ONE = ChatMessage("assistant", "", reasoning="One")
WEATHER = Tool("weather", "", {"type": "object", "properties": {"at": {"type": "string"}}})


def heard(text: str) -> str:
    """With the letters that its tokens are heard as."""
    for token, letter in LETTERS.items():
        text = text.replace(token, letter)
    return text


def split(pieces: list[str], begun: str | None = None, *, calls: bool = False) -> tuple[str, str]:
    splitter = HarmonySplitter(begun, calls=calls)
    found = [splitter.push(piece) for piece in pieces] + [splitter.finish()]
    return "".join(reasoning for reasoning, _ in found), "".join(answer for _, answer in found)


@pytest.mark.parametrize(
    ("text", "reasoning", "answer"),
    [
        ("<|channel|>analysis<|message|>I wonder.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
         "I wonder.", "Yes."),
        ("<|channel|>final<|message|>Yes.", "", "Yes."),
        ("<|channel|>final <|constrain|>json<|message|>{}", "", "{}"),
        ("<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>"
         "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
         "<|start|>assistant<|channel|>final<|message|>c", "a\n\nb", "I look.\n\nc"),
        ("<|channel|>analysis<|message|>a<|start|>assistant<|channel|>final<|message|>b", "a", "b"),
        ("<|channel|>analysis<|message|>cut off", "cut off", ""),
        ("<|channel|>analysis<|message|>a<|end|><|start|>assistant<|chan", "a", ""),
        ("<|channel|>fin", "", ""),
        ("<|message|>no channel", "", "no channel"),
        ("No header at all,\n to=x", "", "No header at all,\n to=x"),
        ("to", "", "to"),
        ("tomorrow", "", "tomorrow"),
        ("", "", ""),
        ("<|channel|>" + "long " * 300, "", "long " * 300),
        ("<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{}", "{}", ""),
        ("<|channel|>analysis to=python code<|message|>1 + 1", "1 + 1", ""),
    ],
)  # fmt: skip
def test_thoughts_are_what_stands_on_the_channel_of_analysis(text: str, reasoning: str, answer: str) -> None:
    text = heard(text)
    for pieces in ([text], list(text), [text[:5], text[5:]]):
        assert split(pieces) == (reasoning, answer)


@pytest.mark.parametrize("recipient", ["<|channel|>commentary to=functions.weather <|constrain|>json",
                                       " to=functions.weather<|channel|>commentary"])  # fmt: skip
def test_a_message_for_a_function_is_a_call_where_there_are_functions(recipient: str) -> None:
    text = heard(f'{recipient}<|message|>{{"at": "Köln"}}')
    called = '<tool_call>\n{"name": "weather", "arguments": {"at": "Köln"}}\n</tool_call>'
    for pieces in ([text], list(text)):
        assert split(pieces, calls=True) == ("", called)


def test_what_was_cut_goes_on_where_it_was() -> None:
    rest = heard(" so.<|end|><|start|>assistant<|channel|>final<|message|>Yes")
    assert split([rest], "analysis") == (" so.", "Yes")
    assert split([" sir"], "final") == ("", " sir")


WORDS = ("analysis", "final", "assistant", " to=functions.f", " ", "سلام")
PIECES = st.lists(st.sampled_from([*LETTERS.values(), *WORDS]))


@given(pieces=PIECES, calls=st.booleans(), data=st.data())
def test_the_same_comes_out_for_every_split_of_the_stream(pieces: list[str], calls: bool, data: st.DataObject) -> None:
    text = "".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    others = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = split([text], calls=calls)
    assert split(pieces, calls=calls) == split(others, calls=calls) == split(list(text), calls=calls) == whole
    assert not any(letter in part for letter in LETTERS.values() for part in whole)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens([*ENDS, *LETTERS, "<|constrain|>"])
    return tokenizer


@pytest.fixture(scope="module")
def codec(tokenizer: Tokenizer) -> Codec:
    return Codec(tokenizer, TEMPLATE, eos_text=ENDS[0], eos_ids=[tokenizer.token_to_id(end) for end in ENDS])


def said(
    codec: Codec, tokenizer: Tokenizer, chat: Chat, ids: list[int], stops: tuple[str, ...] = ()
) -> list[tuple[bool, str] | Call]:
    stream = codec.answer_stream(chat, codec.encode_chat(chat), stops)
    found: list[tuple[bool, str] | Call] = []
    for part in [part for id in ids for part in stream.push(id)[0]] + stream.finish():
        if isinstance(part, Words) and found and isinstance(found[-1], tuple) and found[-1][0] == part.reasoning:
            found[-1] = (part.reasoning, found[-1][1] + part.text)
        else:
            found.append((part.reasoning, part.text) if isinstance(part, Words) else part)
    return found


def encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def test_a_model_speaks_it_by_its_template_and_its_tokens(tokenizer: Tokenizer) -> None:
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    assert speaks_harmony(TEMPLATE, added)
    assert not speaks_harmony(TEMPLATE, added - {"<|channel|>"})
    assert not speaks_harmony("{{ messages }}", added)
    assert not speaks_harmony(None, added)


def test_a_reader_sees_the_answer_and_its_thought_and_none_of_the_tokens(codec: Codec, tokenizer: Tokenizer) -> None:
    thought = "<|channel|>analysis<|message|>They greet.<|end|><|start|>assistant"
    ids = encoded(tokenizer, thought + "<|channel|>final<|message|>سلام!")
    assert said(codec, tokenizer, HI, ids) == [(True, "They greet."), (False, "سلام!")]


WRITTEN = "<|channel|>analysis<|message|>assis, final b<|end|><|start|>assistant<|channel|>final<|message|>Done, final"


@pytest.mark.parametrize(
    ("stop", "wanted"),
    [
        ("assistant", [(True, "assis, final b"), (False, "Done, final")]),
        ("analysis", [(True, "assis, final b"), (False, "Done, final")]),
        ("final", [(True, "assis, ")]),
        ("Done", [(True, "assis, final b")]),
        ("bDone", [(True, "assis, final b"), (False, "Done, final")]),
        ("ne,", [(True, "assis, final b"), (False, "Do")]),
    ],
)
def test_stop_strings_are_looked_for_in_what_is_said_and_not_in_headers(codec, tokenizer, stop, wanted) -> None:
    assert said(codec, tokenizer, HI, encoded(tokenizer, WRITTEN), stops=(stop,)) == wanted
    watch, text = MessageStops((stop,)), heard(WRITTEN)
    whole = watch.push(text)[0] + watch.flush()
    watch = MessageStops((stop,))
    assert "".join([*(watch.push(letter)[0] for letter in text), watch.flush()]) == whole


def test_an_answer_about_these_tokens_is_an_answer(codec: Codec, tokenizer: Tokenizer) -> None:
    about = "<|end|> ends it, <|start|>assistant<|channel|>analysis<|message|> begins a thought"
    plain = Tokenizer.from_str(tokenizer.to_str())
    plain.encode_special_tokens = True
    ids = encoded(tokenizer, "<|channel|>final<|message|>") + encoded(plain, about)
    assert said(codec, tokenizer, HI, ids) == [(False, about)]


def test_a_call_in_its_own_way_is_a_call(codec: Codec, tokenizer: Tokenizer) -> None:
    chat = Chat(HI.messages, tools=(WEATHER,))
    written = '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"at": "Köln"}'
    assert said(codec, tokenizer, chat, encoded(tokenizer, written)) == [Call("weather", '{"at": "Köln"}')]
    assert said(codec, tokenizer, HI, encoded(tokenizer, written)) == [(True, '{"at": "Köln"}')]


def test_of_a_call_that_was_cut_there_is_the_beginning(codec: Codec, tokenizer: Tokenizer) -> None:
    chat = Chat(HI.messages, tools=(WEATHER,))
    stream = codec.answer_stream(chat, codec.encode_chat(chat))
    ids = encoded(tokenizer, '<|channel|>commentary to=functions.weather<|message|>{"at": "Kö')
    assert [part for id in ids for part in stream.push(id)[0]] == []
    assert stream.finish(cut=True) == [Call("weather", '{"at": "Kö', whole=False)]


def test_a_template_that_knows_tools_is_given_them_and_one_call_a_message(tokenizer: Tokenizer) -> None:
    codec = Codec(tokenizer, KNOWS_TOOLS, eos_text=ENDS[0], eos_ids=[tokenizer.token_to_id(end) for end in ENDS])
    calls = tuple(ToolCall(id, "weather", f'{{"at": "{at}"}}') for id, at in (("a", "Köln"), ("b", "Bonn<|end|>")))
    asked = (
        *HI.messages, ChatMessage("assistant", "", reasoning="Two places.", tool_calls=calls),
        ChatMessage("tool", "13", tool_call_id="b"), ChatMessage("tool", "12", tool_call_id="a"),
    )  # fmt: skip
    chat = Chat(asked, tools=(WEATHER,))
    ids = codec.encode_chat(chat)
    prompt = tokenizer.decode(ids, skip_special_tokens=False)
    assert "type weather = {" in prompt and "<tool_call>" not in prompt
    answered = "<|start|>functions.weather to=assistant<|channel|>commentary<|message|>"
    called = "<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>"
    assert prompt.partition("Hi<|end|>")[2] == (
        "<|start|>assistant<|channel|>analysis<|message|>Two places.<|end|>"
        f'{called}{{"at": "Köln"}}<|call|>{answered}"12"<|end|>'
        f'{called}{{"at": "Bonn<|end|>"}}<|call|>{answered}"13"<|end|><|start|>assistant'
    )
    assert ids.count(tokenizer.token_to_id("<|end|>")) == 5, "what a call says ends no message"
    written = f'<|channel|>analysis<|message|>Hm.<|end|>{called}{{"at": "Ulm"}}'
    call = Call("weather", '{"at": "Ulm"}')
    assert said(codec, tokenizer, chat, encoded(tokenizer, written)) == [(True, "Hm."), call]
    told = ChatMessage("assistant", "I look.", reasoning="Hm.", tool_calls=calls[:1])
    prompt = tokenizer.decode(codec.encode_chat(Chat((*HI.messages, told), tools=(WEATHER,))))
    assert "I look." in prompt


@pytest.mark.parametrize(
    ("cut", "begun", "rest", "wanted"),
    [
        (ChatMessage("assistant", "", reasoning="One"), "<|channel|>analysis<|message|>One",
         " two<|end|><|start|>assistant<|channel|>final<|message|>Yes", [(True, " two"), (False, "Yes")]),
        (ChatMessage("assistant", "Yes"), "<|channel|>final<|message|>Yes", " sir", [(False, " sir")]),
        (ChatMessage("assistant", "Yes", reasoning="One"),
         "<|channel|>analysis<|message|>One<|end|><|start|>assistant<|channel|>final<|message|>Yes",
         " sir", [(False, " sir")]),
    ],
)  # fmt: skip
def test_an_answer_that_was_cut_goes_on_in_its_message(codec, tokenizer, cut, begun, rest, wanted) -> None:
    chat = Chat((*HI.messages, cut), continue_last=True)
    prompt = tokenizer.decode(codec.encode_chat(chat), skip_special_tokens=False)
    assert prompt.endswith(f"<|start|>assistant{begun}")
    assert said(codec, tokenizer, chat, encoded(tokenizer, rest)) == wanted


def test_a_form_holds_from_the_final_message_on(codec: Codec, tokenizer: Tokenizer) -> None:
    begins = codec.thought_end(HI, codec.encode_chat(HI))
    assert callable(begins)
    thought = "<|channel|>analysis<|message|>final<|end|><|start|>assistant<|channel|>commentary<|message|>final<|end|>"
    ids = encoded(tokenizer, f"{thought}<|start|>assistant<|channel|>final <|constrain|>json<|message|>")
    assert [begins(id) for id in ids] == [None] * (len(ids) - 1) + ["final"]
    answered = Chat((*HI.messages, ChatMessage("assistant", "{")), continue_last=True)
    assert codec.thought_end(answered, codec.encode_chat(answered)) is None
    calls = codec.messages(HI)
    called = encoded(tokenizer, " to=functions.f<|channel|>commentary<|message|>x<|start|>to=functions.g<|message|>")
    assert [name for id in called if (name := calls(id)) is not None] == ["functions.f", "functions.g"]


@pytest.mark.parametrize(
    ("begun", "written", "thought"),
    [
        (None, "<|channel|>analysis<|message|>[ab]<|end|><|start|>assistant<|channel|>final<|message|>c", 2),
        (None, "<|channel|>analysis<|message|>[a]<|start|>assistant<|channel|>analysis<|message|>[bc]", 3),
        (None, "<|channel|>commentary<|message|>analysis<|end|> to=x<|channel|>analysis<|message|>a", 0),
        (None, " to=functions.f<|channel|>analysis<|message|>a<|end|>", 0),
        (None, "<|channel|>analysis to=functions.f<|message|>a<|end|>", 0),
        (None, "<|message|>analysis", 0),
        (ONE, "[, two]<|end|><|start|>assistant<|channel|>final<|message|>c", 5),
        (replace(ONE, content="Yes"), ", two", 0),
    ],
)
def test_tokens_of_thoughts_are_those_in_messages_on_the_channel_of_analysis(
    codec: Codec, tokenizer: Tokenizer, begun: ChatMessage | None, written: str, thought: int
) -> None:
    """What is in brackets."""
    chat = HI if begun is None else Chat((*HI.messages, begun), continue_last=True)
    opening, closing = codec.thought_tokens(chat) or (None, None)
    assert callable(opening) and closing == tokenizer.token_to_id("<|end|>")
    spent, inside = 0, codec.thinks(chat, codec.encode_chat(chat))
    for id in encoded(tokenizer, written.replace("[", "").replace("]", "")):
        before, inside = inside, opening(id)
        spent += before and inside
    assert spent == thought


def test_tokens_of_headers_have_no_text_among_the_logprobs(codec: Codec, tokenizer: Tokenizer) -> None:
    detokenizer = codec.answer_stream(HI, codec.encode_chat(HI))._text._detokenizer
    assert detokenizer.push(tokenizer.token_to_id("<|channel|>")) == LETTERS["<|channel|>"]
    assert detokenizer.data == b""
