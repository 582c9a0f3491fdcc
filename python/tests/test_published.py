"""Publishing and pulling, one by one, many at once, and by plans."""

import array
import asyncio
import gc
import math
import signal
import threading

import numpy as np
import pytest
import sealane
from daemons import ARENA_BYTES, PS, WORKER, round_trip
from test_calls import Interrupted, in_thread, until

# A small tensor, one of a few KiB, and one without elements.
SHAPES = [(3,), (40, 50), (5, 0)]


@pytest.fixture
def published(ps, key):
    """Publishes arrays of one value under keys of this test's own, and gives the keys."""

    def publish(version, value=None):
        tensors = {f"{key}/{number}": np.full(shape, value or version) for number, shape in enumerate(SHAPES)}
        ps.publish_many(version, tensors)
        return list(tensors)

    return publish


def test_what_is_published_is_pulled_as_often_as_one_likes(ps, worker, key):
    ps.publish(key, 3, np.arange(1000))
    for _ in range(3):
        pulled = worker.pull(PS, key)
        received, version = pulled
        assert isinstance(pulled, sealane.Pulled) and pulled.array is received and version == pulled.version == 3
        np.testing.assert_array_equal(received, np.arange(1000))
        # It is the puller's own.
        received[:] = 0


def test_pulls_wait_for_their_version(ps, worker, key):
    ps.publish(key, 1, np.ones(3))
    pulling = worker.pull_async(PS, key, 2)
    assert not pulling.done()
    ps.publish(key, 2, np.full(3, 2.0))
    assert pulling.result().array.tolist() == [2, 2, 2] and pulling.result() is pulling.result()
    with pytest.raises(sealane.DeadlineExceeded):
        worker.pull(PS, key, 3, timeout=0.01)


def test_pulls_may_come_first(ps, worker, key):
    thread = in_thread(ps.publish, key, -5, np.arange(3))
    assert worker.pull(PS, key, min_version=-5, timeout=math.inf).version == -5
    thread.join()


def test_versions_do_not_go_down(ps, worker, key):
    ps.publish(key, 2, np.ones(3))
    for publish in (
        lambda: ps.publish(key, 1, np.zeros(3)),
        lambda: ps.publish_async(key, 1, np.zeros(3)).result(),
        lambda: ps.publish_many(1, {key: np.zeros(3)}),
    ):
        with pytest.raises(sealane.InvalidArgument):
            publish()
    assert worker.pull(PS, key).version == 2


def test_what_is_withdrawn_is_waited_for(ps, worker, key):
    ps.publish(key, 1, np.ones(3))
    ps.withdraw(key)
    # A pull would race with the withdrawal itself, but not with what is published after it.
    ps.publish(f"{key} later", 1, np.ones(3))
    with pytest.raises(sealane.DeadlineExceeded):
        worker.pull(PS, key, timeout=0.01)


def test_many_at_once(ps, worker, key):
    sent = {f"{key}/{number}": np.full(number % 300, number) for number in range(1000)}
    ps.publish_many(7, sent)
    pulled = worker.pull_many(PS, (name for name in sent), 7)
    assert list(pulled) == list(sent)
    for name, (received, version) in pulled.items():
        np.testing.assert_array_equal(received, sent[name])
        assert version == 7
    assert worker.pull_many(PS, []) == {} and ps.publish_many(1, {}) is None


def test_anything_that_is_sent_can_be_published(ps, worker, key):
    in_place = ps.empty(1000)
    in_place[:] = 5
    ps.publish_many(
        1,
        {
            f"{key}/strings": ["a", b"bc"],
            f"{key}/buffer": array.array("d", [1, 2]),
            f"{key}/in place": in_place,
            f"{key}/gaps": np.arange(2000)[::2],
            f"{key}/scalar": np.float32(3),
        },
    )
    kinds = ["strings", "buffer", "in place", "gaps", "scalar"]
    pulled = worker.pull_many(PS, [f"{key}/{kind}" for kind in kinds])
    strings, buffer, in_place, gaps, scalar = (each.array for each in pulled.values())
    assert strings.tolist() == [b"a", b"bc"] and buffer.tolist() == [1, 2] and (in_place == 5).all()
    assert gaps[999] == 1998 and scalar == 3 and scalar.dtype == np.float32
    for wrong in (object(), np.zeros(3, ">f8"), [1, 2]):
        with pytest.raises((TypeError, ValueError)):
            ps.publish(f"{key}/wrong", 1, wrong)


