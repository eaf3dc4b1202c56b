"""settled: how much of a growing text may be told before it is known whether a tag begins at its end. No state."""


def settled(text: str, tag: str) -> int:
    """Characters before the longest tail that begins `tag`, and before the white space that stands there."""
    most = min(len(tag) - 1, len(text))
    begun = next((count for count in range(most, 0, -1) if text.endswith(tag[:count])), 0)
    return len(text[: len(text) - begun].rstrip())
