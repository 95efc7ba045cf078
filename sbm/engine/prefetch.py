"""Load items ahead in threads while previous ones are in use."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from typing import Any, Generic, TypeVar

from sbm.compiled.clock import clock
from sbm.plain import dataclass

__all__ = ["Prefetched", "in_threads", "loading_thread", "prefetched"]

Item = TypeVar("Item")
NextBlock = TypeVar("NextBlock")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Prefetched(Generic[Item, NextBlock, Result]):
    """A loaded item and its timing.

    Attributes
    ----------
    item : Item
        The requested item.
    coming : NextBlock
        Result of `prepare`.
    result : Result
        Result of `load`.
    load_seconds : float
        Time to load the item.
    wait_seconds : float
        Time the consumer waited for it.
    """

    item: Item
    coming: NextBlock
    result: Result
    load_seconds: float
    wait_seconds: float


class _Now(Executor):
    """Executor that runs each task immediately in the calling thread."""

    def submit(self, task: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Run the task and return a finished future."""
        done: Future[Any] = Future()
        try:
            done.set_result(task(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


def loading_thread(threads: int) -> Executor:
    """Return the executor for loading: one thread, which runs tasks in order.

    With a single thread in total, tasks run inline. Their order and results are the same.
    """
    return ThreadPoolExecutor(1, "sbm-load") if threads > 1 else _Now()


def prefetched(
    items: Iterable[Item],
    prepare: Callable[[Item, int], NextBlock],
    load: Callable[[Item, int, NextBlock], Result],
    pool: Executor,
) -> Generator[Prefetched[Item, NextBlock, Result]]:
    """Load items in order, each while the previous one is in use.

    Parameters
    ----------
    items : iterable
        Consumed one item ahead of those yielded.
    prepare : callable
        ``prepare(item, slot)`` is called in the consumer's thread before the previous item is
        yielded; its result is passed to `load`. It can save state that is about to change.
    load : callable
        ``load(item, slot, coming)``, with slot 0 and 1 alternating. A slot is overwritten when the
        item after the next one is requested, so two buffers are enough.
    pool : Executor
        Runs `load`; see `loading_thread`.

    Yields
    ------
    Prefetched[Item, NextBlock, Result]

    Raises
    ------
    Exception
        Any exception of `load`, when its item is requested.
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
            wait([upcoming[2]])  # its buffer may be reused after this


def in_threads(
    pool: Executor, task: Callable[[Item], Result], items: Iterable[Item], ahead: int
) -> Generator[Result]:
    """Yield the results of a task for items in order, with `ahead` of them in flight.

    Raises
    ------
    Exception
        Any exception of the task, when its result is requested.
    """
    flight: deque[Future[Result]] = deque()
    try:
        for item in items:
            flight.append(pool.submit(task, item))
            while len(flight) > ahead:
                yield flight.popleft().result()
        while flight:
            yield flight.popleft().result()
    finally:
        for future in flight:
            future.cancel()
