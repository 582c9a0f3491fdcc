"""Calls: batches, deadlines, threads, signals, and the errors that callers get."""

import concurrent.futures
import inspect
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import sealane
from daemons import PS, WORKER, binary, embedded_pair, free_address, references_to, round_trip


def in_thread(function, *arguments, **options):
    thread = threading.Thread(target=function, args=arguments, kwargs=options)
    thread.start()
    return thread


def until(call, came):
    """What the call gives once its timeout was long enough for what came."""
    timeout = 0.01
    while not came(result := call(timeout)):
        timeout *= 2
    return result


def test_send_waits_until_the_consumer_has_the_tensor(ps, worker, key):
    thread = in_thread(ps.send, WORKER, 1, key, np.arange(5))
    assert worker.recv(PS, 1, key).tolist() == [0, 1, 2, 3, 4]
    thread.join()


def test_names_and_representations(tasks):
    ps, worker = tasks
    assert (ps.name, worker.name) == (PS, WORKER)
    assert repr(ps) == f"<sealane.Task {PS}>"


@pytest.mark.parametrize("count", [0, 1, 3000])
def test_batches(ps, worker, key, count):
    sent = {f"{key}/{number}": np.full(number % 300, number) for number in range(count)}
    thread = in_thread(ps.send_all, WORKER, 2, sent)
    received = worker.recv_all(PS, 2, sent)
    thread.join()
    assert list(received) == list(sent)
    for name, each in received.items():
        np.testing.assert_array_equal(each, sent[name])


@pytest.mark.parametrize("count", [0, 1, 300])
def test_batches_under_way(ps, worker, key, count):
    sent = {f"{key}/{number}": np.full(number, number) for number in range(count)}
    receiving = worker.recv_all_async(PS, 2, sent)
    if count:
        assert not receiving.done()
    sending = ps.send_all_async(WORKER, 2, sent)
    received = receiving.result(timeout=60)
    assert sending.result(timeout=60) is None
    assert list(received) == list(sent) and receiving.result() is received
    for name, each in received.items():
        np.testing.assert_array_equal(each, sent[name])


def test_a_batch_that_is_sent_is_copied(ps, worker, key):
    tensor = np.zeros(3)
    sending = ps.send_all_async(WORKER, 2, {key: tensor}, timeout=60)
    tensor[:] = 1
    assert worker.recv_all_async(PS, 2, [key], timeout=60).result()[key].tolist() == [0, 0, 0]
    sending.result()


def test_a_batch_under_way_into_the_callers_memory(ps, worker, key):
    out = {key: worker.empty(3)}
    receiving = worker.recv_all_async(PS, 2, [key], out=out)
    ps.send_all(WORKER, 2, {key: np.ones(3, np.float32)})
    received = receiving.result()
    assert received[key] is out[key] and out[key].tolist() == [1, 1, 1]


def test_a_batch_under_way_of_which_a_part_fails(ps, worker, key):
    names = [f"{key}/there", f"{key}/missing"]
    steps = itertools.count(2)

    def receive(timeout, partial):
        # In a step of its own: what came too late for one recv is not there for the next.
        step = next(steps)
        sending = ps.send_all_async(WORKER, step, {names[0]: np.ones(1)})
        receiving = worker.recv_all_async(PS, step, names, timeout=timeout, partial=partial)
        if partial:
            return sending, receiving.result()
        with pytest.raises(sealane.DeadlineExceeded) as failed:
            receiving.result()
        return sending, str(failed.value)

    sending, _ = until(lambda timeout: receive(timeout, False), lambda result: "/missing" in result[1])
    sending.result()
    sending, received = until(
        lambda timeout: receive(timeout, True),
        lambda result: not isinstance(result[1][names[0]], sealane.DeadlineExceeded),
    )
    assert received[names[0]] == 1 and isinstance(received[names[1]], sealane.DeadlineExceeded)
    sending.result()


