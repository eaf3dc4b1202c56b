"""Progress: how far a bench is, on standard error, in one line that is written over. Not its results."""
import sys
import time

SHOWN_EVERY_S = 0.2


class Progress:
    """Called with (done, total, label), total None where nobody knows. Where nobody looks it says each label once."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._begun, self._shown, self._label = time.monotonic(), 0.0, ""

    def __call__(self, done: int, total: int | None, label: str) -> None:
        new, now = label != self._label, time.monotonic()
        self._label = label
        if not self._terminal:
            if new and done != total:
                print(f"measuring {label}", file=sys.stderr, flush=True)
        elif new or now - self._shown >= SHOWN_EVERY_S:
            self._shown = now
            share = f"{done / max(total, 1):4.0%}" if total is not None else f"{done:4}"
            line = f"{share}  {now - self._begun:4.0f} s  {label}"
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Before anything else is printed."""
        if self._terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
