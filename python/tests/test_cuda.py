"""Tensors in the memory of CUDA devices, on a driver of the tests' own."""

import asyncio
import os
import subprocess
import sys
import textwrap
import warnings

import numpy
import pytest
import sealane
from daemons import PS, WORKER
from devices import Driver, Exchanged, Interface, build

SHAPE = (100, 50)


@pytest.fixture(scope="module")
def driver():
    return Driver(build())


@pytest.fixture(autouse=True)
def _as_it_was(driver):
    yield
    driver.lose(0)
    driver.hold(0)


@pytest.fixture(params=[Exchanged, Interface])
def array(request, driver):
    """Makes arrays of a device."""
    return lambda values, **options: request.param(driver, values, **options)


def numbers(seed, shape=SHAPE):
    return numpy.random.default_rng(seed).random(shape, dtype=numpy.float32)


def test_a_tensor_goes_from_one_device_to_another_task_and_to_a_device_there(ps, worker, key, array):
    source, target = array(numbers(1)), array(numbers(2), device=1)
    sending = ps.send_async(WORKER, 1, key, source)
    assert worker.recv(PS, 1, key, out=target) is target
    sending.result()
    assert (target.values() == numbers(1)).all()


def test_host_and_device_meet(ps, worker, key, array):
    sending = ps.send_async(WORKER, 1, key, array(numbers(1)))
    assert (worker.recv(PS, 1, key) == numbers(1)).all()
    sending.result()
    target = array(numbers(2))
    sending = ps.send_async(WORKER, 2, key, numbers(3))
    worker.recv(PS, 2, key, out=target)
    sending.result()
    assert (target.values() == numbers(3)).all()


def test_many_at_once_of_the_host_and_of_a_device(ps, worker, key, array):
    tensors = {f"{key}{n}": array(numbers(n)) if n % 2 else numbers(n) for n in range(8)}
    sending = ps.send_all_async(WORKER, 1, tensors)
    out = {f"{key}{n}": array(numbers(0)) for n in range(4)}
    received = worker.recv_all(PS, 1, list(tensors), out=out)
    sending.result()
    for n, tensor in enumerate(received.values()):
        assert ((tensor.values() if n < 4 else tensor) == numbers(n)).all()


def test_what_is_published_and_pushed_may_lie_on_a_device(ps, worker, key, array):
    ps.publish(key, 1, array(numbers(1)))
    assert (worker.pull(PS, key).array == numbers(1)).all()
    ps.publish_many(2, {key: array(numbers(2)), key + "b": numbers(3)})
    assert (worker.pull(PS, key, 2).array == numbers(2)).all()
    with ps.acceptor(key) as acceptor:
        worker.push(PS, key, array(numbers(4)))
        worker.push_many(PS, key, [array(numbers(5)), numbers(6)])
        for n in (4, 5, 6):
            assert (acceptor.accept().array == numbers(n)).all()


def test_a_plan_pulls_to_devices_and_to_the_host(ps, worker, key, array):
    keys = [f"{key}{n}" for n in range(3)]
    with worker.plan(PS, keys) as plan:
        out = {keys[0]: array(numbers(0)), keys[1]: numpy.zeros(SHAPE, numpy.float32), keys[2]: array(numbers(0))}
        for step in (1, 2):
            ps.publish_many(step, {name: numbers(10 * step + n) for n, name in enumerate(keys)})
            pulled = plan.pull(step, out=out)
            assert list(pulled) == keys and all(pulled[name] is out[name] for name in keys)
            assert list(plan.versions.values()) == [step] * 3
            for n, name in enumerate(keys):
                values = out[name] if n == 1 else out[name].values()
                assert (values == numbers(10 * step + n)).all()
        with pytest.raises(sealane.InvalidArgument, match="out has 1 arrays, and the plan 3 keys"):
            plan.pull(out={keys[0]: out[keys[0]]})
        out[keys[0]] = array(numbers(0, (4,)))
        with pytest.raises(sealane.InvalidArgument, match=r"shape \[100, 50\], and out is float32 of shape \[4\]"):
            plan.pull(out=out)
        # Without them it goes on as before.
        assert (plan.pull()[keys[0]] == numbers(20)).all()


