"""Tables: rows pulled by their numbers, written while others read, and pushed to their owners."""

import asyncio
import contextlib
import threading

import numpy as np
import pytest
import sealane
from daemons import PS, WORKER
from test_calls import until


def whole(rows=1000, dim=16, dtype=np.float32):
    return np.arange(rows * dim, dtype=dtype).reshape(rows, dim)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.int32, np.uint32, np.int16, np.uint16, np.uint8])
def test_rows_are_what_numpy_takes(ps, worker, key, dtype):
    array = whole()
    ps.publish_table(key, array)
    table = sealane.ShardedTable(key, PS)
    for ids in ([3, 0, 99, 3], [[1, 2], [2, 1]], []):
        ids = np.array(ids, dtype=dtype)
        rows = worker.pull_rows(table, ids)
        assert rows.dtype == np.float32 and rows.shape == ids.shape + (16,)
        np.testing.assert_array_equal(rows, array[ids])
    np.testing.assert_array_equal(worker.pull_rows(table, [7, 999]), array[[7, 999]])
    np.testing.assert_array_equal(worker.pull_rows(table, 5), array[5])
    # Every other one, of memory with gaps.
    np.testing.assert_array_equal(worker.pull_rows(table, np.arange(100, dtype=dtype)[::2]), array[:100:2])


def test_rows_come_into_the_callers_array(ps, worker, key):
    array = whole()
    ps.publish_table(key, array)
    table = sealane.ShardedTable(key, PS)
    ids = np.arange(5000).reshape(50, 100) % 1000
    for out in (np.empty((50, 100, 16), np.float32), worker.empty((50, 100, 16))):
        assert worker.pull_rows(table, ids, out=out) is out
        np.testing.assert_array_equal(out, array[ids])
        pulling = worker.pull_rows_async(table, ids[::-1], out=out)
        assert pulling.result() is out
        np.testing.assert_array_equal(out, array[ids[::-1]])
    for wrong in (np.empty((50, 100, 15), np.float32), whole().T):
        with pytest.raises(sealane.InvalidArgument):
            worker.pull_rows(table, ids, out=wrong)


@pytest.mark.parametrize("shape, dtype", [((3, 16), np.int32), ((3, 4, 4), np.float32), ((48,), np.float32)])
def test_rows_of_another_type_or_shape_do_not_overwrite_out(ps, worker, key, shape, dtype):
    ps.publish_table(key, whole())
    out = np.full(shape, 7, dtype)
    with pytest.raises(sealane.InvalidArgument):
        worker.pull_rows(sealane.ShardedTable(key, PS), [1, 2, 3], out=out)
    assert (out == 7).all()


def test_many_tables_are_pulled_at_once(ps, worker, key):
    arrays = [whole(rows) + rows for rows in range(50, 76)]
    for number, array in enumerate(arrays):
        ps.publish_table(f"{key}/{number}", array)
    ids = np.random.default_rng(1).integers(0, 50, 2048)

    tables = [sealane.ShardedTable(f"{key}/{number}", PS) for number in range(26)]
    each = [ids[number:] for number in range(26)]

    async def pull():
        apart = await asyncio.gather(*(worker.pull_rows_async(table, ids) for table, ids in zip(tables, each)))
        return apart, await worker.pull_all_rows_async(tables, each)

    out = [np.empty((len(ids), 16), np.float32) for ids in each]
    given = worker.pull_all_rows(tables, each, out=out)
    assert all(one is other for one, other in zip(given, out, strict=True))
    for pulled in (*asyncio.run(pull()), given, worker.pull_all_rows(tables, each)):
        for array, ids, rows in zip(arrays, each, pulled, strict=True):
            np.testing.assert_array_equal(rows, array[ids])
    for rows, missing in worker.pull_all_rows(tables[:2], each[:2], partial=True):
        assert rows.shape[1] == 16 and missing == []
    assert worker.pull_all_rows([], []) == []
    for wrong in ({"ids": each[1:]}, {"ids": each, "out": out[1:]}):
        with pytest.raises(sealane.InvalidArgument, match="25 elements, for 26 tables"):
            worker.pull_all_rows(tables, **wrong)
    with pytest.raises(sealane.InvalidArgument, match="row 50 .* 50 rows"):
        worker.pull_all_rows(tables, [[50]] * 26)


