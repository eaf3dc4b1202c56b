"""`hamdam model check`: what is printed, for people and for programs, and with what status it ends."""
import json
from dataclasses import asdict
from pathlib import Path

import pytest
from tiny_models import CONFIG, write_folder

from hamdam.engine import EngineConfig, check_model
from hamdam.server import __main__ as command
from hamdam.server.operations import model_check


@pytest.fixture(autouse=True)
def _a_house_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HAMDAM_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("os.umask", lambda mask: 0)  # the test process keeps its own


def check(*arguments: str) -> int:
    return command.main(["model", "check", "--device", "cpu", "--dtype", "float32", *arguments])


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    return str(write_folder(tmp_path / "data/models/org/tiny"))


def test_a_model_is_described_line_by_line(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(tiny, "--kv-memory", "98304") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == tiny
    said = {line[2:16].strip(): line[17:] for line in lines[1:]}
    assert said["architecture"] == "llama: 2 layers of 32, 4 heads of 8, 2 of them for KV"
    assert said["parameters"].startswith("0.0 million, as F32 100% (")
    assert said["context"] == "128 tokens"
    assert said["tokenizer"] == "BPE, 260 tokens"
    assert said["template"] == "there is none: it completes texts, and refuses chats"
    assert said["computed by"] == "PyTorch on the CPU, float32"
    assert said["KV"] == "256 bytes a token in float32, 98.3 kB in all (--kv-memory)"
    assert said["conversations"].startswith("of 128 tokens: 3 at a time; ")
    assert said["here"] == "it runs"


def test_a_model_that_was_pulled_is_found_by_its_name(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check("tiny") == 0
    assert capsys.readouterr().out.startswith(f"{tiny}\n")


def test_programs_get_all_of_it_as_json(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(tiny, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    checked = check_model(EngineConfig(model=Path(tiny), device="cpu", dtype="float32"))
    assert said["facts"] == json.loads(json.dumps(asdict(checked)["facts"]))
    assert said["why_not"] is None
    assert set(said["fit"]) == set(asdict(checked)["fit"])


def test_what_is_not_supported_ends_with_1_and_its_reason(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    (Path(tiny) / "config.json").write_text(json.dumps(CONFIG | {"model_type": "gpt2"}))
    assert check(tiny) == 1
    path, reason = capsys.readouterr().out.splitlines()
    assert path == tiny
    assert reason.startswith("  here           it does not run: config.json: architecture 'gpt2' is not supported")
    assert check(tiny, "--json") == 1
    assert "'gpt2' is not supported" in json.loads(capsys.readouterr().out)["why_not"]


def test_what_is_not_there_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert check("nobody") == 2
    assert "no model 'nobody'" in capsys.readouterr().err


def test_what_a_file_calls_things_breaks_no_line(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert model_check._line("a\n\x1b[31mb") == "a\\n\\x1b[31mb"
    (Path(tiny) / "config.json").write_text(json.dumps(CONFIG | {"model_type": "a\nb\x1b"}))
    assert check(tiny) == 1
    assert len(capsys.readouterr().out.splitlines()) == 2
