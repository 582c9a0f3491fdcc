"""What tests are given: a parameter server and a worker, attached to a daemon, or with engines in this process."""

import signal

import pytest
from daemons import PS, WORKER, embedded_pair, new_daemon

# Who starts tests in the background of a shell has them ignore Ctrl-C, and so would what they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def own_daemon():
    """A daemon of this test's own, to be killed or filled up."""
    with new_daemon() as daemon:
        yield daemon


@pytest.fixture(scope="session")
def daemon():
    with new_daemon() as daemon:
        yield daemon


@pytest.fixture(scope="session", params=["daemon", "embedded"])
def tasks(request):
    """A parameter server and a worker, either way."""
    if request.param == "embedded":
        ps, worker = embedded_pair()
    else:
        daemon = request.getfixturevalue("daemon")
        ps, worker = daemon.attach(PS), daemon.attach(WORKER)
    with ps, worker:
        yield ps, worker


@pytest.fixture
def ps(tasks):
    return tasks[0]


@pytest.fixture
def worker(tasks):
    return tasks[1]


@pytest.fixture
def key(request):
    """A key that no other test has."""
    return request.node.name


@pytest.fixture
def carry(ps, worker, key):
    """Sends from the parameter server to the worker, and gives what arrived."""

    def carry(tensor, **options):
        sending = ps.send_async(WORKER, 1, key, tensor)
        received = worker.recv(PS, 1, key, **options)
        sending.result()
        return received

    return carry
