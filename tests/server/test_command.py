"""The `hamdam` command: people and keys beside a server or without one, and every refusal in one line."""
import gc
import io
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from lobby import CHEAP

from hamdam.server import __main__ as command
from hamdam.server import entry
from hamdam.server.operations import people_commands
from hamdam.server.people.passwords import Passwords
from hamdam.server.storage.folder import DataFolder

ROOT = Path(__file__).resolve().parents[2]
PASSWORD = "a good long passphrase"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HAMDAM_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("os.umask", lambda mask: 0)  # the test process keeps its own
    monkeypatch.setattr(people_commands, "Passwords", lambda: Passwords(CHEAP))


def hamdam(*arguments: str) -> int:
    try:
        return command.main(arguments)
    except SystemExit as end:  # argparse's own
        return int(end.code or 0)


def with_password(monkeypatch: pytest.MonkeyPatch, password: str = PASSWORD) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(password + "\n"))


@pytest.fixture
def ana(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    with_password(monkeypatch)
    assert hamdam("user", "add", "Ana", "--password-stdin") == 0
    capsys.readouterr()
    return "Ana"


def rows(tmp_path: Path, query: str) -> list[tuple]:
    with closing(sqlite3.connect(tmp_path / "data" / "hamdam.db")) as database:
        return database.execute(query).fetchall()


def test_the_entry_hands_over_and_leaves_the_collector_on(capsys, monkeypatch) -> None:
    monkeypatch.setattr("sys.argv", ["hamdam", "user", "list"])
    assert entry.main() == 2
    assert "there is no Hamdam in" in capsys.readouterr().err
    assert gc.isenabled()


def test_a_command_brings_in_nothing_that_it_may_not_need() -> None:
    heavy = ["alembic", "huggingface_hub", "numba", "torch", "transformers", "triton"]
    code = f"import sys, hamdam.server.__main__\nassert not sys.modules.keys() & {set(heavy)}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_user_is_made_listed_disabled_enabled_and_deleted(ana: str, capsys) -> None:
    assert hamdam("user", "list") == 0
    assert capsys.readouterr().out == "Ana\tmember\tactive\n"
    assert hamdam("user", "disable", " ANA ") == hamdam("user", "list") == 0
    assert "Ana\tmember\tdisabled" in capsys.readouterr().out
    assert hamdam("user", "enable", "ana") == hamdam("user", "list") == 0
    assert "Ana\tmember\tactive" in capsys.readouterr().out
    assert hamdam("user", "delete", "ana") == hamdam("user", "list") == 0
    assert "Ana\t" not in capsys.readouterr().out


def test_a_user_is_deleted_with_a_chat_that_is_deeper_than_a_cascade(ana: str, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "data" / "hamdam.db")) as database, database:
        user_id = database.execute("SELECT id FROM users").fetchone()[0]
        talk = (user_id, "", "none", "m", "{}", 1, 0, 0)
        names = "user_id, title, title_source, model, settings, revision, created_at, updated_at"
        database.execute(f"INSERT INTO conversations (id, {names}) VALUES ('c', {', '.join('?' * 8)})", talk)
        chain = [(f"m{n}", user_id, f"m{n - 1}" if n else None) for n in range(1_500)]
        names = "id, user_id, parent_id, conversation_id, role, status, parts, text, last_sequence, created_at"
        insert = f"INSERT INTO messages ({names}) VALUES (?, ?, ?, 'c', 'user', 'completed', '[]', '', 0, 0)"
        database.executemany(insert, chain)
    assert hamdam("user", "delete", "ana") == 0
    assert rows(tmp_path, "SELECT (SELECT count(*) FROM messages), (SELECT count(*) FROM conversations)") == [(0, 0)]