def test_a_plan_is_awaited_with_its_copies(ps, worker, key, array, driver):
    ps.publish(key, 1, numbers(1))
    target = array(numbers(0))

    async def pull(plan):
        driver.hold(1)
        pulling = asyncio.ensure_future(awaited(plan.pull_async(1, out={key: target})))
        while sum(driver.copies()) == before:
            await asyncio.sleep(0)
        assert not pulling.done()
        driver.hold(0)
        return await pulling

    async def awaited(call):
        return await call

    with worker.plan(PS, [key]) as plan:
        before = sum(driver.copies())
        assert asyncio.run(pull(plan))[key] is target
    assert (target.values() == numbers(1)).all()


def test_copies_follow_the_callers_stream(ps, worker, key, array, driver):
    stream = driver.stream(0)
    source, target = array(numbers(1), stream=stream), array(numbers(2), stream=stream)
    gate = driver.gate(stream)
    source.compute(numbers(3))
    target.compute(numbers(4))
    sending = ps.send_async(WORKER, 1, key, source)
    receiving = worker.recv_async(PS, 1, key, out=target)
    assert not sending.done()
    driver.open(gate)
    assert receiving.result() is target
    sending.result()
    # As the gradient came out of the first kernel, and over what the second wrote.
    assert (target.values() == numbers(3)).all()


def test_nobody_waits_for_a_copy_who_does_not_want_to(ps, worker, key, array, driver):
    driver.hold(1)
    sending = ps.send_async(WORKER, 1, key, array(numbers(1)))
    pushing = ps.publish_async(key, 1, array(numbers(2)))
    receiving = worker.recv_async(PS, 1, key)
    assert not (sending.done() or pushing.done() or receiving.done())
    driver.hold(0)
    assert (receiving.result() == numbers(1)).all()
    sending.result()
    pushing.result()


def test_a_call_that_nobody_waits_for_is_made(ps, worker, key, array, driver):
    driver.hold(1)
    ps.send_async(WORKER, 1, key, array(numbers(1)))
    driver.hold(0)
    assert (worker.recv(PS, 1, key) == numbers(1)).all()


def test_arrays_that_do_not_fit_are_refused(ps, worker, key, array, driver):
    gaps = Interface(driver, numbers(1))
    gaps.strides = (400, 4)
    with pytest.raises(sealane.InvalidArgument, match="make it contiguous first"):
        ps.send(WORKER, 1, key, gaps)
    read_only = Interface(driver, numbers(1))
    read_only.read_only = True
    with pytest.raises(sealane.InvalidArgument, match="out is read-only"):
        worker.recv(PS, 1, key, out=read_only)
    nowhere = Interface(driver, numbers(1))
    nowhere.place = 64
    with pytest.raises(sealane.Unavailable, match="cuPointerGetAttribute"):
        ps.send(WORKER, 1, key, nowhere)
    with pytest.raises(sealane.InvalidArgument, match="no CUDA device 2: the driver has 2"):
        ps.send(WORKER, 1, key, Exchanged(driver, numbers(1), device=2))
    with pytest.raises(sealane.InvalidArgument, match="devices 0 and 1"):
        ps.send_all(WORKER, 1, {"a": array(numbers(1)), "b": Exchanged(driver, numbers(1), device=1)})
    target = array(numbers(2, (50, 100)))
    ps.send_async(WORKER, 1, key, numbers(1))
    with pytest.raises(sealane.InvalidArgument, match=r"takes f32\[50, 100\]"):
        worker.recv(PS, 1, key, out=target)
    assert (target.values() == numbers(2, (50, 100))).all()


