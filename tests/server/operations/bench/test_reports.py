"""Reports: what is written is read back as it was, and what is no report is refused in one line."""
import json
import re
from pathlib import Path

import pytest
from bench_reports import chat_report, engine_report, every_report, kernel_report

from hamdam.server.operations.bench.report import reports
from hamdam.server.operations.bench.report.page import page
from hamdam.server.operations.bench.report.peer_file import earlier_chat, engine_figures
from hamdam.server.operations.bench.report.reports import (
    ChatReport,
    EngineReport,
    KernelReport,
    ReportError,
    about,
    load,
    parse,
    put,
    write,
)
from hamdam.server.operations.bench.report.text import report_text
from hamdam.server.operations.bench.traffic.load import Load


@pytest.mark.parametrize("report", every_report(), ids=lambda report: type(report).__name__)
def test_what_is_written_is_read_back_as_it_was(report, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    write(report, file)
    assert parse(load(file), file, type(report)) == report
    assert json.loads(file.read_text())["about"]["schema"] == reports.SCHEMA


def test_a_field_that_a_later_version_adds_does_no_harm(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    write(engine_report(), file)
    later = json.loads(file.read_text()) | {"new": 1}
    later["about"]["also_new"] = [1]
    assert parse(json.dumps(later).encode(), file, EngineReport) == engine_report()


def test_a_field_that_is_missing_or_of_another_type_is_named(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    write(engine_report(), file)
    for change, said in (({"at": 7}, "about.at"), ({"machine": {}}, "about.machine"), ({"kind": None}, "about.kind")):
        broken = json.loads(file.read_text())
        broken["about"] |= change
        with pytest.raises(ReportError, match=said):
            parse(json.dumps(broken).encode(), file, EngineReport)


def test_another_schema_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "report.json"
    write(kernel_report(), file)
    monkeypatch.setattr(reports, "SCHEMA", 2)
    with pytest.raises(ReportError, match="has schema 1; this version reads 2"):
        parse(load(file), file, KernelReport)


def test_a_report_of_another_kind_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    write(engine_report(), file)
    with pytest.raises(ReportError, match="is a report of bench engine, not of bench chat"):
        parse(load(file), file, ChatReport)


def test_what_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="cannot be written: Is a directory"):
        put(tmp_path, b"")


def test_it_says_what_it_was_measured_with() -> None:
    told = about("engine", model="tiny", description="a script", threads=1, options={"quick": True})
    assert (told.kind, told.model, told.description, told.threads) == ("engine", "tiny", "a script", 1)
    assert told.machine.cores >= 1
    assert told.machine.cpu
    assert told.at.endswith("+00:00")


def test_an_earlier_report_is_a_peer(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    write(engine_report(), file)
    found = {figure.name: figure.value for figure in engine_figures(file)}
    assert found == {"decode 1 × 128": 100.0, "decode 4 × 128": 400.0, "prefill 512": 900.0}
    write(chat_report(), file)
    assert earlier_chat(file, Load(users=2, turns=2)) == chat_report()
    with pytest.raises(ReportError, match="of another load"):
        earlier_chat(file, Load(users=3, turns=2))


def test_what_whole_steps_are_spent_on_is_a_table_of_its_own() -> None:
    lines = report_text(kernel_report()).splitlines()
    start = lines.index("whole steps, int8 on cpu, 2 threads")
    assert [re.split(r"\s{2,}", line) for line in lines[start + 1 : start + 5]] == [
        ["%", "decode 1 × 128", "prefill 256"],
        ["qkv", "25.0", "25.0"],
        ["attention, of keys", "75.0", "75.0"],
        ["ms a step", "2.00", "2.00"],
    ]
    assert b"Whole steps" in page(kernel_report())
    assert b"Whole steps" not in page(KernelReport(about=kernel_report().about))