def test_a_batch_under_way_that_is_given_up(ps, worker, key):
    receiving = worker.recv_all_async(PS, 2, [key])
    assert receiving.cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        receiving.result()


def test_batches_take_any_mapping_and_any_iterable(ps, worker, key):
    import types

    sent = types.MappingProxyType({f"{key}/{number}": np.array(number) for number in range(3)})
    thread = in_thread(ps.send_all, WORKER, 3, sent, timeout=60)
    received = worker.recv_all(PS, 3, (name for name in sent), timeout=60)
    thread.join()
    assert received == sent


def test_batches_into_the_callers_memory(ps, worker, key):
    names = [f"{key}/{number}" for number in range(4)]
    out = {names[1]: np.zeros(3), names[3]: worker.empty(1000, float)}
    sent = dict(zip(names, [np.ones(3), np.ones(3), np.ones(1000), np.ones(1000)]))
    thread = in_thread(ps.send_all, WORKER, 4, sent)
    received = worker.recv_all(PS, 4, names, out=out)
    thread.join()
    assert received[names[1]] is out[names[1]] and received[names[3]] is out[names[3]]
    assert all((each == 1).all() for each in received.values())


def test_wrong_arguments_are_reported_under_the_name_that_was_called(worker, key):
    with pytest.raises(TypeError, match=r"Task\.recv\(\)"):
        worker.recv(PS)
    with pytest.raises(TypeError, match=r"Task\.recv_async\(\)"):
        worker.recv_async(PS)


def test_batches_of_what_is_no_batch(ps, worker, key):
    with pytest.raises(TypeError, match="call recv"):
        worker.recv_all(PS, 5, key)
    for wrong in (5, [5], None):
        for recv_all in (worker.recv_all, worker.recv_all_async):
            with pytest.raises(TypeError):
                recv_all(PS, 5, wrong)
    for wrong in (5, [("a", np.ones(1))], {5: np.ones(1)}):
        for send_all in (ps.send_all, ps.send_all_async):
            with pytest.raises(TypeError):
                send_all(WORKER, 5, wrong)


def test_a_key_twice_in_a_batch(ps, worker, key):
    sendings = [ps.send_async(WORKER, 6, key, np.ones(1)) for _ in range(2)]
    with pytest.raises(sealane.Error):
        worker.recv_all(PS, 6, [key, key], timeout=0.2)
    with pytest.raises(sealane.Error):
        worker.recv_all_async(PS, 6, [key, key], timeout=0.2).result()
    ps.cleanup(6)
    del sendings


def test_deadlines(ps, worker, key):
    with pytest.raises(sealane.DeadlineExceeded, match="recv of step 1 key") as raised:
        worker.recv(PS, 1, key, timeout=0.05)
    assert isinstance(raised.value, TimeoutError) and raised.value.code == "DEADLINE_EXCEEDED"
    with pytest.raises(sealane.DeadlineExceeded, match="send of step 1 key"):
        ps.send(WORKER, 1, key, np.ones(3), timeout=0.05)
    with pytest.raises(TimeoutError):
        worker.recv_all(PS, 1, [key], timeout=0)
    with pytest.raises(TimeoutError):
        ps.send_all(WORKER, 1, {key: np.ones(3)}, timeout=0.01)
    with pytest.raises(sealane.DeadlineExceeded):
        ps.send_all_async(WORKER, 1, {key: np.ones(3)}, timeout=0.01).result()