def test_some_of_many(ps, worker, key):
    ps.publish(f"{key}/here", 1, np.ones(3))
    here, late = keys = [f"{key}/here", f"{key}/late"]
    with pytest.raises(sealane.DeadlineExceeded):
        worker.pull_many(PS, keys, timeout=0.01)
    pulled = until(
        lambda timeout: worker.pull_many(PS, keys, timeout=timeout, partial=True),
        lambda pulled: isinstance(pulled[here], sealane.Pulled),
    )
    assert pulled[here].array.tolist() == [1, 1, 1] and isinstance(pulled[late], sealane.DeadlineExceeded)
    with pytest.raises(sealane.NotFound, match="nobody.train:2222"):
        worker.pull_many("nobody.train:2222", keys)
    pulled = worker.pull_many("nobody.train:2222", keys, partial=True)
    assert all(isinstance(each, sealane.NotFound) for each in pulled.values())


def test_some_of_many_that_are_received(ps, worker, key):
    out = {f"{key}/mine": np.zeros(3)}
    too_long, mine, other = keys = ["k" * 100_000, *out, f"{key}/other"]
    thread = in_thread(ps.send_all, WORKER, 1, {name: np.ones(3) for name in keys[1:]})
    received = worker.recv_all(PS, 1, keys, out=out, partial=True)
    thread.join()
    assert list(received) == keys and isinstance(received[too_long], sealane.InvalidArgument)
    assert received[mine] is out[mine] and received[mine].tolist() == received[other].tolist() == [1, 1, 1]
    # Of another shape than the array that it is to be in.
    thread = in_thread(ps.send_all, WORKER, 2, {name: np.ones(2) for name in keys[1:]})
    received = worker.recv_all(PS, 2, keys[1:], out=out, partial=True)
    assert isinstance(received[mine], sealane.InvalidArgument) and received[other].tolist() == [1, 1]
    assert worker.recv(PS, 2, mine).tolist() == [1, 1], "the tensor stays for the next recv"
    thread.join()


def test_plans_pull_into_the_same_arrays(worker, published):
    keys = published(1)
    plan = worker.plan(PS, keys)
    assert plan.keys == tuple(keys) and plan.versions == dict.fromkeys(keys)
    first = plan.pull()
    assert list(first) == keys and plan.versions == dict.fromkeys(keys, 1)
    for version in (2, 3):
        published(version)
        pulled = plan.pull(version)
        assert plan.versions == dict.fromkeys(keys, version) and pulled is not first
        for name, shape in zip(keys, SHAPES):
            assert pulled[name] is first[name] and pulled[name].shape == shape
            assert (first[name] == version).all()
    assert repr(plan) == f"<sealane.Plan of {PS}: {len(keys)} keys>"


def test_plans_and_copies(worker, published):
    keys = published(1)
    with worker.plan(PS, keys) as plan:
        own, copies = plan.pull(), plan.pull(copy=True)
        published(2)
        plan.pull(2)
        for name in keys[:2]:
            assert (own[name] == 2).all() and (copies[name] == 1).all() and copies[name].flags.writeable


def test_a_shape_that_changes_takes_another_array(ps, worker, published):
    keys = published(1)
    plan = worker.plan(PS, keys)
    first = plan.pull()
    kept = first[keys[1]]
    for version, changed in enumerate((np.ones((50, 40), int), np.ones(5), ["text"], np.ones(3, "bool")), start=2):
        ps.publish(keys[1], version, changed)
        pulled = plan.pull()
        assert pulled[keys[0]] is first[keys[0]] and pulled[keys[1]] is not kept
        np.testing.assert_array_equal(pulled[keys[1]], np.array(changed, "S" if version == 4 else None))
    # What was handed out stays as it was.
    assert kept.shape == SHAPES[1] and (kept == 1).all()


def test_what_a_plan_handed_out_outlives_it(own_daemon):
    with own_daemon.attach(PS) as ps, own_daemon.attach(WORKER) as worker:
        ps.publish("k", 1, np.arange(10_000))
        pulled = worker.plan(PS, ["k"]).pull()["k"]
    own_daemon.kill()
    gc.collect()
    np.testing.assert_array_equal(pulled, np.arange(10_000))
    pulled[:] = 0
    with pytest.raises(ValueError, match="own"):
        pulled.resize(20_000, refcheck=False)


