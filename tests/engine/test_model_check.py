"""check_model: what it says of models whose every number is known; and that it says something whatever a file holds."""
import json
import random
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType
from tiny_models import CONFIG, write_folder, write_gguf

from hamdam.engine import model_check
from hamdam.engine.config import EngineConfig
from hamdam.engine.errors import ModelError
from hamdam.engine.execution import runners
from hamdam.engine.memory import Memory
from hamdam.engine.model_check import BESIDE, ModelCheck, ModelFacts, ModelFit, Room, check_model

Q8_0 = GGMLQuantizationType.Q8_0
LAYER = 2 * 32 + 2 * 32 * 32 + 2 * 16 * 32 + 3 * 64 * 32  # norms; q and o; k and v; gate, up and down
PARAMETERS = 2 * 264 * 32 + 2 * LAYER + 32
KV = 2 * 2 * 2 * 8  # numbers of a token: key and value, layers, KV heads, head_dim
FREE = BESIDE + PARAMETERS * 4 + 1_000 * 4 * KV  # bytes: 62 blocks of 16 tokens beside what has to be


@pytest.fixture(autouse=True)
def _a_machine_without_native_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runners, "no_native", lambda model, config: "numba is not installed")
    monkeypatch.setattr(model_check, "memory_here", lambda: Memory(2 * FREE, FREE))


def check(path: Path, **knobs: Any) -> ModelCheck:
    return check_model(EngineConfig(model=path, **{"device": "cpu"} | knobs))


def facts_of(path: Path) -> ModelFacts:
    facts = check(path).facts
    assert facts is not None
    return facts


def fit_of(path: Path, **knobs: Any) -> ModelFit:
    checked = check(path, **knobs)
    assert checked.fit is not None, checked.why_not
    return checked.fit


def why_not(path: Path, **knobs: Any) -> str:
    why = check(path, **knobs).why_not
    assert why is not None
    return why