@pytest.mark.parametrize("timeout", [-1, math.nan, -math.inf])
def test_deadlines_that_are_none(ps, worker, key, timeout):
    for call in (
        lambda: worker.recv(PS, 1, key, timeout=timeout),
        lambda: worker.recv_async(PS, 1, key, timeout=timeout),
        lambda: worker.recv_all(PS, 1, [key], timeout=timeout),
        lambda: worker.recv_all_async(PS, 1, [key], timeout=timeout),
        lambda: ps.send(WORKER, 1, key, np.ones(1), timeout=timeout),
        lambda: ps.send_async(WORKER, 1, key, np.ones(1), timeout=timeout),
        lambda: ps.send_all(WORKER, 1, {key: np.ones(1)}, timeout=timeout),
        lambda: ps.send_all_async(WORKER, 1, {key: np.ones(1)}, timeout=timeout),
    ):
        with pytest.raises(sealane.InvalidArgument, match="a timeout must be a number of seconds"):
            call()


def test_no_deadline(ps, worker, key):
    thread = in_thread(ps.send, WORKER, 1, key, np.ones(1), timeout=math.inf)
    assert worker.recv(PS, 1, key, timeout=math.inf) == 1
    thread.join()


def test_results_of_calls_under_way(ps, worker, key):
    receiving = worker.recv_async(PS, 1, key)
    assert not receiving.done()
    with pytest.raises(TimeoutError, match="continues") as raised:
        receiving.result(timeout=0.01)
    assert not isinstance(raised.value, sealane.Error)
    sending = ps.send_async(WORKER, 1, key, np.arange(1000))
    received = receiving.result()
    assert receiving.done() and receiving.result() is received and not receiving.cancel()
    assert sending.result() is None and sending.result(timeout=0) is None and sending.done()


def test_failures_of_calls_under_way_are_told_as_often_as_asked(worker, key):
    receiving = worker.recv_async(PS, 1, key, timeout=0.01)
    for _ in range(2):
        with pytest.raises(sealane.DeadlineExceeded):
            receiving.result()
    assert receiving.done()


def test_one_call_for_several_threads(ps, worker, key):
    receiving = worker.recv_async(PS, 1, key)
    results = []
    threads = [in_thread(lambda: results.append(receiving.result())) for _ in range(4)]
    ps.send(WORKER, 1, key, np.arange(1000))
    for thread in threads:
        thread.join()
    assert len(results) == 4 and all(each is results[0] for each in results)


def test_a_recv_that_is_cancelled_leaves_the_tensor(own_daemon):
    with own_daemon.attach(PS) as ps, own_daemon.attach(WORKER) as worker:
        receiving = worker.recv_async(PS, 1, "kept")
        assert receiving.cancel() and not receiving.cancel() and receiving.done()
        with pytest.raises(concurrent.futures.CancelledError):
            receiving.result()
        round_trip(ps, worker)
        sending = ps.send_async(WORKER, 1, "kept", np.arange(3))
        assert worker.recv(PS, 1, "kept").tolist() == [0, 1, 2]
        sending.result()


def test_a_recv_that_is_dropped_leaves_the_tensor(own_daemon):
    with own_daemon.attach(PS) as ps, own_daemon.attach(WORKER) as worker:
        out = np.zeros(3, int)
        references = references_to(out)
        receiving = worker.recv_async(PS, 1, "kept", out=out)
        assert references_to(out) > references
        del receiving
        round_trip(ps, worker)
        sending = ps.send_async(WORKER, 1, "kept", np.arange(3))
        assert worker.recv(PS, 1, "kept").tolist() == [0, 1, 2]
        sending.result()
        assert out.tolist() == [0, 0, 0]
        # Whichever thread hears that the daemon is done with it drops the reference, which then goes with a next call.
        while references_to(out) > references:
            round_trip(ps, worker)


def test_a_send_that_is_dropped_goes_on(ps, worker, key):
    ps.send_async(WORKER, 1, key, np.arange(3))
    assert worker.recv(PS, 1, key).tolist() == [0, 1, 2]


def test_many_threads(ps, worker, key):
    def serve(number):
        for step in range(50):
            ps.send(WORKER, step, f"{key}/{number}", np.full(number * 100, step))

    def work(number):
        for step in range(50):
            received = worker.recv(PS, step, f"{key}/{number}")
            if received.shape != (number * 100,) or (received != step).any():
                wrong.append((number, step))

    wrong = []
    threads = [in_thread(run, number) for number in range(4) for run in (serve, work)]
    for thread in threads:
        thread.join()
    assert not wrong