def test_a_pull_that_fails_leaves_the_arrays(ps, worker, published):
    keys = published(1)
    plan = worker.plan(PS, keys)
    first = plan.pull()
    ps.publish(keys[0], 2, np.full(3, 2))
    with pytest.raises(sealane.DeadlineExceeded):
        plan.pull(2, timeout=0.05)
    receiving = plan.pull_async(2, timeout=0.05)
    for _ in range(2):
        with pytest.raises(sealane.DeadlineExceeded):
            receiving.result()
    assert (first[keys[0]] == 1).all() and plan.versions == dict.fromkeys(keys, 1)
    pulled = until(
        lambda timeout: plan.pull(2, timeout=timeout, partial=True),
        lambda pulled: not isinstance(pulled[keys[0]], sealane.DeadlineExceeded),
    )
    assert pulled[keys[0]] is first[keys[0]] and (pulled[keys[0]] == 2).all()
    assert isinstance(pulled[keys[1]], sealane.DeadlineExceeded)
    assert list(plan.versions.values()) == [2, None, None]
    published(3)
    again = plan.pull(3)
    assert all(again[name] is first[name] for name in keys)


def test_one_pull_of_a_plan_at_a_time(ps, worker, published):
    keys = published(1)
    plan = worker.plan(PS, keys)
    receiving = plan.pull_async(2)
    for pull in (plan.pull, plan.pull_async):
        with pytest.raises(sealane.InvalidArgument, match="in progress"):
            pull()
    published(2)
    assert (receiving.result()[keys[0]] == 2).all()
    # One that is dropped or cancelled makes way for the next.
    plan.pull_async(3)
    gc.collect()
    assert plan.pull_async(3).cancel()
    assert (plan.pull(2)[keys[0]] == 2).all()


def test_pulls_that_are_awaited(worker, published):
    keys = published(1)
    plan = worker.plan(PS, keys)

    async def main():
        first = await plan.pull_async()
        pulling = plan.pull_async(2)
        waiting = asyncio.gather(pulling, pulling, worker.pull_async(PS, keys[0], 2))
        await asyncio.sleep(0)
        assert not pulling.done()
        published(2)
        second, same, (array, version) = await waiting
        assert second is same and all(second[name] is first[name] for name in keys)
        assert (array == 2).all() and version == 2
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await plan.pull_async(3)
        return await plan.pull_async(2, copy=True)

    assert (asyncio.run(main())[keys[1]] == 2).all()


def test_publications_that_are_awaited(ps, worker, key):
    async def main():
        assert await ps.publish_async(key, 1, np.arange(1000)) is None
        return await worker.pull_async(PS, key, 1)

    assert asyncio.run(main()).array.sum() == 499_500


def test_one_result_for_several_threads(worker, published):
    keys = published(1)
    receiving = worker.plan(PS, keys).pull_async(2)
    results = []
    threads = [in_thread(lambda: results.append(receiving.result())) for _ in range(4)]
    published(2)
    for thread in threads:
        thread.join()
    assert len(results) == 4 and all(each is results[0] for each in results)


def test_plans_of_several_threads(ps, worker, key):
    def work(number):
        keys = [f"{key}/{each}" for each in range(number, number + 50)]
        with worker.plan(PS, keys) as plan:
            for version in range(1, 21):
                for name, pulled in plan.pull(version).items():
                    if (pulled != pulled[0]).any() or pulled[0] < version:
                        wrong.append((name, version))
                ready.release()

    wrong, ready = [], threading.Semaphore(0)
    threads = [in_thread(work, 10 * number) for number in range(4)]
    for version in range(1, 21):
        ps.publish_many(version, {f"{key}/{each}": np.full(10 * each + 1, version) for each in range(80)})
        for _ in threads:
            ready.acquire()
    for thread in threads:
        thread.join()
    assert not wrong


def test_plans_without_keys_and_with_one_twice(ps, worker, key):
    assert worker.plan(PS, []).pull() == {}
    ps.publish(key, 1, np.ones(3))
    assert worker.plan(PS, [key, key]).pull()[key].tolist() == [1, 1, 1]