def test_key_add_prints_the_key_and_nothing_else(ana: str, tmp_path: Path, capsys) -> None:
    assert hamdam("key", "add", "ana", "--name", "backup job", "--service") == 0
    printed = capsys.readouterr()
    assert re.fullmatch(r"hamdam_[a-z0-9]{8}_[A-Za-z0-9_-]{43}\n", printed.out)
    assert printed.err == ""
    assert rows(tmp_path, "SELECT label, service FROM api_keys") == [("backup job", 1)]
    assert hamdam("key", "list") == 0
    listed = capsys.readouterr().out
    assert listed.strip() == f"{printed.out[:15]}\tAna\tservice\tnever used\tbackup job"
    assert hamdam("key", "revoke", printed.out[:15]) == hamdam("key", "list") == 0
    assert capsys.readouterr().out == f"{printed.out[:15]} is revoked.\n"
    assert hamdam("key", "revoke", printed.out[:15]) == 1


def test_a_new_password_ends_the_old_one(ana: str, tmp_path: Path, monkeypatch, capsys) -> None:
    before = rows(tmp_path, "SELECT password_hash FROM users")
    with_password(monkeypatch, "another good passphrase")
    assert hamdam("user", "reset-password", "ana", "--password-stdin") == 0
    assert rows(tmp_path, "SELECT password_hash FROM users") != before


def test_a_password_is_asked_for_twice_where_it_is_typed(tmp_path: Path, monkeypatch, capsys) -> None:
    typed = iter([PASSWORD, PASSWORD + "x", PASSWORD, PASSWORD])
    monkeypatch.setattr("getpass.getpass", lambda prompt: next(typed))
    assert hamdam("user", "add", "ana") == 1
    assert "differ" in capsys.readouterr().err
    assert hamdam("user", "add", "ana") == 0


def test_where_nobody_can_type_a_password_that_is_said_in_one_line(monkeypatch, capsys) -> None:
    def ended(prompt: str) -> str:
        raise EOFError

    monkeypatch.setattr("getpass.getpass", ended)
    assert hamdam("user", "add", "ana") == 1
    assert capsys.readouterr().err == "hamdam: No password was given (see --password-stdin).\n"


def test_what_the_command_does_is_in_the_audit_log(ana: str, tmp_path: Path, capsys) -> None:
    hamdam("key", "add", "ana")
    hamdam("user", "disable", "ana")
    assert rows(tmp_path, "SELECT action, actor_id FROM audit ORDER BY id") == [
        ("user created", None),
        ("key created", None),
        ("user disabled", None),
    ]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("user", "add", "Ana", "--password-stdin"), 1, "taken"),
        (("user", "add", "аna", "--password-stdin"), 1, "scripts"),
        (("user", "disable", "nobody"), 1, "no user"),
        (("key", "add", "nobody"), 1, "no user"),
        (("key", "revoke", "hamdam_nothing"), 1, "no such key"),
        (("pull", "pypi:../../x"), 2, "neither"),
        (("serve", "--port", "http"), 2, "--port must be"),
        (("serve", "--device", "gpu"), 2, "--device must be"),
        (("serve", "--kv-memory", "lots"), 2, "--kv-memory must be"),
        (("serve", "--max-context", "0"), 2, "--max-context must be"),
        (("serve", "--gpu-memory", "92%"), 2, "--gpu-memory must be"),
        (("serve", "--invariant=perhaps"), 2, "--invariant"),
        (("serve", "--public-url", "example.org"), 2, "--public-url must be"),
        (("serve", "--model", "no-such-model", "--port", "0"), 2, "no-such-model"),
        (("serve", "--config", "/no/such/file"), 2, "is not there"),
        (("serve", "--no-such-option"), 2, "unrecognized"),
        (("serve", "--por", "1"), 2, "unrecognized"),
        (("user",), 2, "required"),
        (("dance",), 2, "invalid choice"),
        ((), 2, "required"),
    ],
)
def test_every_refusal_is_one_line(
    ana: str, monkeypatch, capsys, arguments: tuple[str, ...], status: int, said: str
) -> None:
    with_password(monkeypatch)
    assert hamdam(*arguments) == status
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err
    assert printed.err.count("\n") == 1
    assert printed.err.startswith("hamdam")


