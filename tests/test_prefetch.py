"""Reading one item ahead in a thread."""

import threading
import time

import pytest
from inside import engine_prefetch_module as prefetch

LONG = 10  # seconds; nothing waits that long unless it hangs
THREADS = pytest.mark.parametrize("threads", [1, 2])


def prefetched(items, load, threads=2):
    """Load without anything to prepare."""
    with prefetch.loading_thread(threads) as pool:
        yield from prefetch.prefetched(
            items, lambda item, slot: None, lambda item, slot, coming: load(item, slot), pool
        )


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert [t for t in threading.enumerate() if t.name.startswith("sbm-load")] == []


@THREADS
@pytest.mark.parametrize("n", [0, 1, 2, 3, 10])
def test_items_come_in_order(n, threads):
    names = set()

    def load(k, slot):
        names.add(threading.current_thread().name)
        return k * k, slot

    loaded = list(prefetched(range(n), load, threads))
    assert [one.item for one in loaded] == list(range(n))
    assert [one.result for one in loaded] == [(k * k, k % 2) for k in range(n)]
    assert len(names) == min(n, 1)
    assert (names <= {threading.current_thread().name}) == (threads == 1 or n == 0)


def test_buffer_in_use_is_not_overwritten():
    n = 8
    buffers = [-1, -1]
    started = [threading.Event() for _ in range(n)]
    finished = [threading.Event() for _ in range(n)]

    def load(k, slot):
        started[k].set()
        buffers[slot] = k
        finished[k].set()
        return slot

    for one in prefetched(range(n), load):
        if one.item + 1 < n:  # the next one is loaded before it is requested
            assert finished[one.item + 1].wait(LONG)
        if one.item + 2 < n:  # its place is the one in use
            assert not started[one.item + 2].wait(0.005)
        assert buffers[one.result] == one.item


@THREADS
def test_error_is_raised_when_its_item_is_due(threads):
    asked = []

    def load(k, slot):
        asked.append(k)
        if k == 2:
            raise ValueError("block 2 is damaged")
        return k

    reader = prefetched(range(5), load, threads)
    assert [next(reader).result, next(reader).result] == [0, 1]
    with pytest.raises(ValueError, match="block 2 is damaged"):
        next(reader)
    assert asked == [0, 1, 2]


def test_leaving_early_waits_for_the_load():
    done = threading.Event()

    def load(k, slot, coming):
        if k == 1:
            time.sleep(0.05)
            done.set()

    with prefetch.loading_thread(2) as pool:
        reader = prefetch.prefetched(range(9), lambda k, slot: None, load, pool)
        next(reader)
        reader.close()
        assert done.is_set()


@THREADS
def test_loading_and_waiting_are_measured(threads):
    done = [threading.Event() for _ in range(3)]

    def load(k, slot):
        time.sleep(0.05)
        done[k].set()

    loaded = []
    for one in prefetched(range(3), load, threads):
        loaded.append(one)
        if one.item < 2 and threads > 1:
            assert done[one.item + 1].wait(LONG)  # the next one is there when it is asked for
    assert all(0.05 <= one.load_seconds < LONG for one in loaded)
    assert loaded[0].wait_seconds >= 0.04
    assert all((one.wait_seconds < 0.04) == (threads > 1) for one in loaded[1:])


@THREADS
def test_prepare_and_tasks_keep_their_order(threads):
    log, state = [], 0
    with prefetch.loading_thread(threads) as pool:
        reader = prefetch.prefetched(
            range(4), lambda k, slot: state, lambda k, slot, coming: log.append(f"load {k}"), pool
        )
        seen = []
        for one in reader:
            seen.append(one.coming)
            state += 1
            pool.submit(log.append, f"keep {one.item}")
    assert seen == [0, 0, 1, 2]  # of the moment before the item in front is used
    assert log == ["load 0", "load 1", "keep 0", "load 2", "keep 1", "load 3", "keep 2", "keep 3"]