def test_plans_of_what_is_no_plan(worker, key):
    for call in (lambda keys: worker.plan(PS, keys), lambda keys: worker.pull_many(PS, keys)):
        for wrong in (key, 5, [5], None):
            with pytest.raises(TypeError):
                call(wrong)
        with pytest.raises(sealane.InvalidArgument, match="a key has"):
            call(["k" * 100_000])
    with pytest.raises(sealane.InvalidArgument, match="a key has"):
        worker.pull(PS, "k" * 100_000)
    with pytest.raises(sealane.NotFound, match="nobody.train:2222"):
        worker.plan("nobody.train:2222", [key]).pull()
    for call in (worker.plan(PS, [key]).pull, worker.plan(PS, [key]).pull_async):
        with pytest.raises(sealane.InvalidArgument, match="a timeout must be a number of seconds"):
            call(timeout=-1)


def test_closed_plans(worker, published):
    keys = published(1)
    plan = worker.plan(PS, keys)
    kept = plan.pull()
    receiving = plan.pull_async(2)
    for _ in range(2):
        plan.close()
    with pytest.raises(sealane.InvalidArgument, match="was closed"):
        plan.pull()
    published(2)
    assert (receiving.result()[keys[0]] == 2).all() and (kept[keys[0]] == 2).all()
    with pytest.raises(sealane.InvalidArgument, match="was closed"):
        plan.pull()


def test_plans_of_closed_tasks(own_daemon):
    with own_daemon.attach(PS) as ps, own_daemon.attach(WORKER) as worker:
        ps.publish("k", 1, np.ones(3))
        plan = worker.plan(PS, ["k"])
        plan.pull()
    with pytest.raises(sealane.Unavailable):
        plan.pull()
    for call in (
        lambda: worker.plan(PS, ["k"]),
        lambda: worker.pull(PS, "k"),
        lambda: worker.pull_async(PS, "k"),
        lambda: worker.pull_many(PS, ["k"]),
        lambda: ps.publish("k", 2, np.ones(3)),
        lambda: ps.publish_async("k", 2, np.ones(3)),
        lambda: ps.publish_many(2, {"k": np.ones(3)}),
        lambda: ps.withdraw("k"),
    ):
        with pytest.raises(sealane.InvalidArgument, match="was closed"):
            call()


def test_plans_outlive_their_daemon(own_daemon):
    with own_daemon.attach(PS) as ps, own_daemon.attach(WORKER) as worker:
        ps.publish("k", 1, np.ones(1000))
        plan = worker.plan(PS, ["k"])
        pulled = plan.pull()["k"]
        own_daemon.kill()
        with pytest.raises(sealane.Unavailable):
            plan.pull()
        assert (pulled == 1).all() and own_daemon.start()
        while True:
            # The next attempt to attach may be milliseconds away.
            try:
                ps.publish("k", 1, np.full(1000, 2.0))
                again = plan.pull(timeout=5)["k"]
                break
            except (sealane.Unavailable, sealane.DeadlineExceeded):
                pass
        assert again is pulled and (pulled == 2).all()


