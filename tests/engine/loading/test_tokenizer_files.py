"""The tokenizer files of a folder: which tokens end an answer, where the template is, what goes before a text."""
import json
from pathlib import Path
from typing import Any

import pytest
from tiny_models import ADDED, CHATML, CONFIG, byte_tokenizer, write_folder
from tokenizers import AddedToken, Tokenizer, processors

from hamdam.engine.errors import ModelError
from hamdam.engine.loading.checkpoint import open_checkpoint
from hamdam.engine.loading.json_object import JsonObject, read_object
from hamdam.engine.loading.tokenizer_files import TokenizerFiles, end_of_turn, read_tokenizer_files
from hamdam.engine.text.codec import Codec
from hamdam.engine.text.harmony import ENDS, LETTERS

ENDOFTEXT, IM_START, IM_END = ADDED
LLAMA2 = "{% for m in messages %}{{ m['content'] + (' ' + eos_token if m['role'] == 'assistant' else '') }}{% endfor %}"
NAMED = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "ours"}]


def folder(path: Path, **files: Any) -> Path:
    """`tokenizer_config={…}` becomes tokenizer_config.json, and so on; a text becomes chat_template.jinja."""
    path.mkdir(exist_ok=True)
    byte_tokenizer().save(str(path / "tokenizer.json"))
    for name, content in files.items():
        if isinstance(content, str):
            (path / f"{name}.jinja").write_text(content)
        else:
            (path / f"{name}.json").write_text(json.dumps(content))
    return path


def opened(path: Path, rows: int) -> TokenizerFiles:
    config = path / "config.json"
    said = read_object(config) if config.is_file() else JsonObject("config.json", {})
    return read_tokenizer_files(path, said, rows)


def read(path: Path, **files: Any) -> TokenizerFiles:
    return opened(folder(path, **files), 264)


def test_f01_1_the_tokenizers_end_and_the_generation_configs_are_one_set(tmp_path: Path) -> None:
    files = read(tmp_path, tokenizer_config={"eos_token": ENDOFTEXT}, generation_config={"eos_token_id": [7, 9]})
    assert files.eos_ids == {0, 7, 9}


def test_f01_2_no_source_replaces_another(tmp_path: Path) -> None:
    files = read(tmp_path, tokenizer_config={"eos_token": IM_END}, generation_config={"eos_token_id": 0})
    assert files.eos_ids == {0, 2}
    assert files.eos_text == IM_END


def test_f01_3_without_a_generation_config_the_others_count(tmp_path: Path) -> None:
    eos = {"content": IM_END, "lstrip": False}
    files = read(tmp_path, tokenizer_config={"eos_token": eos}, config={"eos_token_id": 5})
    assert files.eos_ids == {2, 5}


EOS_IDS = [(7, {7}), ([7, 8], {7, 8}), (None, set()), ([], set())]


@pytest.mark.parametrize(("value", "wanted"), EOS_IDS)
def test_f01_4_an_int_a_list_and_null_are_read(value: Any, wanted: set[int], tmp_path: Path) -> None:
    assert read(tmp_path, config={"eos_token_id": value}).eos_ids == wanted


@pytest.mark.parametrize("file", ["config", "generation_config"])
def test_an_end_beyond_the_vocabulary_ends_nothing_and_is_named(
    file: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING", "hamdam.engine"):
        files = read(tmp_path, **{file: {"eos_token_id": [7, 264, -1, 1 << 64]}})
    assert files.eos_ids == {7}
    (line,) = caplog.messages
    assert line.startswith(f"{file}.json: eos_token_id -1, 264, {1 << 64} is no id of the vocabulary (0 to 263)")


@pytest.mark.parametrize("value", ["7", [7, "8"], 7.0, True, {"id": 7}])
def test_f01_4_anything_else_is_refused(value: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="eos_token_id is neither an int nor a list"):
        read(tmp_path, config={"eos_token_id": value})


def test_f01_the_templates_end_of_turn_counts_where_it_is_one_added_token(tmp_path: Path) -> None:
    assert read(tmp_path, chat_template=CHATML).eos_ids == {2}
    files = read(tmp_path / "b", tokenizer_config={"eos_token": ENDOFTEXT, "chat_template": CHATML})
    assert files.eos_ids == {0, 2}


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        (CHATML, 2),
        (LLAMA2, 0),
        ("{% for m in messages %}{{ m['content'] + '\n\n' }}{% endfor %}", None),
        ("{% for m in messages %}{{ m['content'] + ' END <|im_end|>' }}{% endfor %}", None),
        ("{% for m in messages %}{{ m['role'] }}{% endfor %}", None),
        ("{{ raise_exception('no') }}", None),
        (None, None),
    ],
)
def test_f01_end_of_turn_is_the_added_token_right_after_an_answer(template: str | None, wanted: int | None) -> None:
    assert end_of_turn(template, byte_tokenizer(), "", ENDOFTEXT) == wanted