def test_what_cannot_be_pulled_says_why(ps, worker, key):
    ps.publish_table(key, whole())
    table = sealane.ShardedTable(key, PS)
    for ids, why in [([1000], "row 1000 of .* 1000 rows"), ([-1], "no row -1"), ([0.5], "integers"), (["a"], "integers")]:
        with pytest.raises(sealane.InvalidArgument, match=why):
            worker.pull_rows(table, ids)
    with pytest.raises(sealane.DeadlineExceeded):
        worker.pull_rows(sealane.ShardedTable(key + "/none", PS), [1], timeout=0.01)
    for owners, arguments in [([PS, WORKER], {}), ([], {"rows": 5}), (PS, {"rows": 5, "sharding": "magic"})]:
        with pytest.raises(sealane.InvalidArgument):
            sealane.ShardedTable(key, owners, **arguments)
    with pytest.raises(sealane.InvalidArgument):
        ps.publish_table(key, np.float32(1))


@pytest.mark.parametrize("sharding", ["range", "modulo", "hash"])
def test_a_table_in_parts_is_one(ps, worker, key, sharding):
    array = whole(1001)
    table = sealane.ShardedTable(key, [PS, WORKER], rows=1001, sharding=sharding)
    assert table.owners == (PS, WORKER) and table.key == key
    parts = [table.rows_of(owner) for owner in range(2)]
    assert sorted(np.concatenate(parts)) == list(range(1001))
    ps.publish_table(key, array[parts[0]])
    ids = np.random.default_rng(2).integers(0, 1001, 3000)

    def pull(timeout):
        # Where no row ever came, the call fails.
        with contextlib.suppress(sealane.DeadlineExceeded):
            return worker.pull_rows(table, ids, partial=True, timeout=timeout)

    rows, missing = until(pull, lambda pulled: pulled and all(owner == WORKER for owner, _, _ in pulled[1]))
    (owner, places, error) = missing[0]
    assert owner == WORKER and isinstance(error, sealane.DeadlineExceeded)
    there = np.ones(3000, bool)
    for _, places, _ in missing:
        there[places] = False
    np.testing.assert_array_equal(rows[there], array[ids[there]])
    assert set(ids[there]) <= set(parts[0])
    # Where no row comes now, rows are what they were.
    rows, missing = worker.pull_rows(table, parts[1][:2], partial=True, timeout=0.1)
    assert (rows.shape, rows.dtype) == ((2, *array.shape[1:]), array.dtype)
    assert sorted(place for _, places, _ in missing for place in places) == [0, 1]
    worker.publish_table(key, array[parts[1]])
    np.testing.assert_array_equal(worker.pull_rows(table, ids), array[ids])
    assert worker.pull_rows(table, ids, partial=True)[1] == []


@pytest.mark.parametrize("torn", [False, True])
def test_what_is_written_is_seen(ps, worker, key, torn):
    array = ps.empty((1000, 16))
    array[:] = whole()
    expected = array.copy()
    table = ps.publish_table(key, array, torn=torn)
    assert (table.key, table.rows, table.version) == (key, 1000, 0)
    users = sealane.ShardedTable(key, PS)
    table.update([5, 6], np.full((2, 16), -1, np.float32))
    table.add(np.array([[6, 7], [7, 8]]), np.ones((2, 2, 16), np.float32))
    expected[[5, 6]] = -1
    np.add.at(expected, [6, 7, 7, 8], 1)
    np.testing.assert_array_equal(worker.pull_rows(users, np.arange(10)), expected[:10])
    # In place: the array is the table.
    np.testing.assert_array_equal(array, expected)
    for ids, rows in [([1000], np.zeros((1, 16), np.float32)), ([1], np.zeros((1, 16))), ([1, 2], np.zeros((1, 16), np.float32))]:
        with pytest.raises(sealane.InvalidArgument):
            table.update(ids, rows)
    pulling = worker.pull_rows_async(users, [0], min_version=3)
    table.set_version(3)
    np.testing.assert_array_equal(pulling.result(), expected[:1])


def test_many_tables_get_a_version_at_once(ps, worker, key):
    tables = [ps.publish_table(f"{key}/{number}", whole()) for number in range(3)]
    pulling = [worker.pull_rows_async(sealane.ShardedTable(table.key, PS), [0], min_version=3) for table in tables]
    ps.set_versions(tables, 3)
    assert [rows.result().shape for rows in pulling] == [(1, 16)] * 3
    assert [table.version for table in tables] == [3] * 3
    ps.set_versions([], 4)
    with pytest.raises(sealane.InvalidArgument, match="not one of"):
        worker.set_versions(tables, 4)
    with pytest.raises(sealane.InvalidArgument):
        ps.set_versions(tables, 2)
    assert [table.version for table in tables] == [3] * 3