def test_a_folder_is_described_by_its_files(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tiny")
    assert facts_of(folder) == ModelFacts(
        name="tiny", architecture="llama", layers=2, hidden=32, heads=4, kv_heads=2, head_dim=8, parameters=PARAMETERS,
        formats={"F32": 1.0}, file_bytes=(folder / "model.safetensors").stat().st_size, max_context=128,
        tokenizer="BPE", vocabulary=260, has_template=False, ends={},
    )


def test_a_gguf_is_described_by_its_header_and_its_types_by_their_share(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", kinds={"gate_proj.weight": Q8_0, "up_proj.weight": Q8_0})
    facts = facts_of(path)
    assert (facts.name, facts.parameters, facts.file_bytes) == ("tiny", PARAMETERS, path.stat().st_size)
    assert facts.formats == {"F32": pytest.approx(1 - 4 * 2048 / PARAMETERS), "Q8_0": pytest.approx(8192 / PARAMETERS)}
    assert facts.has_template
    assert facts.ends == {0: "<|endoftext|>", 2: "<|im_end|>"}


def test_a_folder_with_one_gguf_is_that_gguf(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    assert facts_of(tmp_path) == facts_of(tmp_path / "tiny.gguf")


def test_memory_is_counted_in_bytes_and_conversations_in_blocks(tmp_path: Path) -> None:
    fit = fit_of(write_folder(tmp_path), kv_memory=12 * 16 * KV * 4)
    assert (fit.path, fit.dtype, fit.slower) == ("PyTorch on the CPU, float32", "float32", None)
    assert fit.weights == {"float32": 4 * PARAMETERS, "bfloat16": 2 * PARAMETERS}
    assert (fit.kv_per_token, fit.kv_memory) == (4 * KV, 12 * 16 * KV * 4)
    assert fit.rooms == (Room(tokens=128, as_set=12 // 8, at_most=62 // 8),)
    assert fit.needed == BESIDE + 4 * PARAMETERS + 128 * 4 * KV
    assert fit.context == 128
    assert fit_of(tmp_path, dtype="bfloat16").kv_per_token == 2 * KV
    assert (fit.kv_dtype, fit_of(tmp_path, kv_dtype="float16").kv_per_token) == ("float32", 2 * KV)
    assert fit_of(tmp_path, kv_dtype="fp8").kv_per_token == KV + 4 * KV // 8  # a scale for each 8 numbers


def test_what_the_kv_memory_holds_bounds_a_conversation(tmp_path: Path) -> None:
    assert fit_of(write_folder(tmp_path), kv_memory=4 * 16 * KV * 4).context == 65


def test_kv_memory_that_no_part_of_the_machine_has_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_folder(tmp_path)
    assert "kv_memory is 1152921504.6 GB, and there are" in why_not(folder, kv_memory=1 << 60)
    monkeypatch.setattr(runners, "_on_gpu", lambda config: True)
    monkeypatch.setattr(model_check, "_memory_of_gpu", lambda: Memory(1 << 20, 1 << 20))
    assert fit_of(folder, device="auto", kv_memory=1 << 20).kv_memory == 1 << 20
    assert "kv_memory is 0.0 GB, and there are 0.0 GB in all" in why_not(folder, device="auto", kv_memory=1 + (1 << 20))


def test_lengths_end_with_the_models_own(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, CONFIG | {"max_position_embeddings": 10_000})
    assert [room.tokens for room in fit_of(folder).rooms] == [2_048, 8_192, 10_000]
    assert [room.tokens for room in fit_of(folder, max_context=3_000).rooms] == [2_048, 3_000]


def test_why_it_is_not_native_code_is_said_where_that_was_wanted(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    assert fit_of(folder, cache=tmp_path / "cache").slower == "numba is not installed"
    assert "numba is not installed" in why_not(folder, dtype="int8")


@pytest.mark.parametrize(
    ("memory", "words"),
    [(Memory(2 * FREE, FREE), None), (Memory(0, 0), None), (Memory(2 * FREE, 1000), "only 0.0 are free"),
     (Memory(1000, 1000), "there are 0.0 GB")],
)
def test_it_runs_where_its_weights_and_one_conversation_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: Memory, words: str | None
) -> None:
    monkeypatch.setattr(model_check, "memory_here", lambda: memory)
    checked = check(write_folder(tmp_path))
    assert checked.fit is not None
    if words is None:
        assert checked.why_not is None
    else:
        assert words in (checked.why_not or "")


def test_a_gpu_gives_its_share_to_kv_beside_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runners, "_on_gpu", lambda config: True)
    monkeypatch.setattr(model_check, "_memory_of_gpu", lambda: Memory(1 << 20, 1 << 20))
    fit = fit_of(write_folder(tmp_path), device="auto", gpu_memory=0.5)
    assert (fit.path, fit.kv_memory) == ("PyTorch on the GPU, bfloat16", (1 << 19) - 2 * PARAMETERS)
    assert "kv_memory is 0 bytes" in why_not(tmp_path, device="auto", gpu_memory=0.05)


def test_weights_that_are_rounded_at_load_are_counted_so(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tiny")
    floats = 2 * 264 * 32 + 5 * 32  # embedding, head and norms
    for kind, size in (("int8", 1.0), ("int4", 0.625)):
        fit = fit_of(folder, quantize=kind, dtype="bfloat16")
        name, kept = next(iter(fit.weights.items()))
        assert (name, kept) == (f"bfloat16, rounded to {kind}", int((PARAMETERS - floats) * size + 2 * floats))
        assert fit.needed < fit_of(folder, dtype="bfloat16").needed
    path = write_gguf(tmp_path / "tiny.gguf", kinds={"gate_proj.weight": Q8_0})
    assert "for plain weights, and these are Q8_0" in why_not(path, quantize="int8")


def test_quantised_weights_stay_as_they_are_stored_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runners, "_on_gpu", lambda config: True)
    monkeypatch.setattr(model_check, "_memory_of_gpu", lambda: Memory(1 << 20, 1 << 20))
    path = write_gguf(tmp_path / "tiny.gguf", kinds={"gate_proj.weight": Q8_0})
    fit = fit_of(path, device="auto")
    assert next(iter(fit.weights.items())) == ("stored", path.stat().st_size)
    assert list(fit_of(path, device="auto", dtype="float32").weights) == ["float32", "bfloat16"]


@pytest.mark.parametrize(
    ("config", "words"),
    [({"model_type": "gpt2"}, "'gpt2' is not supported"), ({"hidden_act": "relu"}, "'relu' is not supported"),
     ({"hidden_size": -1}, "makes no sense"), ({"intermediate_size": 48}, "has the shape"),
     ({"vocab_size": 9}, "the tokenizer has the id 259, the embedding only 9 rows")],
)
def test_what_is_not_supported_is_said_by_name(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    folder = write_folder(tmp_path)
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    checked = check(folder)
    assert words in (checked.why_not or "")
    assert (checked.facts, checked.fit) == (None, None)


def test_a_refused_knob_leaves_what_the_model_is(tmp_path: Path) -> None:
    checked = check(write_folder(tmp_path), max_context=1_000)
    assert checked.facts is not None
    assert "trained for 128" in (checked.why_not or "")


def test_a_template_that_is_none_is_a_reason(tmp_path: Path) -> None:
    (write_folder(tmp_path) / "chat_template.jinja").write_text("{% if %}")
    assert "template" in why_not(tmp_path)


def test_no_weights_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint in which every tensor refuses to be read."""
    open_checkpoint = model_check.open_checkpoint

    def opened(path: Path) -> Any:
        checkpoint = open_checkpoint(path)
        for name in ("read", "quantized"):
            monkeypatch.setattr(type(checkpoint.weights), name, _refuse)
        return checkpoint

    monkeypatch.setattr(model_check, "open_checkpoint", opened)
    assert check(write_folder(tmp_path / "folder")).why_not is None
    assert check(write_gguf(tmp_path / "tiny.gguf")).why_not is None


def _refuse(*_: Any, **__: Any) -> None:
    raise AssertionError("weights were read")


@pytest.mark.parametrize("data", [b"", b"GGUF", b"\0" * 100, b"GGUF\3\0\0\0" + b"\xff" * 16])
def test_f13_a_file_that_is_no_model_has_a_reason_of_one_line(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    assert "\n" not in why_not(path)
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        folder = write_folder(tmp_path / name)
        (folder / name).write_bytes(data)
        assert "\n" not in why_not(folder)
    assert "no such file" in why_not(tmp_path / "nothing")


def test_f13_random_changes_of_a_valid_file_give_an_answer_or_a_reason(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "whole.gguf").read_bytes()
    path, chance, reasons = tmp_path / "changed.gguf", random.Random(7), 0
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(chance.choice((1, 2, 8))):
            at = chance.randrange(12_000)
            data[at : at + chance.choice((1, 4, 0))] = chance.randbytes(chance.choice((1, 4)))
        path.write_bytes(data)
        reasons += check(path).why_not is not None
    assert 30 < reasons < 150


def test_what_the_system_refuses_is_a_reason_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(model_check, "open_checkpoint", unreadable)
    assert why_not(tmp_path) == f"{tmp_path}: Permission denied"


def test_the_choice_is_the_one_that_a_server_makes(tmp_path: Path) -> None:
    model = model_check.open_checkpoint(write_folder(tmp_path)).config
    with pytest.raises(ModelError, match="int16 cannot be had"):
        runners.choose(model, EngineConfig(model=tmp_path, dtype="int16"))