def test_f01_of_two_added_tokens_that_begin_alike_the_longer_one_is_meant() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([AddedToken("<|im_end|>>", special=True)])
    template = "{% for m in messages %}{{ m['content'] + '<|im_end|>>' }}{% endfor %}"
    assert end_of_turn(template, tokenizer, "", "") == 260


def test_f01_in_harmony_the_end_of_a_message_ends_no_answer(tmp_path: Path) -> None:
    """gpt-oss writes `<|end|>` after its thought, and its template after an answer too."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens([*LETTERS, *ENDS])
    header = "<|start|>{{ m.role }}<|channel|>final<|message|>"
    template = f"{{% for m in messages %}}{header}{{{{ m.content }}}}<|end|>{{% endfor %}}"
    assert end_of_turn(template, tokenizer, "", "") == tokenizer.token_to_id("<|end|>")
    folder(tmp_path, tokenizer_config={"eos_token": "<|return|>"}, chat_template=template)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    found = opened(tmp_path, 300)
    assert found.eos_ids == {tokenizer.token_to_id(end) for end in ("<|return|>", "<|call|>")}


def test_f01_the_checkpoint_of_a_folder_has_the_whole_set(tmp_path: Path) -> None:
    write_folder(tmp_path, CONFIG | {"eos_token_id": 7})
    folder(tmp_path, tokenizer_config={"eos_token": ENDOFTEXT}, chat_template=CHATML)
    folder(tmp_path, generation_config={"eos_token_id": [8]})
    assert open_checkpoint(tmp_path).eos_ids == {0, 2, 7, 8}


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({"chat_template": "file", "tokenizer_config": {"chat_template": "config"}}, "file"),
        ({"tokenizer_config": {"chat_template": "config"}}, "config"),
        ({"tokenizer_config": {"chat_template": NAMED}}, "ours"),
        ({"tokenizer_config": {"chat_template": NAMED[:1]}}, None),
        ({"tokenizer_config": {"chat_template": None}}, None),
        ({"tokenizer_config": {}}, None),
        ({}, None),
    ],
)
def test_f12_the_template_is_found_in_the_order_of_the_places(files: Any, wanted: str | None, tmp_path: Path) -> None:
    assert read(tmp_path, **files).chat_template == wanted


def test_f12_a_template_may_have_a_json_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "chat_template.json").write_text('{"chat_template": "its own"}')
    assert read(tmp_path, tokenizer_config={"eos_token": IM_END}).chat_template == "its own"
    assert read(tmp_path, tokenizer_config={"chat_template": "ours"}).chat_template == "ours"


@pytest.mark.parametrize("value", [7, {"default": "x"}, [{"name": "default"}], [{"name": 1, "template": "x"}]])
def test_f12_a_template_of_another_kind_is_refused(value: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="tokenizer_config"):
        read(tmp_path, tokenizer_config={"chat_template": value})


def test_f12_a_template_that_is_no_template_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="chat template"):
        read(tmp_path, chat_template="{% for m in %}")


def test_bos_is_what_the_tokenizer_puts_before_a_text(tmp_path: Path) -> None:
    files = read(tmp_path, tokenizer_config={"bos_token": IM_START})
    assert (files.bos_id, files.bos_text) == (None, IM_START)
    tokenizer = byte_tokenizer()
    tokenizer.post_processor = processors.TemplateProcessing("b $A", "b $A $B", [("b", 1)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert opened(tmp_path, 264).bos_id == 1
    (tmp_path / "tokenizer_config.json").unlink()
    assert opened(tmp_path, 264).bos_id is None
    (tmp_path / "config.json").write_text('{"bos_token_id": 1}')
    assert opened(tmp_path, 264).bos_id == 1


def test_an_older_special_tokens_map_counts_where_the_config_says_nothing(tmp_path: Path) -> None:
    files = read(tmp_path, special_tokens_map={"eos_token": {"content": IM_END}, "bos_token": IM_START})
    assert (files.eos_text, files.bos_text, files.eos_ids) == (IM_END, IM_START, {2})


def test_a_tokenizer_saved_while_it_cut_and_filled_does_neither(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=4)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    read_back = opened(tmp_path, 264).tokenizer
    assert [len(read_back.encode(text).ids) for text in ("a", "abcdefghi")] == [1, 9]


@pytest.mark.parametrize("content", [b"", b"{}", b"[1", b'{"model": {"type": "BPE"}}', b"\xff" * 40, b"[" * 5000])
def test_a_tokenizer_file_that_is_none_is_refused_in_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"^tokenizer\.json: not a tokenizer") as refusal:
        opened(tmp_path, 264)
    assert "\n" not in str(refusal.value)


NO_OBJECT = [b"", b"[]", b"{", b'{"a": 1, "a": 2}', b'{"a": NaN}', b"[" * 5000, b"\xff\xfe", b'{"a": ' + b"1" * 5000]


@pytest.mark.parametrize("content", NO_OBJECT, ids=range(len(NO_OBJECT)))
def test_a_json_file_that_is_no_object_is_refused_in_one_line(content: bytes, tmp_path: Path) -> None:
    folder(tmp_path)
    (tmp_path / "generation_config.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"^generation_config\.json: ") as refusal:
        opened(tmp_path, 264)
    assert "\n" not in str(refusal.value)


def test_a_missing_tokenizer_or_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json is missing"):
        opened(tmp_path, 264)
    with pytest.raises(ModelError, match=r"config\.json is missing"):
        open_checkpoint(tmp_path)


def test_a_vocabulary_with_an_id_twice_is_refused(tmp_path: Path) -> None:
    folder(tmp_path)
    file = tmp_path / "tokenizer.json"
    parts = json.loads(file.read_text())
    parts["model"]["vocab"]["he"] = parts["model"]["vocab"]["h"]
    file.write_text(json.dumps(parts))
    with pytest.raises(ModelError, match="two pieces of the vocabulary have one id"):
        opened(tmp_path, 264)


def test_a_tokenizer_that_makes_the_library_panic_is_refused(tmp_path: Path) -> None:
    folder(tmp_path)
    file = tmp_path / "tokenizer.json"
    parts = json.loads(file.read_text())
    parts["model"]["continuing_subword_prefix"] = "longer than any piece"
    file.write_text(json.dumps(parts))
    with pytest.raises(ModelError, match=r"tokenizer\.json: not a tokenizer"):
        opened(tmp_path, 264)


def test_a_tokenizer_larger_than_the_embedding_is_refused(tmp_path: Path) -> None:
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    assert isinstance(opened(tmp_path, 260).tokenizer, Tokenizer)
    with pytest.raises(ModelError, match="the tokenizer has the id 259, the embedding only 259 rows"):
        opened(tmp_path, 259)


@pytest.mark.parametrize("cleans_up", [True, False, None])
def test_a06_a_files_wish_to_clean_up_spaces_changes_no_text(cleans_up: bool | None, tmp_path: Path) -> None:
    write_folder(tmp_path)
    folder(tmp_path, tokenizer_config={"clean_up_tokenization_spaces": cleans_up})
    tokenizer = open_checkpoint(tmp_path).tokenizer
    text = " don 't , he said . Is n't it ? "
    stream = Codec(tokenizer, None).text_stream()
    assert "".join(stream.push(id)[0] for id in tokenizer.encode(text).ids) + stream.finish() == text
