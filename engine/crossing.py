"""Crossing: the one place where the engine's thread and the event loop meet. It carries, and reads nothing.

Engine thread -> loop: `tell`, one `call_soon_threadsafe` a step for all streams together. While the loop has not taken
the last delivery the next one joins it, so a busy loop is woken once, not once a step.
Loop -> engine thread: `order`, a queue the engine empties between two steps (`orders`), and sleeps on when it is idle.
"""
import asyncio
import queue
import threading
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

Fact = TypeVar("Fact")
Order = TypeVar("Order")


class Crossing(Generic[Fact, Order]):
    def __init__(self, loop: asyncio.AbstractEventLoop, receive: Callable[[list[Fact]], None]) -> None:
        """`receive` runs on `loop` with all facts told since it last ran, in order."""
        self._loop, self._receive = loop, receive
        self._told: list[Fact] = []
        self._lock = threading.Lock()
        self._orders: queue.SimpleQueue[Order] = queue.SimpleQueue()

    def tell(self, facts: Iterable[Fact]) -> None:
        """From the engine's thread. A loop that is closed already (the process ends) hears nothing more."""
        with self._lock:
            wake = not self._told
            self._told.extend(facts)
            wake = wake and bool(self._told)
        if wake and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        with self._lock:
            told, self._told = self._told, []
        self._receive(told)

    def order(self, order: Order) -> None:
        """From the event loop (or any thread): never blocks."""
        self._orders.put(order)

    def orders(self, timeout: float | None) -> list[Order]:
        """From the engine's thread: everything ordered so far.

        Where there is nothing it sleeps until there is, `timeout` seconds at most.
        """
        taken: list[Order] = []
        try:
            taken.append(self._orders.get(timeout != 0, timeout))
            while True:
                taken.append(self._orders.get_nowait())
        except queue.Empty:
            return taken