def test_other_threads_run_while_one_waits(ps, worker, key):
    thread = in_thread(worker.recv, PS, 1, key)
    # Without the interpreter's lock given up, this would never be reached.
    ps.send(WORKER, 1, key, np.ones(1))
    thread.join()


def test_aborted_steps(ps, worker, key):
    receiving = worker.recv_async(PS, 77, key)
    ps.abort(77, "NaN in the loss")
    with pytest.raises(sealane.Aborted, match="NaN in the loss"):
        receiving.result()
    with pytest.raises(sealane.Aborted, match="NaN in the loss"):
        ps.send(WORKER, 77, key, np.ones(1))
    for task in (ps, worker):
        task.cleanup(77)
    sending = ps.send_async(WORKER, 77, key, np.ones(1))
    assert worker.recv(PS, 77, key) == 1
    sending.result()


def test_unknown_peers(worker, key):
    with pytest.raises(sealane.NotFound, match="nobody.train:2222") as raised:
        worker.recv("nobody.train:2222", 1, key)
    assert isinstance(raised.value, sealane.Error) and raised.value.code == "NOT_FOUND"


def test_closed_tasks(own_daemon):
    with own_daemon.attach(PS) as ps:
        receiving = ps.recv_async(WORKER, 1, "never")
    ps.close()
    with pytest.raises(sealane.Unavailable):
        receiving.result()
    for call in (
        lambda: ps.recv(WORKER, 1, "k"),
        lambda: ps.send(WORKER, 1, "k", np.ones(1)),
        lambda: ps.empty(3),
        lambda: ps.abort(1, "reason"),
        lambda: ps.cleanup(1),
        lambda: ps.recv_all(WORKER, 1, ["k"]),
        lambda: ps.send_all(WORKER, 1, {"k": np.ones(1)}),
    ):
        with pytest.raises(sealane.InvalidArgument, match="was closed"):
            call()
    own_daemon.attach(PS).close()


def test_a_daemon_that_goes_and_comes_back(own_daemon):
    with own_daemon.attach(PS) as ps, own_daemon.attach(WORKER) as worker:
        receiving = worker.recv_async(PS, 1, "k")
        own_daemon.kill()
        with pytest.raises(sealane.Unavailable, match="the daemon at"):
            receiving.result()
        with pytest.raises(sealane.Unavailable):
            worker.recv(PS, 1, "k")
        assert own_daemon.start()
        while True:
            # The next attempt to attach may be milliseconds away.
            try:
                sending = ps.send_async(WORKER, 1, "k", np.arange(1000))
                received = worker.recv(PS, 1, "k", timeout=5)
                sending.result()
                break
            except (sealane.Unavailable, sealane.DeadlineExceeded):
                ps.cleanup(1)
        assert received.sum() == 499_500


def test_attaching_where_that_is_not_possible(daemon, own_daemon, tmp_path):
    with pytest.raises(sealane.Unavailable, match="start `sealane daemon`"):
        sealane.attach(PS, socket=tmp_path / "none.sock")
    with pytest.raises(sealane.NotFound, match="nobody:1"):
        own_daemon.attach("nobody:1")
    with own_daemon.attach(PS):
        with pytest.raises(sealane.Error, match=str(os.getpid())):
            own_daemon.attach(PS)
    for wrong in ({"timeout": -1}, {"idle_spin": math.nan}):
        with pytest.raises(sealane.InvalidArgument):
            own_daemon.attach(PS, **wrong)


