"""Codec: the front door of text: chats and texts to ids, ids to text. It holds the parts together, little more."""
import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from functools import lru_cache, partial

import tokenizers

from ..chat import Chat
from ..errors import InvalidField
from ..policy.structured_outputs import Opening, StructuredOutputs
from . import harmony
from .answer_stream import AnswerStream
from .call_format import HERMES, CallFormat
from .call_grammar import arguments, call_grammar, free_grammar
from .chat_template import ChatTemplate
from .detokenizer import Detokenizer, TokenBytes
from .prompt import PromptEncoder
from .reasoning import ReasoningSplitter, Splitter, begun_answer, tags_of
from .stop_strings import StopStrings
from .text_stream import TextStream
from .token_log import Spelled, TokenLog
from .tokenizer import Tokenizer, require_text
from .tool_calls import CallParser
from .tool_prompt import text_of


class Codec:
    """Immutable once made: every method may be called from any thread, and is to be where texts are long.

    `fingerprint` names the tokenizer and the template: ids stored under another one are not used. A model without a
    template refuses chats and completes texts. `eos_ids` have no text, whether the tokenizer calls them special or not.
    No id stands for more than `longest_token` characters, so a text too long for any context is known by its length.
    """

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        chat_template: str | None,
        *,
        bos_text: str = "",
        eos_text: str = "",
        bos_id: int | None = None,
        eos_ids: Iterable[int] = (),
        clock: Callable[[], datetime] = datetime.now,
    ) -> None:
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)  # a hundred thousand objects, so only once
        size = max(vocabulary.values(), default=-1) + 1
        self._tokenizer = Tokenizer(tokenizer, chat_template, bos_id=bos_id, size=size)
        self._bytes = TokenBytes(tokenizer, vocabulary, self._tokenizer.special_ids | frozenset(eos_ids))
        self._name = tokenizer.id_to_token
        self.spelled: Spelled = lru_cache(1 << 14)(self._spell)  # lists of likely tokens have the same few in them
        self._clock = clock
        facts = "\0".join((self._tokenizer.digest, chat_template or "", bos_text, eos_text))
        self.fingerprint = hashlib.sha256(facts.encode()).hexdigest()[:32]
        self.vocab_size = self._bytes.size
        self.longest_token = self._bytes.longest
        self._harmony = harmony.speaks_harmony(chat_template, self._tokenizer.added)
        self._tags = None if self._harmony else tags_of(chat_template or "", self._tokenizer.added)
        self._calls: CallFormat = HERMES
        self._prompts: PromptEncoder | None = None
        if chat_template is not None:
            template = ChatTemplate(chat_template, bos_text=bos_text, eos_text=eos_text)
            self._calls = template.calls or HERMES
            begun = harmony.begun_answer if self._harmony else partial(begun_answer, self._tags)
            self._prompts = PromptEncoder(self._tokenizer, template, self._bytes, self.fingerprint, begun)

    def encode_chat(self, chat: Chat) -> list[int]:
        """The prompt of the whole conversation, up to where the answer begins (or goes on). Raises InvalidField."""
        if self._prompts is None:
            raise InvalidField("messages", "this model has no chat template; it can only complete a text")
        return self._prompts.encode(chat, self._clock())

    def encode_text(self, text: str) -> list[int]:
        """The prompt of a raw completion: control tokens that stand in it are meant, and there is one BOS or none."""
        return self._tokenizer.encode_text(text)

    def spellings(self, word: str) -> set[tuple[int, ...]]:
        """The ids of a word at the beginning of a text and after a space: it is not one of control tokens."""
        word = self._tokenizer.shield(require_text("bad_words", word))
        return {tuple(self._tokenizer.encode(text)) for text in (word, f" {word.lstrip()}")}

    def decode(self, ids: Iterable[int]) -> str:
        """The text of a whole answer, the same as streaming it."""
        return self._bytes.decode(ids)

    def _spell(self, token: int) -> tuple[str, bytes]:
        """A token's text, with U+FFFD for part of a character, and its bytes; of one without text its name."""
        data = self._bytes[token]
        return (data.decode("utf-8", "replace") if data else self._name(token) or ""), data

    def texts(self, size: int) -> list[bytes]:
        """What each of the first `size` ids says in a grammar: nothing where it is a control token, or no token at all.

        The tags of calls are heard: a grammar may ask for them.
        """
        texts = [b"" if token in self._tokenizer.control_ids else self._bytes[token] for token in range(size)]
        spoken = self._spoken(self._calls.tags)
        return [spoken.get(token, text) for token, text in enumerate(texts)]

    def detokenizer(self, prompt_ids: Sequence[int] = ()) -> Detokenizer:
        """`prompt_ids`: what the text goes on from: a raw completion's prompt, an answer to continue. Else nothing."""
        return Detokenizer(self._bytes, prompt_ids)

    def text_stream(
        self, prompt_ids: Sequence[int] = (), stops: tuple[str, ...] = (), *, include_stop: bool = False,
        logprobs: bool = False,
    ) -> TextStream:
        log = TokenLog(self.spelled) if logprobs else None
        return TextStream(self.detokenizer(prompt_ids), StopStrings(stops), include_stop=include_stop, log=log)

    def answer_stream(
        self,
        chat: Chat,
        prompt_ids: Sequence[int],
        stops: tuple[str, ...] = (),
        *,
        include_stop: bool = False,
        logprobs: bool = False,
        in_form: bool = False,
    ) -> AnswerStream:
        """The parts of the answer to this chat, whose prompt are these ids. in_form: it has a form (`texts`)."""
        begun = chat.messages[-1] if chat.continue_last else None
        splitter = self._splitter(chat, prompt_ids, in_form=in_form)
        calls = None
        if chat.tools:
            calls = CallParser(self._calls, {tool.name for tool in chat.tools}, going_on=begun is not None)
        tags = [self._tags.opening, self._tags.closing] if splitter and self._tags else []
        tags += self._calls.tags if calls or in_form else ()
        heard = harmony.LETTERS if self._harmony else {}
        letters = {self._tokenizer.added[tag]: letter.encode() for tag, letter in heard.items()}
        detokenizer = Detokenizer(self._bytes, prompt_ids if begun else (), self._spoken(tags), letters)
        log = TokenLog(self.spelled) if logprobs else None
        watch = harmony.MessageStops(stops) if self._harmony else StopStrings(stops)
        text = TextStream(detokenizer, watch, include_stop=include_stop, log=log)
        return AnswerStream(text, splitter, calls, one_call=not chat.parallel_calls)

    def call_form(self, chat: Chat, names: Collection[str] = ()) -> StructuredOutputs:
        """What an answer is that calls one of the chat's tools, or of those with these names.

        Arguments follow their schemas where the tool is strict or has to be called.
        """
        tools = [tool for tool in chat.tools if not names or tool.name in names]
        held = {tool.name for tool in tools if tool.strict or tool.name in chat.must_call}
        return StructuredOutputs("grammar", call_grammar(self._calls, tools, held, several=chat.parallel_calls))

    @property
    def calls_are_text(self) -> bool:
        """Whether calls stand in an answer's text, where a grammar may hold them; else in messages of their own."""
        return not self._harmony

    def messages(self, chat: Chat) -> Callable[[int], str | None]:
        """What reads an answer of messages and says which begins behind each id, as `message_forms` names them."""
        begun = chat.continue_last and (chat.messages[-1].reasoning != "" or text_of(chat.messages[-1]) != "")
        return harmony.messages(self._tokenizer.added, self._bytes.__getitem__, begun=begun)

    def message_forms(self, chat: Chat, form: StructuredOutputs | None) -> dict[str, StructuredOutputs]:
        """Of a model whose calls are messages of their own: what the answer is, where it has a form, and what each call
        of the chat's tools is."""
        forms = {} if form is None else {harmony.FINAL: form}
        return forms | {
            harmony.FUNCTION + tool.name: StructuredOutputs("grammar", f"start: {arguments(tool, tool.strict)}")
            for tool in chat.tools
        }

    def free_forms(self, chat: Chat) -> list[StructuredOutputs]:
        """What an answer is that may call one of the chat's tools: one of these."""
        held = {tool.name for tool in chat.tools if tool.strict}
        free = free_grammar(self._calls, chat.tools, held, several=chat.parallel_calls)
        return [StructuredOutputs("grammar", free), *([self.call_form(chat)] if self._calls.bare else [])]

    def thought_tokens(self, chat: Chat) -> tuple[int | Callable[[int], bool], int] | None:
        """What begins a thought, as Thinking has it, and the token that ends one; None where this model does not think,
        or writes its tags in words."""
        added = self._tokenizer.added
        if self._harmony:
            begun = chat.continue_last and chat.messages[-1].reasoning != "" and not text_of(chat.messages[-1])
            return harmony.thinks(added, self._bytes.__getitem__, begun=begun), added["<|end|>"]
        if self._tags is None or not (self._tags.opening in added and self._tags.closing in added):
            return None
        return added[self._tags.opening], added[self._tags.closing]

    def thinks(self, chat: Chat, prompt_ids: Sequence[int]) -> bool:
        """Whether what comes next is a thought, as far as the prompt says."""
        splitter = self._splitter(chat, prompt_ids)
        return splitter is not None and splitter.inside

    def thought_end(self, chat: Chat, prompt_ids: Sequence[int]) -> Opening | None:
        """Behind what the answer begins, where it is not the first that is written: a thought's closing token, its
        text, or the header of a message. None: it is the first."""
        splitter = self._splitter(chat, prompt_ids)
        if self._harmony:
            begun = chat.messages[-1] if chat.continue_last else None
            # What has to be a call is the first that is written: who thought before it might have called there, too.
            at_once = chat.must_call if begun is None else text_of(begun)
            return None if at_once else self.messages(chat)
        if self._tags is None or splitter is None or not splitter.inside:
            return None
        return self._tokenizer.added.get(self._tags.closing, self._tags.closing.encode())

    def thought_ahead(self, chat: Chat, prompt_ids: Sequence[int]) -> tuple[bytes | int, bytes | int] | None:
        """What begins and what ends a thought that may come first: tokens, or their texts. None: there is none."""
        splitter = self._splitter(chat, prompt_ids)
        if self._tags is None or splitter is None or splitter.inside:
            return None
        opening, closing = self._tags.opening, self._tags.closing
        added = self._tokenizer.added
        return added.get(opening, opening.encode()), added.get(closing, closing.encode())

    def _spoken(self, tags: Iterable[str]) -> dict[int, bytes]:
        """Tags that are tokens, with their texts."""
        return {self._tokenizer.added[tag]: tag.encode() for tag in tags if tag in self._tokenizer.added}

    def _splitter(self, chat: Chat, prompt_ids: Sequence[int], *, in_form: bool = False) -> Splitter | None:
        begun = chat.messages[-1] if chat.continue_last else None
        if self._harmony:
            channel = None if begun is None else "final" if text_of(begun) else "analysis" if begun.reasoning else None
            return harmony.HarmonySplitter(channel, calls=bool(chat.tools), in_form=in_form)
        if self._tags is None or (begun is not None and text_of(begun)):
            return None
        going_on = begun is not None and begun.reasoning != ""
        opened = not going_on and self._ends_with(prompt_ids, self._tags.opening)
        return ReasoningSplitter(self._tags, opened=opened, going_on=going_on)

    def _ends_with(self, ids: Sequence[int], tag: str) -> bool:
        """Whether the last of a prompt, white space aside, is this tag: the token, where there is one of it."""
        token = self._tokenizer.added.get(tag)
        if token is None:
            return self._bytes.decode(ids[-len(tag) - 16 :], going_on=True).rstrip().endswith(tag)
        return token == next((id for id in reversed(ids) if not self._bytes[id].isspace()), None)
