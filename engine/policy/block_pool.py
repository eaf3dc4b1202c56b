"""BlockPool: who holds which KV block, and which prefix a block can be found by. Numbers only; it knows no sequence.

    EMPTY --allocate--> HELD --release--> CACHED (count 0, published, oldest first) --allocate--> HELD
                         |  \\--release--> EMPTY (count 0, unpublished)
                         +--pin: the holder is an idle session--> PINNED (soft: can be reclaimed)
"""
from collections import Counter, OrderedDict
from collections.abc import Iterable
from collections.abc import Sequence as Ordered
from dataclasses import replace
from itertools import chain

from .chain import Link, same
from .integrity import check


class BlockPool:
    """One mechanism: a block's count is the number of its holders. A pin is a hold by an idle session.

    A block is written only by its single holder and only while it is unpublished. `_counts`, `_pins` and `_links` are
    by block; a block with count 0 is in `_empty` (no link) or in `_cached` (has one), all others are in neither.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_pinned = 0  # blocks all of whose holders are idle sessions
        self._counts = [0] * num_blocks
        self._pins = [0] * num_blocks
        self._links: list[Link | None] = [None] * num_blocks
        self._index: dict[bytes, int] = {}
        self._empty = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()

    # --- counts ---

    @property
    def num_empty(self) -> int:
        return len(self._empty)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_allocatable(self) -> int:
        """Blocks that nobody holds."""
        return len(self._empty) + len(self._cached)

    @property
    def num_available(self) -> int:
        """Blocks that could be had without taking from a running sequence."""
        return self.num_allocatable + self.num_pinned

    @property
    def num_running(self) -> int:
        return self.num_blocks - self.num_available

    # --- holding ---

    def allocate(self, count: int) -> list[int]:
        """Empty blocks first, then the longest unused of the cached, which leaves the index."""
        assert count <= self.num_allocatable
        blocks = []
        for _ in range(count):
            if self._empty:
                block = self._empty.pop()
            else:
                block, _none = self._cached.popitem(last=False)
                self._unlink(block)
            self._counts[block] = 1
            blocks.append(block)
        return blocks

    def acquire(self, blocks: Iterable[int]) -> None:
        """One more holder of each."""
        for block in blocks:
            if self._counts[block] == 0:
                del self._cached[block]
            self._change(block, holders=1, pins=0)

    def release(self, blocks: Ordered[int]) -> None:
        """One holder less, from the tail, so that a chain's tail is evicted before its head."""
        for block in reversed(blocks):
            self._change(block, holders=-1, pins=0)
            if self._counts[block] == 0:
                self._lay_down(block)

    def pin(self, blocks: Iterable[int]) -> None:
        """The hold goes from a sequence to its session."""
        for block in blocks:
            self._change(block, holders=0, pins=1)

    def unpin(self, blocks: Iterable[int]) -> None:
        """The hold goes back to a sequence."""
        for block in blocks:
            self._change(block, holders=0, pins=-1)

    def is_writable(self, block: int) -> bool:
        """Whether its one holder may write to it: nobody shares it, nobody can find it."""
        return self._counts[block] == 1 and self._links[block] is None

    # --- the prefix index ---

    def publish(self, block: int, links: list[Link], number: int) -> None:
        """Block `number` of a chain is full and computed. The first one published for a key stays."""
        if number and links[number].parent is not links[number - 1]:
            links[number] = replace(links[number], parent=links[number - 1])
        link = links[number]
        known = self._index.get(link.key)
        if known is None:
            self._index[link.key] = block
            self._links[block] = link
        elif (published := self._links[known]) is not None and same(published, link):
            links[number] = published

    def match(self, links: list[Link], first: int = 0) -> list[int]:
        """The published blocks of `links` from number `first` on, up to the first that is missing.

        A key alone is not believed: the ids and all that stands before them are compared. Links found take the place
        of the caller's own, so that one prefix is one chain of objects and that comparison is one `is`.
        """
        found: list[int] = []
        for number in range(first, len(links)):
            block = self._index.get(links[number].key)
            link = self._links[block] if block is not None else None
            if block is None or link is None or link.ids != links[number].ids or link.root != links[number].root:
                break
            if not same(link.parent, links[number - 1] if number else None):
                break
            links[number] = link
            found.append(block)
        return found

    def is_published(self, key: bytes) -> bool:
        return key in self._index

    def forget(self, keys: Iterable[bytes]) -> None:
        """What nobody holds of these is gone at once: a deleted conversation leaves nothing behind."""
        for key in keys:
            block = self._index.get(key)
            if block is not None and self._counts[block] == 0:
                del self._cached[block]
                self._unlink(block)
                self._empty.append(block)

    def withdraw(self, blocks: Iterable[int]) -> None:
        """Held blocks whose contents are in doubt: who has them keeps them, nobody finds them any more."""
        for block in blocks:
            if self._links[block] is not None:
                self._unlink(block)

    # --- does it add up? ---

    def check_integrity(self, running: Iterable[list[int]], idle: Iterable[list[int]]) -> None:
        """`running` and `idle` are the blocks that each sequence and each session holds; raises IntegrityError."""
        pins = Counter(chain.from_iterable(idle))
        counts = pins + Counter(chain.from_iterable(running))
        empty = set(self._empty)
        check(len(empty) == len(self._empty), "a block is empty twice")
        for block in range(self.num_blocks):
            name = f"block {block}"
            count, link = self._counts[block], self._links[block]
            check(count == counts[block], f"{name}: {counts[block]} holders, counted {count}")
            check(self._pins[block] == pins[block], f"{name}: {pins[block]} pins, counted {self._pins[block]}")
            check(link is None or self._index.get(link.key) == block, f"{name}: published, but not in the index")
            check((block in empty) == (count == 0 and link is None), f"{name}: empty or not?")
            check((block in self._cached) == (count == 0 and link is not None), f"{name}: cached or not?")
        published = sum(link is not None for link in self._links)
        check(len(self._index) == published, f"{published} blocks are published, {len(self._index)} in the index")
        pinned = sum(1 for block in pins if pins[block] == counts[block])
        check(self.num_pinned == pinned, f"{pinned} blocks are pinned, counted {self.num_pinned}")

    # --- inside ---

    def _change(self, block: int, *, holders: int, pins: int) -> None:
        before = self._counts[block] == self._pins[block] > 0
        self._counts[block] += holders
        self._pins[block] += pins
        assert 0 <= self._pins[block] <= self._counts[block]
        self.num_pinned += (self._counts[block] == self._pins[block] > 0) - before

    def _lay_down(self, block: int) -> None:
        if self._links[block] is None:
            self._empty.append(block)
        else:
            self._cached[block] = None

    def _unlink(self, block: int) -> None:
        link = self._links[block]
        assert link is not None
        del self._index[link.key]
        self._links[block] = None