def test_what_is_published_from_the_arena_is_not_copied(own_daemon):
    with own_daemon.attach(PS) as ps, own_daemon.attach(WORKER) as worker:
        # A copy would find no room beside it.
        for version in range(10):
            large = None
            while large is None:
                # It comes back when a newer version has taken its place and the daemon has said so.
                try:
                    large = ps.empty(ARENA_BYTES * 3 // 4, "uint8")
                except sealane.ResourceExhausted:
                    round_trip(ps, worker)
            large[:] = version
            ps.publish("large", version, large)
            del large
            assert (worker.pull(PS, "large", version).array == version).all()
            ps.publish("large", version, b"")


@pytest.mark.parametrize("idle_spin", [0, 50e-6, math.inf])
@pytest.mark.parametrize("call", ["pull", "pull_many", "plan", "result"])
def test_signal_handlers_run_while_the_main_thread_waits(own_daemon, call, idle_spin):
    def interrupt(_signal, _frame):
        raise Interrupted

    former = signal.signal(signal.SIGALRM, interrupt)
    try:
        with own_daemon.attach(WORKER, idle_spin=idle_spin) as worker, own_daemon.attach(PS) as ps:
            plan = worker.plan(PS, ["never"])
            waits = {
                "pull": lambda: worker.pull(PS, "never"),
                "pull_many": lambda: worker.pull_many(PS, ["never", "ever"]),
                "plan": plan.pull,
                "result": lambda: worker.pull_async(PS, "never").result(),
            }
            with pytest.raises(Interrupted):
                signal.setitimer(signal.ITIMER_REAL, 0.05)
                waits[call]()
            # What was given up is in nobody's way.
            ps.publish("never", 1, np.ones(3))
            assert plan.pull()["never"].tolist() == [1, 1, 1]
    finally:
        signal.signal(signal.SIGALRM, former)


def test_slices_of_several_tasks_are_one_array(ps, worker, key):
    whole = np.arange(30_000, dtype="float32").reshape(10_000, 3)
    slicing = sealane.Slicing((10_000, 3), "float32", [PS, WORKER, PS])
    assert len(slicing) == 3 and slicing.shape == (10_000, 3) and slicing.dtype == "float32"
    assert slicing == sealane.Slicing([10_000, 3], np.float32, (PS, WORKER, PS), rows=[3333, 3333, 3334])
    plan = worker.sliced_plan({key: slicing})
    for version in (1, 2):
        ps.publish_slices(key, version, slicing, whole + version)
        own = [rows for owner, rows in slicing.slices if owner == WORKER]
        worker.publish_slices(key, version, slicing, (whole + version)[own[0]])
        pulled = plan.pull(version)
        assert plan.versions == {key: version} and list(pulled) == [key]
        assert (pulled[key] == whole + version).all()
    first = pulled[key]
    ps.publish_slices(key, 3, slicing, whole)
    with pytest.raises(sealane.Aborted, match="versions 2 to 3"):
        plan.pull(2)
    mixed = worker.sliced_plan({key: slicing}, any_versions=True)
    assert (mixed.pull(2)[key][:3333] == whole[:3333]).all() and mixed.versions == {key: 2}
    worker.publish_slices(key, 3, slicing, whole)
    assert plan.pull(3)[key] is first and (first == whole).all()
    ps.withdraw_slices(key, slicing)
    ps.publish("else", 1, np.zeros(1))
    with pytest.raises(sealane.DeadlineExceeded, match=r"\[0:3333/10000\]"):
        plan.pull(timeout=0.05)


def test_slicings_that_are_wrong(ps, worker, key):
    for arguments in (((), "float32", [PS]), ((0,), "float32", [PS]), ((3,), "float32", [])):
        with pytest.raises(sealane.InvalidArgument):
            sealane.Slicing(*arguments)
    with pytest.raises(sealane.InvalidArgument, match="2 counts of rows for 1 owners"):
        sealane.Slicing((3,), "float32", [PS], rows=[1, 2])
    with pytest.raises(TypeError, match="list of strings"):
        sealane.Slicing((3,), "float32", PS)
    slicing = sealane.Slicing((3,), "float32", [PS])
    assert repr(slicing) == "<sealane.Slicing of float32[3] in 1>"
    with pytest.raises(sealane.InvalidArgument, match="gives worker0.* no rows"):
        worker.publish_slices(key, 1, slicing, np.zeros(3, "float32"))
    with pytest.raises(sealane.InvalidArgument, match="not from"):
        ps.publish_slices(key, 1, slicing, np.zeros(4, "float32"))


def test_a_view_is_read_only_and_keeps_its_bytes(ps, worker, key):
    values = np.arange(100_000)
    ps.publish(key, 1, values)
    seen, version = worker.pull(PS, key, view=True)
    ps.publish(key, 2, np.zeros(100_000))
    np.testing.assert_array_equal(seen, values)
    assert version == 1 and not seen.flags.writeable
    with pytest.raises(ValueError):
        seen[0] = 7
    assert worker.pull_async(PS, key, 2, view=True).result().array.sum() == 0
    # As are those that had to be copied.
    ps.publish(f"{key}/small", 1, np.ones(3))
    for pulled in worker.pull_many(PS, [key, f"{key}/small"], view=True).values():
        assert not pulled.array.flags.writeable


def test_memory_that_is_viewed_is_the_publishers_again_when_the_array_is_collected(ps, worker, key):
    views = []
    for version in range(20):
        # Much more than the arena has in all.
        ps.publish(key, version, np.full(ARENA_BYTES // 64, version))
        views = [worker.pull(PS, key, version, view=True).array]
        assert (views[0] == version).all()
    ps.withdraw(key)
    np.testing.assert_array_equal(views[0][:3], [19, 19, 19])
    rows = views.pop()[5:8]
    gc.collect()
    np.testing.assert_array_equal(rows, [19, 19, 19])
