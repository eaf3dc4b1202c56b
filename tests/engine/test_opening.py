"""open_engine: what is ready when it returns, so that nobody who comes later waits for it."""
from pathlib import Path

import pytest
import torch
from tiny_models import write_folder

from hamdam.engine import EngineConfig, open_engine
from hamdam.engine.errors import ModelError
from hamdam.engine.grammar import grammars
from hamdam.engine.grammar.lexicon import Lexicon


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Lexicon]:
    lexicons: list[Lexicon] = []

    def noted(texts: list[bytes]) -> Lexicon:
        lexicons.append(Lexicon(texts))
        return lexicons[-1]

    monkeypatch.setattr(grammars, "Lexicon", noted)
    return lexicons


def test_an_engine_is_opened_with_the_lexicon_of_its_grammars(tmp_path: Path, made: list[Lexicon]) -> None:
    threads = torch.get_num_threads()
    config = EngineConfig(model=write_folder(tmp_path), device="cpu", dtype="float32", kv_memory=1 << 20, threads=1)
    engine = open_engine(config)
    assert [one.size for one in made] == [engine.runner.vocab_size]
    engine.runner.close()
    torch.set_num_threads(threads)


def test_a_model_that_cannot_be_opened_is_refused_whatever_was_begun(tmp_path: Path, made: list[Lexicon]) -> None:
    config = EngineConfig(model=write_folder(tmp_path), device="cpu", dtype="float64")
    with pytest.raises(ModelError, match="float64"):
        open_engine(config)
