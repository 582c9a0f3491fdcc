"""Children that were forked are told that they cannot use what their parent attached, and do it no harm."""

import multiprocessing
import os
import warnings

import numpy as np
import pytest
import sealane
from daemons import PS, WORKER

# Python warns of forks in processes with threads, which is what is tried here.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def in_child(work):
    """Runs ``work`` in a forked child and gives what it returned, or raises what it raised."""
    receiver, sender = multiprocessing.Pipe(duplex=False)

    def run():
        try:
            sender.send((work(), None))
        except BaseException as error:
            sender.send((None, repr(error)))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = multiprocessing.get_context("fork").Process(target=run)
        child.start()
    child.join()
    assert child.exitcode == 0
    value, error = receiver.recv()
    assert error is None, error
    return value


def told(call):
    """What a call is told that must be refused."""
    try:
        call()
    except sealane.InvalidArgument as error:
        return str(error)
    return "nothing"


def test_a_child_is_told(ps, worker, key):
    receiving = worker.recv_async(PS, 1, key)
    sending = ps.send_async(WORKER, 1, key + "/other", np.ones(1))
    plan = worker.plan(PS, [key])
    pulling = plan.pull_async(1)
    acceptor = ps.acceptor(key)

    def work():
        return [
            told(call)
            for call in (
                lambda: worker.recv(PS, 1, key, timeout=5),
                lambda: worker.recv_async(PS, 1, key, timeout=5),
                lambda: worker.recv_all(PS, 1, [key], timeout=5),
                lambda: ps.send(WORKER, 1, key, np.ones(1), timeout=5),
                lambda: ps.send_all(WORKER, 1, {key: np.ones(1)}, timeout=5),
                lambda: ps.empty(5),
                lambda: ps.abort(1, "by the child"),
                lambda: ps.cleanup(1),
                lambda: receiving.result(5),
                lambda: receiving.done(),
                lambda: sending.result(5),
                lambda: ps.publish(key, 1, np.ones(1)),
                lambda: ps.publish_async(key, 1, np.ones(1)),
                lambda: ps.publish_many(1, {key: np.ones(1)}),
                lambda: ps.withdraw(key),
                lambda: worker.pull(PS, key, timeout=5),
                lambda: worker.pull_async(PS, key, timeout=5),
                lambda: worker.pull_many(PS, [key], timeout=5),
                lambda: worker.plan(PS, [key]),
                lambda: plan.pull(timeout=5),
                lambda: plan.pull_async(timeout=5),
                lambda: plan.close(),
                lambda: pulling.result(5),
                lambda: worker.push(PS, key, np.ones(1), timeout=5),
                lambda: worker.push_async(PS, key, np.ones(1), timeout=5),
                lambda: worker.push_many(PS, key, [np.ones(1)], timeout=5),
                lambda: ps.acceptor(key),
                lambda: acceptor.accept(5),
                lambda: acceptor.accept_many(5, 5),
                lambda: next(acceptor),
                lambda: acceptor.close(),
                lambda: ps.close(),
            )
        ]

    for text in in_child(work):
        assert "forked" in text and "attach again in the child" in text
    # The parent goes on as if nothing had been.
    ps.send(WORKER, 1, key, np.arange(3))
    assert receiving.result().tolist() == [0, 1, 2]
    worker.recv(PS, 1, key + "/other")
    sending.result()
    ps.publish(key, 1, np.arange(3))
    assert pulling.result()[key].tolist() == plan.pull()[key].tolist() == [0, 1, 2]
    worker.push(PS, key, np.arange(3))
    assert acceptor.accept().array.tolist() == [0, 1, 2]


def test_a_child_may_drop_what_it_inherited(own_daemon):
    holder = {"ps": own_daemon.attach(PS), "worker": own_daemon.attach(WORKER)}
    holder["sending"] = holder["ps"].send_async(WORKER, 1, "k", holder["ps"].empty(10_000))
    holder["array"] = holder["ps"].empty(10_000)
    holder["receiving"] = holder["worker"].recv_async(PS, 1, "never")
    for name in ("plan", "other plan"):
        holder[name] = holder["worker"].plan(PS, ["never"])
    holder["pulling"] = holder["plan"].pull_async()
    holder["acceptor"] = holder["ps"].acceptor("q")
    in_child(holder.clear)
    assert holder["worker"].recv(PS, 1, "k").shape == (10_000,)
    holder["sending"].result()
    assert not holder["receiving"].done() and not holder["pulling"].done()
    holder["ps"].publish("never", 1, np.ones(3))
    assert holder["pulling"].result()["never"].tolist() == holder["other plan"].pull()["never"].tolist() == [1, 1, 1]
    holder["worker"].push(PS, "q", np.arange(3))
    assert holder["acceptor"].accept(timeout=60).array.tolist() == [0, 1, 2]
    for name in ("ps", "worker"):
        holder[name].close()


def test_a_child_may_read_what_it_inherited(carry):
    received = carry(np.arange(1000))
    assert in_child(lambda: int(received.sum())) == 499_500


def test_a_child_may_attach_by_itself(own_daemon):
    with own_daemon.attach(PS) as ps:
        sending = ps.send_async(WORKER, 1, "k", np.arange(1000))

        def work():
            with own_daemon.attach(WORKER) as worker:
                return int(worker.recv(PS, 1, "k").sum())

        assert in_child(work) == 499_500
        sending.result()


def test_a_bare_fork(own_daemon):
    with own_daemon.attach(PS) as ps:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pid = os.fork()
        if pid == 0:
            try:
                ps.recv(WORKER, 1, "k", timeout=5)
            except sealane.InvalidArgument:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
