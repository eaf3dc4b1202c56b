"""`hamdam bench` from its arguments to its files; what is wrong is one line, an interrupt keeps what is known."""
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from bench_reports import chat_report, engine_report
from fake_peer import FakePeer
from scripted import ScriptedRunner, byte_tokenizer
from tiny_models import CONFIG, write_folder

from hamdam.engine import Driver, EngineConfig
from hamdam.server import __main__ as command
from hamdam.server.operations.bench import chat, engine, kernels
from hamdam.server.operations.bench.report.reports import ChatReport, EngineReport, KernelReport, load, parse, write

PYTORCH = ("--device", "cpu", "--dtype", "float32")
ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setenv("HAMDAM_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("os.umask", lambda mask: 0)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def bench(*arguments: object) -> int:
    try:
        return command.main(["bench", *map(str, arguments)])
    except SystemExit as end:  # argparse's own
        return int(end.code or 0)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("tiny"), CONFIG | {"max_position_embeddings": 1024})


def test_the_engine_is_measured_printed_and_kept(tiny: Path, tmp_path: Path, capsys) -> None:
    kept, shown = tmp_path / "r.json", tmp_path / "r.html"
    arguments = ("--quick", "--batch", "1,2", "--context", 32, "--threads", 1, *PYTORCH)
    assert bench("engine", "--model", tiny, *arguments, "--json", kept, "--html", shown) == 0
    report = parse(load(kept), kept, EngineReport)
    assert [(p.workload.name, p.computed, p.sampled) for p in report.points] == [
        ("decode 1 × 32", 8, 8), ("decode 2 × 32", 16, 16), ("prefill 512", 512, 1),
        ("mixed 16 × 32 + 256", 8 * 272, 8 * 17),
    ]
    assert (report.complete, report.skipped, report.about.threads) == (True, (), 1)
    printed = capsys.readouterr()
    assert "decode 2 × 32" in printed.out
    assert "float32 on cpu, threads: 1" in printed.out
    assert "measuring decode 1 × 32\n" in printed.err
    assert shown.read_bytes().startswith(b"<!doctype html>")
    assert bench("engine", "--model", tiny, *arguments, "--against", kept) == 0
    assert "a hint, no comparison" in capsys.readouterr().out


def test_the_engine_is_measured_with_fewer_bits_of_weights_and_of_kv(tiny: Path, tmp_path: Path, capsys) -> None:
    kept = tmp_path / "r.json"
    arguments = ("--quick", "--batch", 1, "--context", 32, "--repeats", 1, "--threads", 1, *PYTORCH, "--json", kept)
    assert bench("engine", "--model", tiny, *arguments, "--quantize", "int8", "--kv-dtype", "fp8") == 0
    report = parse(load(kept), kept, EngineReport)
    assert report.points[0].description == report.about.description
    assert report.about.description == "float32 on cpu, weights in int8, KV in fp8"
    assert (report.about.options["quantize"], report.about.options["kv_dtype"]) == ("int8", "fp8")


@pytest.mark.parametrize("by_variable", [False, True])
def test_the_engine_is_measured_invariant_where_that_is_asked_for(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, by_variable: bool
) -> None:
    asked = [] if by_variable else ["--invariant"]
    if by_variable:
        monkeypatch.setenv("HAMDAM_INVARIANT", "true")
    assert bench("engine", "--model", tiny, *PYTORCH, *asked) == 2
    assert "invariant cannot be had" in capsys.readouterr().err, "as `hamdam serve` says"
    opened: list[bool] = []

    def open_driver(*_given: object, invariant: bool, **_named: object) -> tuple[Driver, str]:
        opened.append(invariant)
        return Driver(ScriptedRunner(byte_tokenizer()), EngineConfig(model=tiny)), "tiny"

    monkeypatch.setattr(engine, "open_driver", open_driver)
    kept, few = tmp_path / "r.json", ("--quick", "--batch", 1, "--context", 32, "--repeats", 1)
    assert bench("engine", "--model", tiny, *few, *asked, "--json", kept) == 0
    assert (opened, parse(load(kept), kept, EngineReport).about.options["invariant"]) == ([True], True)
    assert "tiny: a script, invariant\n" in capsys.readouterr().out


def test_the_kernels_are_measured_and_an_interrupt_keeps_what_is_known(tiny: Path, tmp_path: Path, monkeypatch) -> None:
    made = kernels.measure_kernels

    def few(*given: Any, **named: Any) -> Any:
        for number, found in enumerate(made(*given, **named)):
            if number == 3:
                raise KeyboardInterrupt
            yield found

    monkeypatch.setattr(kernels, "measure_kernels", few)
    monkeypatch.setattr("hamdam.engine.bench.torch_operations.COPIED", 1 << 16)
    monkeypatch.setattr("hamdam.engine.bench.torch_operations.MULTIPLIED", {"cpu": 16})
    kept = tmp_path / "k.json"
    assert bench("kernels", "--model", tiny, "--threads", 1, *PYTORCH, "--json", kept) == 130
    report = parse(load(kept), kept, KernelReport)
    assert (len(report.ceilings), len(report.points), report.complete) == (1, 2, False)


