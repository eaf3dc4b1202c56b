"""Secrets: made once, for their owner alone, never guessed and never a default."""
from pathlib import Path

import pytest

from hamdam.server.storage.errors import StorageError
from hamdam.server.storage.secrets import Secrets


def test_g10_a_secret_is_made_once_and_used_again_after_a_restart(tmp_path: Path) -> None:
    first = Secrets(tmp_path / "secrets").cache_root
    assert len(first) == 32
    assert Secrets(tmp_path / "secrets").cache_root == first
    assert Secrets(tmp_path / "others").cache_root != first


def test_g10_secrets_are_for_their_owner_alone(tmp_path: Path) -> None:
    Secrets(tmp_path / "secrets")
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700
    assert [(f.name, f.stat().st_mode & 0o777) for f in (tmp_path / "secrets").iterdir()] == [("cache_root", 0o600)]


@pytest.mark.parametrize("known", ["", "secret", "change-me", "ab" * 31, "00" * 32, "0123" * 16, "zz" * 32])
def test_g10_a_known_or_short_secret_stops_the_start(tmp_path: Path, known: str) -> None:
    Secrets(tmp_path)
    (tmp_path / "cache_root").write_text(known)
    with pytest.raises(StorageError, match="delete it to get a new"):
        Secrets(tmp_path)


def test_g10_a_secret_that_others_may_read_stops_the_start(tmp_path: Path) -> None:
    Secrets(tmp_path)
    (tmp_path / "cache_root").chmod(0o644)
    with pytest.raises(StorageError, match="may be read by others"):
        Secrets(tmp_path)


@pytest.mark.parametrize("taken", ["secrets", "secrets/cache_root"])
def test_g10_a_place_that_is_taken_by_something_else_is_said_in_one_line(tmp_path: Path, taken: str) -> None:
    (tmp_path / "secrets").mkdir(mode=0o700)
    if taken == "secrets":
        (tmp_path / taken).rmdir()
        (tmp_path / taken).touch()
    else:
        (tmp_path / taken).mkdir(mode=0o700)
    with pytest.raises(StorageError, match=f"{taken} ") as refused:
        Secrets(tmp_path / "secrets")
    assert "\n" not in str(refused.value)
