"""Opaque secrets: 256 random bits for whoever holds them, a hash for us. Not for passwords, which can be guessed."""
import hashlib
import secrets


def new_secret() -> str:
    return secrets.token_urlsafe(32)


def hash_secret(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