def test_a_weak_password_makes_nobody(tmp_path: Path, monkeypatch, capsys) -> None:
    with_password(monkeypatch, "password")
    assert hamdam("user", "add", "ana", "--password-stdin") == 1
    assert rows(tmp_path, "SELECT * FROM users") == []


def test_the_command_runs_beside_a_server_and_not_before_its_tables(
    ana: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    folder = DataFolder(tmp_path / "data")
    folder.lock()
    try:
        assert hamdam("user", "list") == 0
        (tmp_path / "data" / "hamdam.db").unlink()
        with_password(monkeypatch)
        assert hamdam("user", "add", "bob", "--password-stdin") == 2, "only the holder of the folder makes tables"
        assert "another hamdam serve" in capsys.readouterr().err
    finally:
        folder.unlock()


@pytest.mark.parametrize("arguments", [("user", "list"), ("user", "delete", "ana"), ("key", "add", "ana")])
def test_only_serve_and_user_add_begin_anew(tmp_path: Path, capsys, arguments: tuple[str, ...]) -> None:
    for place in (tmp_path / "nowhere", tmp_path):
        before = sorted(tmp_path.rglob("*"))
        assert hamdam(*arguments, "--data", str(place)) == 2
        printed = capsys.readouterr()
        assert f"there is no Hamdam in {place} " in printed.err
        assert (printed.out, printed.err.count("\n")) == ("", 1)
        assert sorted(tmp_path.rglob("*")) == before


def test_a_newer_database_and_a_folder_that_is_none_are_one_line_each(ana: str, tmp_path: Path, capsys) -> None:
    with closing(sqlite3.connect(tmp_path / "data" / "hamdam.db")) as database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
        database.commit()
    for arguments in (("user", "list"), ("serve", "--port", "0")):
        assert hamdam(*arguments) == 2
        assert "newer version" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert hamdam("user", "add", "bob", "--data", str(tmp_path / "file")) == 2
    printed = capsys.readouterr().err
    assert "cannot be used" in printed
    assert printed.count("\n") == 1


def test_every_option_is_in_the_help_with_its_variable(capsys) -> None:
    assert hamdam("serve", "--help") == 0
    said = " ".join(capsys.readouterr().out.split())
    options = "host", "port", "public-url", "model", "device", "dtype", "kv-memory", "gpu-memory", "invariant"
    for name in (*options, "max-context"):
        assert f"--{name}" in said
        assert f"HAMDAM_{name.upper().replace('-', '_')}" in said
    assert "--data" in said and "--config" in said


def test_the_version_is_what_was_installed(monkeypatch, capsys) -> None:
    monkeypatch.setattr(command, "version", {"hamdam": "1.2.3"}.__getitem__)
    assert hamdam("--version") == 0
    assert capsys.readouterr().out == "hamdam 1.2.3\n"


def test_people_and_keys_need_no_torch_and_what_is_written_is_private(tmp_path: Path) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(ROOT / "tests")!r})
import conftest
from hamdam.server.__main__ import main
assert main(["user", "add", "ana", "--password-stdin"]) == 0
assert main(["key", "add", "ana"]) == 0
assert not {{"torch", "numba", "triton"}} & set(sys.modules), "a heavy library was loaded"
"""
    environ = {"HAMDAM_DATA": str(tmp_path / "data"), "PATH": ""}
    run = {"cwd": ROOT, "check": True, "env": environ, "input": PASSWORD.encode(), "stdout": subprocess.DEVNULL}
    subprocess.run([sys.executable, "-c", code], **run)
    made = list((tmp_path / "data").rglob("*"))
    assert made
    assert {path.stat().st_mode & 0o077 for path in made} == {0}
