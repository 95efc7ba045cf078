"""Reading one block ahead, in a thread, while the solver works on the block before it."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Loaded", "prefetched"]

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Loaded(Generic[Item, Result]):
    """Something loaded, and what it cost.

    Attributes
    ----------
    item : the thing asked for
    result : what `load` returned
    load_seconds : float
        Time the thread took.
    wait_seconds : float
        Time the consumer had to wait for it.
    """

    item: Item
    result: Result
    load_seconds: float
    wait_seconds: float


def prefetched(
    items: Sequence[Item], load: Callable[[Item, int], Result]
) -> Iterator[Loaded[Item, Result]]:
    """Load items in order, each while the one before it is in use.

    Parameters
    ----------
    items : sequence
    load : callable
        ``load(item, slot)`` with slot 0 or 1, alternating: what slot 0 holds may be overwritten
        once the item behind the next one is asked for, so two buffers are enough.

    Raises
    ------
    Exception
        Whatever `load` raises, when its item's turn comes.
    """

    def timed(item: Item, slot: int) -> tuple[Result, float]:
        begin = time.perf_counter()
        return load(item, slot), time.perf_counter() - begin

    with ThreadPoolExecutor(1, "sbm-load") as pool:
        coming = pool.submit(timed, items[0], 0) if items else None
        for k, item in enumerate(items):
            assert coming is not None
            begin = time.perf_counter()
            result, seconds = coming.result()
            waited = time.perf_counter() - begin
            if k + 1 < len(items):
                coming = pool.submit(timed, items[k + 1], (k + 1) % 2)
            yield Loaded(item, result, seconds, waited)
