"""Reading one item ahead in a thread."""

import threading
import time

import pytest

from sbm.jobs.machine import prefetch


def prefetched(items, load, threads=2):
    """Without anything to prepare."""
    with prefetch.loading_thread(threads) as pool:
        yield from prefetch.prefetched(
            items, lambda item, slot: None, lambda item, slot, coming: load(item, slot), pool
        )


LONG = 10  # seconds; nothing waits so long unless it hangs


def _threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("sbm-load")]


@pytest.mark.parametrize("n", [0, 1, 2, 3, 10])
def test_items_come_in_order_with_what_was_loaded(n):
    items = [f"item {k}" for k in range(n)]
    loaded = list(prefetched(items, lambda item, slot: (item.upper(), slot)))
    assert [one.item for one in loaded] == items
    assert [one.result for one in loaded] == [(item.upper(), k % 2) for k, item in enumerate(items)]
    assert _threads() == []


def test_an_empty_list_starts_nothing():
    assert list(prefetched([], lambda item, slot: pytest.fail("there is nothing to load"))) == []
    assert _threads() == []


def test_the_next_item_is_loaded_while_one_is_in_use():
    done = [threading.Event() for _ in range(4)]

    def load(k: int, slot: int) -> None:
        done[k].set()

    for one in prefetched(range(4), load):
        if one.item + 1 < 4:  # the consumer has not asked for it yet
            assert done[one.item + 1].wait(LONG)


def test_a_buffer_is_never_written_while_it_is_in_use():
    n = 12
    buffers = [-1, -1]
    started = [threading.Event() for _ in range(n)]
    finished = [threading.Event() for _ in range(n)]

    def load(k: int, slot: int) -> int:
        started[k].set()
        buffers[slot] = k
        finished[k].set()
        return slot

    for one in prefetched(range(n), load):
        if one.item + 1 < n:
            assert finished[one.item + 1].wait(LONG)
        assert buffers[one.result] == one.item
        if one.item + 2 < n:  # its place is the one in use
            assert not started[one.item + 2].wait(0.005)
        assert buffers[one.result] == one.item


def test_loading_happens_in_another_thread_one_at_a_time():
    names, active, most = set(), 0, 0

    def load(k: int, slot: int) -> None:
        nonlocal active, most
        active += 1
        most = max(most, active)
        names.add(threading.current_thread().name)
        time.sleep(0.001)
        active -= 1

    list(prefetched(range(6), load))
    assert most == 1
    assert len(names) == 1
    assert threading.current_thread().name not in names


def test_an_error_is_raised_when_its_item_is_due_and_not_before():
    def load(k: int, slot: int) -> int:
        if k == 2:
            raise ValueError("block 2 is damaged")
        return k

    reader = prefetched(range(5), load)
    assert [next(reader).result, next(reader).result] == [0, 1]
    with pytest.raises(ValueError, match=r"^block 2 is damaged$"):
        next(reader)
    assert _threads() == []


def test_nothing_is_loaded_behind_an_error():
    asked = []

    def load(k: int, slot: int) -> None:
        asked.append(k)
        if k == 1:
            raise KeyError(k)

    with pytest.raises(KeyError):
        list(prefetched(range(5), load))
    assert asked == [0, 1]


def test_leaving_early_ends_the_thread():
    asked = []
    for one in prefetched(range(100), lambda k, slot: asked.append(k)):
        if one.item == 3:
            break
    assert _threads() == []
    assert asked in ([0, 1, 2, 3], [0, 1, 2, 3, 4])


def test_an_error_of_the_consumer_ends_the_thread():
    def consume() -> float:
        return sum(1 / (3 - one.result) for one in prefetched(range(100), lambda k, slot: k))

    with pytest.raises(ZeroDivisionError):
        consume()
    assert _threads() == []


def test_loading_and_waiting_are_measured():
    done = [threading.Event() for _ in range(3)]

    def load(k: int, slot: int) -> None:
        time.sleep(0.05)
        done[k].set()

    loaded = []
    for one in prefetched(range(3), load):
        loaded.append(one)
        if one.item < 2:
            assert done[one.item + 1].wait(LONG)  # the next one is there when it is asked for
    assert all(one.load_seconds >= 0.05 for one in loaded)
    assert loaded[0].wait_seconds >= 0.04
    assert all(one.wait_seconds < 0.04 for one in loaded[1:])


def test_what_is_prepared_is_of_the_moment_before_the_item_in_front_is_used():
    state = 0

    def prepare(k: int, slot: int) -> int:
        return state

    def load(k: int, slot: int, coming: int) -> int:
        return coming

    seen = []
    with prefetch.loading_thread(2) as pool:
        for one in prefetch.prefetched(range(5), prepare, load, pool):
            seen.append((one.item, one.coming, one.result))
            state += 1
    assert seen == [(0, 0, 0), (1, 0, 0), (2, 1, 1), (3, 2, 2), (4, 3, 3)]


def test_with_one_thread_everything_happens_in_it_with_the_same_results():
    names = set()

    def load(k: int, slot: int) -> tuple[int, int]:
        names.add(threading.current_thread().name)
        return k, slot

    expected = [one.result for one in prefetched(range(5), lambda k, slot: (k, slot))]
    assert [one.result for one in prefetched(range(5), load, threads=1)] == expected
    assert names == {threading.current_thread().name}


def test_with_one_thread_an_error_comes_when_its_item_is_due():
    def load(k: int, slot: int) -> int:
        if k == 1:
            raise ValueError("block 1 is damaged")
        return k

    reader = prefetched(range(3), load, threads=1)
    assert next(reader).result == 0
    with pytest.raises(ValueError, match=r"^block 1 is damaged$"):
        next(reader)


def test_leaving_waits_for_what_is_being_loaded():
    done = threading.Event()

    def load(k: int, slot: int, coming: None) -> None:
        if k == 1:
            time.sleep(0.05)
            done.set()

    with prefetch.loading_thread(2) as pool:
        reader = prefetch.prefetched(range(9), lambda k, slot: None, load, pool)
        next(reader)
        reader.close()
        assert done.is_set()


def test_tasks_between_loads_are_done_in_their_order():
    log = []
    with prefetch.loading_thread(2) as pool:
        reader = prefetch.prefetched(
            range(4), lambda k, slot: None, lambda k, slot, coming: log.append(f"load {k}"), pool
        )
        for one in reader:
            pool.submit(log.append, f"keep {one.item}")
    assert log == ["load 0", "load 1", "keep 0", "load 2", "keep 1", "load 3", "keep 2", "keep 3"]
