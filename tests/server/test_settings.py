"""Settings: the command line before the environment before the file, and a bad value is one line that names it."""
import re
from pathlib import Path

import pytest

from hamdam.server.settings import OPTIONS, Limits, SettingsError, read_settings, size


def write(folder: Path, text: str) -> None:
    (folder / "hamdam.toml").write_text(text, encoding="utf-8")


def test_without_anything_said_it_is_the_loopback_and_the_default_model(tmp_path: Path) -> None:
    settings = read_settings({"data": str(tmp_path)}, {})
    assert (settings.host, settings.port, settings.model, settings.public_url) == ("127.0.0.1", 8000, None, None)
    assert (settings.data, settings.limits) == (tmp_path, Limits())


def test_the_command_line_wins_over_the_environment_over_the_file(tmp_path: Path) -> None:
    write(tmp_path, 'port = 1\nhost = "a"\ndevice = "cpu"\n')
    given = {"data": str(tmp_path), "port": "3", "host": None}
    settings = read_settings(given, {"HAMDAM_PORT": "2", "HAMDAM_HOST": "b"})
    assert (settings.port, settings.host, settings.device) == (3, "b", "cpu")


def test_every_option_is_read_from_all_three_places(tmp_path: Path) -> None:
    values = {
        "host": "0.0.0.0",
        "port": "81",
        "public_url": "https://chat.example.org",
        "model": "some.gguf",
        "device": "cpu",
        "dtype": "bfloat16",
        "quantize": "int4",
        "kv_dtype": "fp8",
        "kv_memory": "2GiB",
        "gpu_memory": "0.5",
        "invariant": "true",
        "max_context": "4096",
    }
    assert set(values) == set(OPTIONS)
    for name, value in values.items():
        here = tmp_path / name
        here.mkdir()
        from_line = read_settings({"data": str(here), name: value}, {})
        from_environment = read_settings({"data": str(here)}, {f"HAMDAM_{name.upper()}": value})
        write(here, f'{name} = "{value}"')
        from_file = read_settings({"data": str(here)}, {})
        assert from_line == from_environment == from_file
        assert getattr(from_line, name) != getattr(read_settings({"data": str(tmp_path)}, {}), name)


def test_data_and_config_are_found_by_the_environment_too(tmp_path: Path) -> None:
    write(tmp_path, "port = 5")
    settings = read_settings({}, {"HAMDAM_DATA": str(tmp_path / "d"), "HAMDAM_CONFIG": str(tmp_path / "hamdam.toml")})
    assert (settings.data, settings.port) == (tmp_path / "d", 5)


def test_an_empty_variable_is_one_that_is_not_set_and_an_empty_option_a_fault(tmp_path: Path) -> None:
    write(tmp_path, "port = 5")
    assert read_settings({"data": str(tmp_path)}, {"HAMDAM_PORT": "", "HAMDAM_CONFIG": ""}).port == 5
    assert read_settings({}, {"HAMDAM_DATA": ""}).data == read_settings({}, {}).data
    with pytest.raises(SettingsError, match="--port is empty"):
        read_settings({"data": str(tmp_path), "port": ""}, {})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        *(("1", 1), ("7B", 7), ("512MB", 512_000_000), ("512 mb", 512_000_000), ("1TB", 10**12)),
        *(("2kib", 2048), ("1GiB", 1 << 30), ("1.5GiB", 3 << 29)),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, found: int) -> None:
    assert size(text) == found


@pytest.mark.parametrize("text", ["", "0", "-1", "1XB", "GiB", "1e9", "nan", "1,5GB", "١GB", "0.0001KB", "1G", "1GiBx"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a size"):
        size(text)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", "x"),
        ("port", "-1"),
        ("port", "65536"),
        ("port", "80.0"),
        ("port", " "),
        ("port", "٨٠"),
        ("device", "gpu"),
        ("dtype", "float16"),
        ("dtype", "int4"),
        ("kv_memory", "lots"),
        *(("gpu_memory", value) for value in (" ", "0", "0.01", "1.1", "92%", "nan", "-0.5", ".")),
        ("invariant", "perhaps"),
        ("max_context", "0"),
        ("max_context", "9" * 30),
        ("public_url", "chat.example.org"),
        ("public_url", "ftp://chat.example.org"),
        ("public_url", "https://chat.example.org/path"),
        ("public_url", "https://user@chat.example.org"),
        ("public_url", "https://chat.example.org:99999"),
        ("public_url", "https://[::1"),
        ("model", " "),
        ("host", "a\0b"),
    ],
)
def test_a_bad_value_is_one_line_that_names_where_it_stands(tmp_path: Path, name: str, value: str) -> None:
    variable, option = f"HAMDAM_{name.upper()}", f"--{name.replace('_', '-')}"
    for given, environ, where in (({name: value}, {}, option), ({}, {variable: value}, variable)):
        with pytest.raises(SettingsError) as refused:
            read_settings({"data": str(tmp_path), **given}, environ)
        assert str(refused.value).startswith(where)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("prot = 1", "no option 'prot'"),
        ("port = ", "hamdam.toml"),
        ("port = true", "hamdam.toml: port"),
        ("port = [1]", "hamdam.toml: port"),
        ("limits = 3", "must be a table"),
        ("[limits]\nsockets = 3", "no limit 'sockets'"),
        ("[limits]\nsockets_per_user = 0", "limits.sockets_per_user"),
        ("[limits]\nsockets_per_user = true", "limits.sockets_per_user"),
        ("[limits]\nsockets_per_user = 1.5", "limits.sockets_per_user"),
        ('[limits]\nframe_bytes = "1MiB"', "limits.frame_bytes"),
        ("[limits]\nframe_bytes = 99999999999999999999", "limits.frame_bytes"),
        ("[limits]\nreplay_s = nan", "limits.replay_s"),
        ("[limits]\nreplay_s = inf", "limits.replay_s"),
        ("port = " + "[" * 10_000, "hamdam.toml"),
    ],
)
def test_a_file_with_a_fault_is_refused_in_one_line(tmp_path: Path, text: str, why: str) -> None:
    write(tmp_path, text)
    with pytest.raises(SettingsError, match=why) as refused:
        read_settings({"data": str(tmp_path)}, {})
    assert "\n" not in str(refused.value)


def test_limits_are_set_in_the_file(tmp_path: Path) -> None:
    write(tmp_path, "[limits]\nsockets_per_user = 3\nreplay_s = 5")
    limits = read_settings({"data": str(tmp_path)}, {}).limits
    assert (limits.sockets_per_user, limits.replay_s, limits.frame_bytes) == (3, 5, Limits().frame_bytes)


def test_a_home_that_is_not_there_is_refused_in_one_line() -> None:
    with pytest.raises(SettingsError, match="--data must be a path below a home that there is"):
        read_settings({"data": "~nobody-of-this-name/data"}, {})


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="is not there"):
        read_settings({"data": str(tmp_path), "config": str(tmp_path / "other.toml")}, {})
    other = tmp_path / "other.toml"
    for text in (b"\xff", b"prot = 1", b"port = true", b"limits = 3", b"[limits]\nsockets = 3", b"limits.replay_s = 0"):
        other.write_bytes(text)
        with pytest.raises(SettingsError, match=f"^{re.escape(str(other))}: "):
            read_settings({"data": str(tmp_path), "config": str(other)}, {})
