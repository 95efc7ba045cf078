"""Loading one item ahead, in a thread, while the solver works on the item before it."""

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sbm.engine.clock import clock

__all__ = ["Prefetched", "loading_thread", "prefetched"]

Item = TypeVar("Item")
NextBlock = TypeVar("NextBlock")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Prefetched(Generic[Item, NextBlock, Result]):
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
    coming: NextBlock
    result: Result
    load_seconds: float
    wait_seconds: float


class _Now(Executor):
    """Does what it is given at once, in the thread that gives it."""

    def submit(self, task: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Do it."""
        done: Future[Any] = Future()
        try:
            done.set_result(task(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


def loading_thread(threads: int) -> Executor:
    """Return what loads beside the solver: a thread, which does one task after the other.

    With one thread in all there is no beside: tasks are done at once. Their order and so their
    results are the same.
    """
    return ThreadPoolExecutor(1, "sbm-load") if threads > 1 else _Now()


def prefetched(
    items: Iterable[Item],
    prepare: Callable[[Item, int], NextBlock],
    load: Callable[[Item, int, NextBlock], Result],
    pool: Executor,
) -> Generator[Prefetched[Item, NextBlock, Result]]:
    """Load items in order, each while the one before it is in use.

    Parameters
    ----------
    items : iterable
        One more than was yielded is taken from it.
    prepare : callable
        ``prepare(item, slot)`` is called here, before the item in front of this one is yielded;
        what it returns is handed to `load`, so it can note a state that is about to change.
    load : callable
        ``load(item, slot, coming)`` with slot 0 or 1, alternating: what slot 0 holds may be
        overwritten once the item behind the next one is asked for, so two buffers are enough.
    pool : Executor
        Runs `load`; see `loading_thread`.

    Yields
    ------
    Prefetched[Item, NextBlock, Result]

    Raises
    ------
    Exception
        Whatever `load` raises, when its item's turn comes.
    """

    def timed(item: Item, slot: int, coming: NextBlock) -> tuple[Result, float]:
        begin = clock()
        return load(item, slot, coming), clock() - begin

    def start() -> tuple[Item, NextBlock, "Future[tuple[Result, float]]", float] | None:
        for k, item in source:
            coming = prepare(item, k % 2)
            begin = clock()
            future = pool.submit(timed, item, k % 2, coming)
            return item, coming, future, clock() - begin
        return None

    source = enumerate(items)
    upcoming = start()
    try:
        while upcoming is not None:
            item, coming, future, waited = upcoming
            begin = clock()
            result, seconds = future.result()
            waited += clock() - begin
            upcoming = start()
            yield Prefetched(item, coming, result, seconds, waited)
    finally:
        if upcoming is not None:
            wait([upcoming[2]])  # its buffer is about to be used for something else