def test_an_array_of_no_elements_is_a_tensor(ps, worker, key, array):
    ps.send_async(WORKER, 1, key, array(numbers(1, (0, 3))))
    assert worker.recv(PS, 1, key).shape == (0, 3)


def test_errors_of_the_driver_end_the_call_alone(ps, worker, key, array, driver):
    driver.fail("cuMemcpyDtoHAsync")
    with pytest.raises(sealane.Unavailable, match="cuMemcpyDtoHAsync: a fake error"):
        ps.send(WORKER, 1, key, array(numbers(1)))
    driver.fail("cuMemcpyDtoHAsync", status=2)
    with pytest.raises(sealane.ResourceExhausted, match="CUDA memory is full"):
        ps.push(WORKER, key, array(numbers(1)))
    ps.send_async(WORKER, 1, key, array(numbers(2)))
    assert (worker.recv(PS, 1, key) == numbers(2)).all()


def test_a_plan_whose_copies_fail_is_closed(ps, worker, key, array, driver):
    ps.publish(key, 1, numbers(1))
    plan = worker.plan(PS, [key])
    driver.fail("cuMemcpyHtoDAsync")
    with pytest.raises(sealane.Unavailable, match="cuMemcpyHtoDAsync"):
        plan.pull(1, out={key: array(numbers(2))})
    with pytest.raises(sealane.InvalidArgument, match="the plan was closed"):
        plan.pull(1)


def test_an_arena_that_is_not_pinned_is_told_of_once(own_daemon, key, driver):
    with own_daemon.attach(PS) as ps:
        driver.fail("cuMemHostRegister", status=2)
        slow = "does not pin the arena, so copies are slow: CUDA memory is full"
        with pytest.warns(RuntimeWarning, match=slow) as warned:
            ps.publish(key, 1, Interface(driver, numbers(1)))
        assert warned[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ps.publish(key, 2, Interface(driver, numbers(2)))
        driver.fail("cuMemHostRegister", status=2)
        with pytest.raises(sealane.ResourceExhausted):
            ps.pin()
        ps.pin()
        assert (ps.pull(PS, key, 2).array == numbers(2)).all()


def test_copies_use_pinned_memory_with_a_daemon(own_daemon, key, driver):
    with own_daemon.attach(PS) as ps:
        pinned, other = driver.copies()
        ps.publish(key, 1, Interface(driver, numbers(1)))
        assert driver.copies() == (pinned + 1, other)


DYING = """
    import sys
    sys.path.insert(0, {tests!r})
    import numpy, sealane
    from devices import Driver, Interface
    driver = Driver({library!r})
    ps = sealane.attach({task!r}, socket={socket!r})
    driver.hold(1)
    sending = ps.send_async({worker!r}, 1, "key", Interface(driver, numpy.zeros(100_000)))
    print("copies", flush=True)
    sending.result()
"""


def test_a_client_that_dies_in_the_middle_of_a_copy_leaves_nothing_behind(own_daemon):
    program = DYING.format(
        tests=os.path.dirname(__file__),
        library=str(build()),
        task=PS,
        socket=str(own_daemon.socket),
        worker=WORKER,
    )
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"copies\n"
        process.kill()
    with own_daemon.attach(WORKER) as worker, own_daemon.attach(PS) as ps:
        ps.send_async(WORKER, 1, "key", numbers(1))
        assert (worker.recv(PS, 1, "key") == numbers(1)).all()


def test_without_a_driver_the_error_says_so(own_daemon):
    program = f"""
        import sealane
        class Array:
            __cuda_array_interface__ = dict(shape=(1,), typestr="<f4", data=(64, False), version=3)
        ps = sealane.attach({PS!r}, socket={str(own_daemon.socket)!r})
        try:
            ps.publish("key", 1, Array())
        except sealane.Unavailable as error:
            print(error)
    """
    output = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    if "cuPointerGetAttribute" in output.stdout:
        pytest.skip("this host has a driver")
    assert output.stdout.startswith("the CUDA driver is unavailable: libcuda.so.1"), output