def test_embedding_where_that_is_not_possible(tmp_path):
    map = tmp_path / ".endpoint_map"
    with pytest.raises(sealane.InvalidArgument, match="endpoint_map"):
        sealane.embedded(map, PS)
    map.write_text("nonsense\n")
    with pytest.raises(sealane.InvalidArgument, match="line 1|:1:"):
        sealane.embedded(map, PS)
    map.write_text(f"{WORKER}=127.0.0.1:1\n")
    with pytest.raises(sealane.InvalidArgument, match="not in the endpoint map"):
        sealane.embedded(map, PS)


def test_embedded_engines_share_a_secret_or_do_not_talk(tmp_path):
    secrets = [tmp_path / "this", tmp_path / "that"]
    for secret in secrets:
        secret.write_text(secret.name * 10)
        secret.chmod(0o600)
    this, that = ({"secret_file": secret} for secret in secrets)
    ps, worker = embedded_pair(this, this)
    with ps, worker:
        thread = in_thread(ps.send, WORKER, 1, "k", np.arange(10))
        assert worker.recv(PS, 1, "k").sum() == 45
        thread.join()
    ps, worker = embedded_pair(this, that)
    with ps, worker:
        with pytest.raises(sealane.PermissionDenied, match="security.secret_file"):
            worker.recv(PS, 1, "k")
        with pytest.raises(sealane.InvalidArgument, match="shared secret"):
            worker.set_credentials()
        worker.set_credentials(**this)
        thread = in_thread(ps.send, WORKER, 2, "k", np.arange(10))
        assert worker.recv(PS, 2, "k").sum() == 45
        thread.join()


def test_embedding_without_saying_who_may_talk(tmp_path):
    map = tmp_path / ".endpoint_map"
    # A name that is a loopback address on this host alone, so that the engine listens on all interfaces for the other host.
    map.write_text(f"{PS}=0x7f000001:{free_address().rpartition(':')[2]}\n{WORKER}=198.51.100.1:7000\n")
    with pytest.raises(sealane.InvalidArgument, match="security.secret_file"):
        sealane.embedded(map, PS)
    secret = tmp_path / "secret"
    secret.write_text("x" * 40)
    for wrong in ({"secret_file": secret}, {"tls": ("a", "b", "c")}, {"secret_file": secret, "tls": ("a", "b", "c")}):
        with pytest.raises(sealane.InvalidArgument):
            sealane.embedded(map, PS, **wrong)


@pytest.mark.parametrize("idle_spin", [0, math.inf])
def test_polling(own_daemon, idle_spin):
    with own_daemon.attach(PS, idle_spin=idle_spin) as ps, own_daemon.attach(WORKER, idle_spin=idle_spin) as worker:
        for step in range(5):
            thread = in_thread(ps.send, WORKER, step, "k", np.arange(1000))
            assert worker.recv(PS, step, "k").sum() == 499_500
            thread.join()


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("idle_spin", [0, 50e-6, math.inf])
@pytest.mark.parametrize("call", ["recv", "recv_all", "result", "send"])
def test_signal_handlers_run_while_the_main_thread_waits(own_daemon, call, idle_spin):
    def interrupt(_signal, _frame):
        raise Interrupted

    former = signal.signal(signal.SIGALRM, interrupt)
    try:
        with own_daemon.attach(WORKER, idle_spin=idle_spin) as worker:
            waits = {
                "recv": lambda: worker.recv(PS, 1, "never"),
                "recv_all": lambda: worker.recv_all(PS, 1, ["never", "ever"]),
                "result": lambda: worker.recv_async(PS, 1, "never").result(),
                "send": lambda: worker.send(PS, 1, "never", np.ones(1)),
            }
            with pytest.raises(Interrupted):
                signal.setitimer(signal.ITIMER_REAL, 0.05)
                waits[call]()
    finally:
        signal.signal(signal.SIGALRM, former)


