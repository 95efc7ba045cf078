"""Loading one item ahead, in a thread, while the solver works on the item before it."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Loaded", "prefetched"]

Item = TypeVar("Item")
Coming = TypeVar("Coming")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Loaded(Generic[Item, Coming, Result]):
    """Something loaded, and what it cost.

    Attributes
    ----------
    item : the thing asked for
    coming : what `prepare` returned
    result : what `load` returned
    load_seconds : float
        Time the loading took.
    wait_seconds : float
        Time the consumer had to wait for it.
    """

    item: Item
    coming: Coming
    result: Result
    load_seconds: float
    wait_seconds: float


def prefetched(
    items: Sequence[Item],
    prepare: Callable[[Item, int], Coming],
    load: Callable[[Item, int, Coming], Result],
    *,
    ahead: bool = True,
) -> Iterator[Loaded[Item, Coming, Result]]:
    """Load items in order, each while the one before it is in use.

    Parameters
    ----------
    items : sequence
    prepare : callable
        ``prepare(item, slot)`` is called here, before the item in front of this one is yielded;
        what it returns is handed to `load`, so it can note a state that is about to change.
    load : callable
        ``load(item, slot, coming)`` with slot 0 or 1, alternating: what slot 0 holds may be
        overwritten once the item behind the next one is asked for, so two buffers are enough.
    ahead : bool
        False: load in this thread, when the item's turn comes. Results are the same.

    Raises
    ------
    Exception
        Whatever `load` raises, when its item's turn comes.
    """

    def timed(item: Item, slot: int, coming: Coming) -> tuple[Result, float]:
        begin = time.perf_counter()
        return load(item, slot, coming), time.perf_counter() - begin

    with ThreadPoolExecutor(1, "sbm-load") as pool:

        def start(k: int) -> tuple[Coming, Callable[[], tuple[Result, float]]]:
            item, slot = items[k], k % 2
            coming = prepare(item, slot)
            if ahead:
                return coming, pool.submit(timed, item, slot, coming).result
            return coming, lambda: timed(item, slot, coming)

        upcoming = start(0) if items else None
        for k, item in enumerate(items):
            assert upcoming is not None
            coming, finish = upcoming
            begin = time.perf_counter()
            result, seconds = finish()
            waited = time.perf_counter() - begin
            if k + 1 < len(items):
                upcoming = start(k + 1)
            yield Loaded(item, coming, result, seconds, waited)