def test_ctrl_c_ends_the_engines_bench_at_once_with_what_is_known(tiny: Path, tmp_path: Path) -> None:
    kept = tmp_path / "r.json"
    asked = ["bench", "engine", "--model", tiny, "--context", 64, "--threads", 1, *PYTORCH, "--repeats", 10,
             "--batch", "1,2,3,4,5,6", "--json", kept, "--data", tmp_path]
    process = subprocess.Popen(
        [sys.executable, "-m", "hamdam.server", *map(str, asked)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )
    with process:
        assert process.stderr
        while "decode 2 × 64" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "decode 1 × 64" in out
    assert "interrupted: the rest was not measured" in out
    report = parse(load(kept), kept, EngineReport)
    assert not report.complete
    assert 1 <= len(report.points) < 6


def test_a_peers_url_is_measured_in_turn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys) -> None:
    runner = ScriptedRunner(byte_tokenizer())
    driver = Driver(runner, EngineConfig(model=Path("scripted")))
    monkeypatch.setattr(engine, "model_path", lambda settings: Path("scripted"))
    monkeypatch.setattr(engine, "open_driver", lambda *given, **named: (driver, "scripted"))
    peer = FakePeer()
    monkeypatch.setattr(engine, "open_door", lambda url, **named: peer)
    kept = tmp_path / "r.json"
    arguments = ("--quick", "--batch", 2, "--context", 32, "--repeats", 3, "--json", kept)
    assert bench("engine", *arguments, "--against", "http://peer") == 0
    report = parse(load(kept), kept, EngineReport)
    assert report.against
    assert report.against.alternating
    assert [(ratio.name, ratio.times.count) for ratio in report.against.ratios] == [
        ("decode 2 × 32", 3), ("prefill 512", 3),
    ]
    assert all(body["ignore_eos"] for body in peer.asked)
    assert "Against theirs at http://peer, taken in turn" in capsys.readouterr().out


def test_a_load_goes_to_a_url_in_turn_with_a_peer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys) -> None:
    doors = {"http://ours": FakePeer(), "http://theirs": FakePeer(says=3)}
    monkeypatch.setattr(chat, "open_door", lambda url, **named: doors[url])
    kept, shown = tmp_path / "c.json", tmp_path / "c.html"
    load_asked = ("--users", 2, "--turns", 2, "--max-tokens", 4, "--system-repeat", 1)
    asked = ("--url", "http://ours", "--against", "http://theirs")
    keys = ("--key", "my-secret", "--against-key", "their-secret")
    assert bench("chat", *load_asked, *asked, *keys, "--json", kept, "--html", shown) == 0
    report = parse(load(kept), kept, ChatReport)
    assert [run.output_tokens for run in report.runs] == [16] * 3
    assert [run.output_tokens for run in report.their_runs] == [12] * 3
    assert report.against
    assert {ratio.times.count for ratio in report.against.ratios} == {3}
    for file in (kept, shown):
        assert "secret" not in file.read_text()
    assert "secret" not in "".join(capsys.readouterr())
    ours, theirs = ({body["messages"][0]["content"] for body in door.asked} for door in doors.values())
    assert (len(ours), len(theirs)) == (4, 4), "a warm-up and three pairs"
    assert len(ours & theirs) == 3, "both sides of a pair are asked the same"
    assert bench("chat", *load_asked, "--url", "http://ours", "--against", kept) == 0
    assert "a hint, no comparison" in capsys.readouterr().out


def test_an_answer_that_failed_is_told_and_the_status_says_so(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(chat, "open_door", lambda url, **named: FakePeer(says=4))
    asked = ("--url", "http://peer", "--users", 2, "--turns", 1, "--max-tokens", 5, "--ignore-eos")
    assert bench("chat", *asked) == 1
    assert "failed: 5 tokens were asked for, and 4 came" in capsys.readouterr().out


def test_an_interrupt_keeps_what_was_answered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys) -> None:
    class Impatient:
        def __call__(self, done: int, total: int | None, label: str) -> None:
            if done == 3:
                signal.raise_signal(signal.SIGINT)

        def clear(self) -> None:
            pass

    monkeypatch.setattr(chat, "open_door", lambda url, **named: FakePeer())
    monkeypatch.setattr(chat, "Progress", Impatient)
    kept = tmp_path / "c.json"
    assert bench("chat", "--url", "http://peer", "--users", 2, "--turns", 3, "--json", kept) == 130
    report = parse(load(kept), kept, ChatReport)
    assert not report.complete
    (run,) = report.runs
    assert 3 <= run.answers < 6, "who is answered in the same moment counts as well"
    assert "interrupted" in capsys.readouterr().out