def test_many_calls_to_a_daemon_that_stands_still_end_together_and_can_be_interrupted(own_daemon):
    # Far more than its ring has room for.
    many = {str(number): np.ones(4) for number in range(3000)}

    def interrupt(_signal, _frame):
        raise Interrupted

    with own_daemon.attach(WORKER) as worker, own_daemon.stopped():
        last = worker.recv_async(PS, 1, "last", timeout=math.inf)
        with pytest.raises(sealane.Error):
            worker.send_all(PS, 1, many, timeout=1)
        with pytest.raises(sealane.Error):
            worker.recv_all(PS, 2, list(many), timeout=1)
        former = signal.signal(signal.SIGALRM, interrupt)
        try:
            for call in (lambda: worker.send_all(PS, 3, many, timeout=math.inf), last.result):
                with pytest.raises(Interrupted):
                    signal.setitimer(signal.ITIMER_REAL, 0.05)
                    call()
        finally:
            signal.signal(signal.SIGALRM, former)
        assert not last.done()


@pytest.mark.parametrize("give_up", ["drop", "cancel", "fail"])
def test_recvs_that_are_given_up_wait_once_for_a_daemon_that_stands_still_and_python_goes_on(own_daemon, give_up):
    with own_daemon.attach(WORKER) as worker, own_daemon.stopped():
        # Memory that the daemon may still write.
        out = {str(number): worker.empty(1000) for number in range(100)}
        receiving = [] if give_up == "fail" else [worker.recv_async(PS, 1, key, out=out[key]) for key in out]

        def fail():
            with pytest.raises(sealane.Error):
                worker.recv_all(PS, 1, out, out=out, timeout=0.01)

        def cancel():
            assert all([each.cancel() for each in receiving])

        thread, turns = in_thread({"drop": receiving.clear, "cancel": cancel, "fail": fail}[give_up]), 0
        while thread.is_alive():
            time.sleep(0.001)
            turns += 1
        assert turns > 10


def test_control_c(own_daemon):
    program = f"""
import sealane
task = sealane.attach({WORKER!r}, socket={str(own_daemon.socket)!r})
try:
    print("waiting", flush=True)
    task.recv({PS!r}, 1, "never")
except KeyboardInterrupt:
    print("interrupted")
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate()[0] == "interrupted\n"
    assert process.returncode == 0


def test_exceptions_are_what_they_stand_for():
    assert issubclass(sealane.InvalidArgument, ValueError)
    assert issubclass(sealane.PermissionDenied, PermissionError)
    assert issubclass(sealane.DeadlineExceeded, TimeoutError)
    for name in sealane.__all__:
        exported = getattr(sealane, name)
        assert exported.__doc__, name
        if isinstance(exported, type) and issubclass(exported, Exception):
            assert issubclass(exported, sealane.Error)


def test_calls_that_wait_have_the_documentation_and_signature_of_those_that_do_not():
    for of in (sealane.Task, sealane.Plan):
        names = [name.removesuffix("_async") for name in dir(of) if name.endswith("_async")]
        assert names
        for name in names:
            waits, begins = getattr(of, name), getattr(of, f"{name}_async")
            first = begins.__doc__.split("\n\n")[0]
            assert first.startswith(f"``{name}`` that does not wait"), name
            assert waits.__doc__ and waits.__doc__ == begins.__doc__[len(first) + 2 :], name
            assert "Do not touch" not in waits.__doc__.split("\n\n")[0], name
            assert inspect.signature(waits) == inspect.signature(begins), name


def test_two_processes_of_a_host_get_a_direct_lane_which_stat_shows(own_daemon):
    with own_daemon.attach(PS) as ps, own_daemon.attach(WORKER) as worker:
        for step in itertools.count():
            sending = ps.send_async(WORKER, step, "small", np.zeros(8))
            worker.recv(PS, step, "small")
            sending.result()
            if ps.direct_peers() == [WORKER] and worker.direct_peers() == [PS]:
                break
            assert step < 100_000
        command = [binary(), "stat", "--json", "--socket", own_daemon.socket]
        shown = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        assert shown["direct_lanes"] == [sorted([PS, WORKER])]