def test_what_was_pushed_together_comes_even_after_the_end(ps, worker, key):
    tables = [sealane.ShardedTable(f"{key}/{number}", PS) for number in range(3)]
    with ps.accept_rows(key) as accepted:
        worker.push_all_rows(tables, key, [[1]] * 3, [np.ones((1, 1))] * 3)
        first = accepted.accept()
    assert [rows.table for rows in [first, *accepted]] == [table.key for table in tables]


def test_no_row_is_torn(ps, worker, key):
    table = ps.publish_table(key, np.zeros((8, 512), np.int64))
    users = sealane.ShardedTable(key, PS)
    done = threading.Event()

    def write():
        number = 0
        while not done.is_set():
            number += 1
            table.update([number % 8, number * 5 % 8], np.full((2, 512), number))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        pulled = 0
        while pulled < 200:
            try:
                rows = worker.pull_rows(users, np.arange(32) % 8)
            except sealane.Aborted:
                continue
            assert (rows == rows[:, :1]).all()
            pulled += 1
    finally:
        done.set()
        writer.join()


def test_pushed_rows_reach_their_owners(ps, worker, key):
    table = sealane.ShardedTable(key, [PS, WORKER], rows=100)
    ids = np.array([[6, 3], [6, 0]])
    rows = np.array([[[1.0], [2.0]], [[4.0], [8.0]]], np.float32)
    with ps.accept_rows(key) as even, worker.accept_rows(key) as odd:
        pushing = worker.push_rows_async(table, key, ids, rows, sum=True)
        updates = even.accept()
        assert isinstance(updates, sealane.AcceptedRows) and updates.sender == WORKER
        assert (updates.ids.tolist(), updates.rows.tolist()) == ([0, 3], [[8.0], [5.0]])
        sender, _, numbers, values = odd.accept()
        assert (sender, numbers.tolist(), values.tolist()) == (WORKER, [1], [[2.0]])
        pushing.result()
        pushing = worker.push_rows_async(table, key, [2, 2], np.array([1, 2], np.int8))
        (updates,) = even.accept_many(5)
        assert (updates.ids.tolist(), updates.rows.tolist()) == ([1, 1], [1, 2])
        pushing.result()
        # Of many tables, in order.
        items = sealane.ShardedTable("items", PS)
        pushing = worker.push_all_rows_async([table, items], key, [[4, 8], [[7]]], [rows[0], np.array([[3]])])
        first, second = (even.accept() for _ in range(2))
        assert (first.table, first.ids.tolist(), first.rows.tolist()) == (key, [2, 4], [[1.0], [2.0]])
        assert (second.table, second.ids.tolist(), second.rows.tolist()) == ("items", [7], [3])
        pushing.result()
        # They come as one tensor, of which no accept hands out more than it is asked for.
        tables, numbers = [table, items] * 3, [[4], [5]] * 3
        worker.push_all_rows(tables, key, numbers, [np.ones((1, 1))] * 6)
        assert [rows.table for rows in even.accept_many(4)] == [key, "items"] * 2
        assert even.accept_many(0) == []
        assert [next(even).table for _ in range(2)] == [key, "items"]
        # What is no rows among them costs nobody else's.
        worker.push_all_rows(tables, key, numbers, [np.ones((1, 1))] * 6)
        worker.push(PS, key, np.arange(3))
        worker.push_rows(items, key, [1], np.ones((1, 1)))
        accepted = even.accept_many(1)
        while len(accepted) < 6:
            accepted += even.accept_many(20)
        with pytest.raises(sealane.InvalidArgument, match="pushed rows"):
            even.accept_many(20)
        assert even.accept().ids.tolist() == [1]
        with pytest.raises(sealane.InvalidArgument, match="rows has 1 elements, for 2 tables"):
            worker.push_all_rows([table, items], key, [[4], [7]], [rows[0]])
        pushing = worker.push_async(PS, key, np.arange(3))
        with pytest.raises(sealane.InvalidArgument, match="pushed rows"):
            even.accept()
        pushing.result()
        for wrong in (np.zeros((3, 1)), np.zeros((2, 3, 1))):
            with pytest.raises(sealane.InvalidArgument):
                worker.push_rows(table, key, ids, wrong)
        with pytest.raises(sealane.InvalidArgument, match="row 100"):
            worker.push_rows(table, key, [100], np.zeros((1, 1)))