def test_without_a_url_a_server_of_our_own_is_measured_and_gone_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_folder(tmp_path / "tiny", CONFIG | {"max_position_embeddings": 1024})
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    monkeypatch.setenv("HAMDAM_PUBLIC_URL", "https://chat.example.org")  # not for the server that is measured
    started: list[subprocess.Popen[str]] = []
    popen = subprocess.Popen

    def start(*given: Any, **named: Any) -> Any:
        started.append(popen(*given, **named))
        return started[-1]

    monkeypatch.setattr("hamdam.server.operations.bench.traffic.child_server.subprocess.Popen", start)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    kept = tmp_path / "c.json"
    asked = ("--users", 3, "--turns", 2, "--max-tokens", 8, "--system-repeat", 1, "--ignore-eos")
    assert bench("chat", "--model", model, *PYTORCH, "--kv-memory", "4MB", *asked, "--json", kept) == 0
    report = parse(load(kept), kept, ChatReport)
    (run,) = report.runs
    assert (run.answers, run.failed, run.output_tokens) == (6, 0, 48)
    assert (report.about.model, report.about.description.partition(":")[0]) == ("tiny", "tiny (float32 on cpu)")
    (server,) = [process for process in started if "serve" in process.args]
    assert server.returncode == 0
    assert not Path(server.args[server.args.index("--data") + 1]).exists()


def test_a_server_that_does_not_start_is_one_line(tiny: Path, capsys) -> None:
    assert bench("chat", "--model", tiny, *PYTORCH, "--kv-memory", "1KB") == 2
    printed = capsys.readouterr()
    assert "hamdam: the server did not start: hamdam: kv_memory is 1000 bytes" in printed.err
    assert printed.out == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "required"),
        (("gpu",), "invalid choice"),
        (("engine", "--batch", "1,,2"), "must be a number from 1 to"),
        (("engine", "--batch", "0"), "must be a number from 1 to"),
        (("engine", "--context", "-5"), "must be a number from 1 to"),
        (("engine", "--context", "many"), "must be a number from 1 to"),
        (("engine", "--temperature", "nan"), "must be a number from 0 to 2"),
        (("engine", "--device", "gpu"), "--device must be"),
        (("engine", "--kv-memory", "lots"), "--kv-memory must be"),
        (("engine", "--kv-dtype", "int4"), "--kv-dtype must be"),
        (("chat", "--quantize", "int2"), "--quantize must be"),
        (("kernels", "--quantize", "int8"), "unrecognized"),
        (("engine", "--json", "/no/such/folder/r.json"), "no file in a folder that there is"),
        (("engine", "--html", "/"), "no file in a folder that there is"),
        (("engine", "--against", "no-such-file"), "neither an address nor a file"),
        (("engine", "--against", "http://peer", "--repeats", "2"), "one pair says little"),
        (("engine", "--model", "no-such-model"), "no-such-model"),
        (("engine", "--url", "http://x"), "unrecognized"),
        (("chat", "--url", "ftp://peer"), "must be an address such as"),
        (("chat", "--url", "http://127.0.0.1:1"), "does not answer"),
        (("chat", "--arrivals", "0"), "must be a number from 0.001 to 1000"),
        (("chat", "--think", "x"), "must be a number from 0 to 3600"),
        (("chat", "--users", "1.5"), "must be a number from 1 to"),
        (("chat", "--url", "http://x", "--against", "http://peer", "--repeats", "1"), "one pair says little"),
        (("kernels", "--against", "http://peer"), "unrecognized"),
    ],
)
def test_what_is_wrong_is_one_line(arguments: tuple[str, ...], said: str, capsys) -> None:
    assert bench(*arguments) == 2
    printed = capsys.readouterr()
    assert said in printed.err.splitlines()[-1]
    assert printed.err.splitlines()[-1].startswith("hamdam")
    assert printed.out == ""


def test_a_file_of_another_bench_is_refused_before_anything_is_measured(tmp_path: Path, capsys) -> None:
    write(chat_report(), tmp_path / "c.json")
    write(engine_report(), tmp_path / "e.json")
    for kind, file in (("engine", "c.json"), ("chat", "e.json")):
        assert bench(kind, "--against", tmp_path / file) == 2
        printed = capsys.readouterr()
        assert re.search(r"is a report of bench (chat|engine), not of bench", printed.err)
        assert printed.err.count("\n") == 1


def test_a_peer_that_does_not_answer_is_told_before_a_model_is_opened(monkeypatch, capsys) -> None:
    opened: list[object] = []
    monkeypatch.setattr(engine, "open_driver", opened.append)
    assert bench("engine", *PYTORCH, "--against", "http://127.0.0.1:1") == 2
    assert opened == []
    assert re.fullmatch(r"hamdam: http://127.0.0.1:1 does not answer: .*\n", capsys.readouterr().err)
