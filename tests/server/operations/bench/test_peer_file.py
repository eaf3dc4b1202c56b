"""Peer files: llama.cpp's figures under our names, an earlier report of ours, and one line for anything else."""
import json
from pathlib import Path

import pytest

from hamdam.server.operations.bench.report.peer_file import earlier_chat, engine_figures
from hamdam.server.operations.bench.report.reports import ReportError
from hamdam.server.operations.bench.traffic.load import Load

BATCHED = {"n_kv_max": 4096, "n_batch": 2048, "is_pp_shared": 0, "tg": 32, "n_kv": 160, "t_pp": 0.3, "t_tg": 0.2}


def figures(tmp_path: Path, text: str) -> dict[str, float]:
    file = tmp_path / "peer.jsonl"
    file.write_text(text)
    return {figure.name: figure.value for figure in engine_figures(file)}


def test_llama_batched_bench_gives_decode_by_batch_and_prefill_where_one_is_alone(tmp_path: Path) -> None:
    lines = [
        json.dumps(BATCHED | {"pp": 128, "pl": 1, "speed_pp": 400.5, "speed_tg": 153.25}),
        json.dumps(BATCHED | {"pp": 128, "pl": 16, "speed_pp": 410.0, "speed_tg": 320.0}),
        json.dumps(BATCHED | {"pp": 512, "pl": 1, "speed_pp": 480.0, "speed_tg": 150.0}),
    ]
    log = ("main: n_kv_max = 4096", "", *lines, "llama_perf_context_print: load time")
    found = figures(tmp_path, "\n".join(log))
    assert found == {
        "decode 1 × 128": 153.25, "prefill 128": 400.5, "decode 16 × 128": 320.0,
        "decode 1 × 512": 150.0, "prefill 512": 480.0,
    }


def test_llama_bench_gives_decode_at_a_depth_and_prefill_from_nothing(tmp_path: Path) -> None:
    rows = [
        {"n_prompt": 512, "n_gen": 0, "n_depth": 0, "avg_ts": 470.5, "build_commit": "8cf427ff"},
        {"n_prompt": 512, "n_gen": 0, "n_depth": 1024, "avg_ts": 300.0},
        {"n_prompt": 0, "n_gen": 128, "n_depth": 128, "avg_ts": 155.0},
        {"n_prompt": 512, "n_gen": 128, "n_depth": 0, "avg_ts": 222.0},
    ]
    expected = {"prefill 512": 470.5, "decode 1 × 128": 155.0}
    assert figures(tmp_path, "\n".join(map(json.dumps, rows))) == expected
    assert figures(tmp_path, json.dumps(rows, indent=1)) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no figures"),
        ("| model | size |\n", "holds no figures"),
        ('{"a": 1}', "holds no figures"),
        ("{nonsense", "no JSON"),
        ('{"about": {"kind": "engine"}}', "no report of a bench"),
    ],
)
def test_a_file_that_is_none_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ReportError, match=said) as refused:
        figures(tmp_path, text)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    for read in (engine_figures, lambda path: earlier_chat(path, Load())):
        with pytest.raises(ReportError, match="cannot be read: No such file"):
            read(tmp_path / "none")
