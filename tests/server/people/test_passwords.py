"""Passwords: a hash is always computed, long ones are never hashed, and what everybody guesses is refused."""
import asyncio

import pytest
from argon2 import PasswordHasher
from lobby import CHEAP

from hamdam.server.errors import ApiError
from hamdam.server.people.passwords import LONGEST, Passwords


class CountingHasher(PasswordHasher):
    """Counts what is computed."""

    def __init__(self) -> None:
        super().__init__(time_cost=1, memory_cost=8, parallelism=1)
        self.verified: list[str] = []

    def verify(self, hash: str | bytes, password: str | bytes) -> bool:
        self.verified.append(str(hash))
        return super().verify(hash, password)


def test_a_right_password_is_right_and_a_wrong_one_is_wrong() -> None:
    async def scene() -> None:
        passwords = Passwords(CHEAP)
        hashed = await passwords.hash("a good long passphrase")
        assert hashed.startswith("$argon2id$")
        assert await passwords.verify("a good long passphrase", hashed)
        assert not await passwords.verify("A good long passphrase", hashed)
        assert not await passwords.verify("", hashed)

    asyncio.run(scene())


def test_an_unknown_name_costs_one_hash_too_and_is_never_right() -> None:
    async def scene() -> None:
        hasher = CountingHasher()
        passwords = Passwords(hasher)
        known = await passwords.hash("a good long passphrase")
        assert not await passwords.verify("wrong", known)
        assert not await passwords.verify("wrong", None)
        assert not await passwords.verify("nobody's password", None)
        assert len(hasher.verified) == 3
        assert len({one.rsplit("$", 2)[0] for one in hasher.verified}) == 1, "the dummy costs another amount of work"
        assert len({len(one) for one in hasher.verified}) == 1, "so does a shorter salt or hash"

    asyncio.run(scene())


def test_a_password_of_a_megabyte_is_not_hashed() -> None:
    async def scene() -> None:
        hasher = CountingHasher()
        passwords = Passwords(hasher)
        assert not await passwords.verify("x" * (1 << 20), None)
        assert hasher.verified == []
        with pytest.raises(ApiError, match=f"at most {LONGEST}"):
            await passwords.hash("xyzab" * LONGEST)

    asyncio.run(scene())


def test_a_broken_hash_is_wrong_and_no_fault() -> None:
    assert not asyncio.run(Passwords(CHEAP).verify("x", "$argon2id$nothing"))


@pytest.mark.parametrize(
    "password",
    ["", "short", "password", "Password123!", "QWERTYUIOP", "12345678", "aaaaaaaaaaaa", "abababab", "hamdam2024"],
)
def test_what_is_guessed_first_is_refused(password: str) -> None:
    with pytest.raises(ApiError) as refused:
        Passwords(CHEAP).check(password)
    assert (refused.value.code, refused.value.param) == ("invalid_field", "password")


@pytest.mark.parametrize("password", ["correct horse battery", "رمز خیلی خوب من", "k7#mQ!zz"])
def test_a_good_password_is_taken(password: str) -> None:
    Passwords(CHEAP).check(password)
