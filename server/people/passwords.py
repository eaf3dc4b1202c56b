"""Passwords: what may be one, and argon2id off the event loop. It knows no accounts, nor how often somebody tried."""
import asyncio
from base64 import b64encode
from secrets import token_bytes

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from argon2.low_level import ARGON2_VERSION

from ..errors import ApiError

SHORTEST, LONGEST = 8, 256  # characters; the cap comes before any hashing
AT_ONCE = 2  # hashes computed at the same time: each takes 64 MiB
# Guessed first by everyone who guesses. Compared without case and without digits and marks at the end.
WORDS = """
    password passwort passw0rd letmein welcome iloveyou qwerty qwertyui qwertyuiop asdfghjk asdfghjkl zxcvbnm
    zxcvbnm, 1q2w3e4r 1qaz2wsx q1w2e3r4 qazwsxed abcdefgh abcabcabc sunshine princess football baseball superman
    batman dragon monkey master shadow michael jennifer trustno1 starwars whatever computer internet changeme
    change-me secret administrator admin adminadmin root rootroot toor guest default testtest test hamdam
    hamdamhamdam access login loginlogin hello hellohello freedom charlie jordan killer pokemon samsung liverpool
    chelsea arsenal barcelona cheese cookie flower summer winter spring autumn august monday friday
"""
COMMON = frozenset(WORDS.split())


class Passwords:
    def __init__(self, hasher: PasswordHasher | None = None) -> None:
        self._hasher = hasher or PasswordHasher()  # argon2id, RFC 9106's second recommendation
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._dummy = _nobodys_hash(self._hasher)

    def check(self, password: str) -> None:
        """Raise ApiError(invalid_field) for what cannot become a password."""
        if len(password) < SHORTEST:
            raise _refused(f"must have at least {SHORTEST} characters")
        if len(password) > LONGEST:
            raise _refused(f"may have at most {LONGEST} characters")
        plain = password.casefold()
        if plain in COMMON or plain.rstrip("0123456789!?.#$@*_-") in {*COMMON, ""} or len(set(plain)) < 4:
            raise _refused("is among those that are guessed first")

    async def hash(self, password: str) -> str:
        self.check(password)
        async with self._turn:
            return await asyncio.to_thread(self._hasher.hash, password)

    async def verify(self, password: str, hashed: str | None) -> bool:
        """Always computes one hash, against a dummy where there is none: the time must not tell who exists."""
        if len(password) > LONGEST:
            return False  # the same for every name
        async with self._turn:
            right = await asyncio.to_thread(self._matches, password, hashed or self._dummy)
        return right and hashed is not None

    def _matches(self, password: str, hashed: str) -> bool:
        try:
            return self._hasher.verify(hashed, password)
        except (VerificationError, InvalidHashError):
            return False


def _nobodys_hash(hasher: PasswordHasher) -> str:
    """What costs as much to compare with as any hash of this hasher, and was not computed from any password."""
    cost = f"m={hasher.memory_cost},t={hasher.time_cost},p={hasher.parallelism}"
    salt, digest = (b64encode(token_bytes(n)).decode().rstrip("=") for n in (hasher.salt_len, hasher.hash_len))
    return f"$argon2id$v={ARGON2_VERSION}${cost}${salt}${digest}"


def _refused(why: str) -> ApiError:
    return ApiError("invalid_field", f"A password {why}.", param="password")
