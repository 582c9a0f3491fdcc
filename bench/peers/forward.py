"""gRPC's unary calls through two `sealane forward` of one host, beside the same calls without them:

    pip install grpcio
    python bench/peers/forward.py target/dist/sealane [ROUNDS]

A server that answers with what it was sent, one client, one call at a time, in turn straight to the server's port and through the
forwarders. Prints medians in microseconds, and the quotient of each round."""

import contextlib
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import grpc

METHOD = "/peers.Bytes/Echo"
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
# Bytes of a call, and calls of a round.
CALLS = {64: 2000, 1 << 20: 200}
TASKS = ["here:1", "there:1"]
STARTING_S = 30


def free_port():
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        return chosen.getsockname()[1]


@contextlib.contextmanager
def running(*command):
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def wait_for(what):
    until = time.monotonic() + STARTING_S
    while not what():
        if time.monotonic() > until:
            sys.exit("a process does not start")
        time.sleep(0.05)


def listens(port):
    with contextlib.closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def server():
    echo = grpc.unary_unary_rpc_method_handler(lambda request, _: request)
    server = grpc.server(ThreadPoolExecutor(2), [grpc.method_handlers_generic_handler("peers.Bytes", {"Echo": echo})], options=OPTIONS)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, port


def latency_us(call, size, count):
    """The median of so many calls, after a tenth as many that do not count."""
    request, times = bytes(size), []
    for number in range(count + count // 10):
        before = time.perf_counter()
        if len(call(request, timeout=10)) != size:
            sys.exit("other bytes came")
        if number >= count // 10:
            times.append(time.perf_counter() - before)
    return median(times) * 1e6


def main():
    program, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5
    # A server in a process of its own: threads of one Python would wait for each other.
    if program == "server":
        served, port = server()
        print(port, flush=True)
        served.wait_for_termination()
    with contextlib.ExitStack() as stack:
        directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        serving = subprocess.Popen([sys.executable, __file__, "server"], stdout=subprocess.PIPE, text=True)
        stack.callback(serving.wait)
        stack.callback(serving.terminate)
        port, entrance, bell = int(serving.stdout.readline()), free_port(), directory / "daemon.sock"
        address = free_port()
        (directory / "map").write_text("".join(f"{task}=127.0.0.1:{address}\n" for task in TASKS))
        tasks = [word for task in TASKS for word in ("--task", task)]
        stack.enter_context(running(program, "daemon", "--endpoint-map", directory / "map", "--socket", bell, *tasks))
        wait_for(bell.exists)
        forward = [program, "forward", "--endpoint-map", directory / "map", "--socket", bell, "--task"]
        stack.enter_context(running(*forward, TASKS[1], "--target", f"127.0.0.1:{port}"))
        stack.enter_context(running(*forward, TASKS[0], "--listen", f"127.0.0.1:{entrance}", "--to", TASKS[1]))
        wait_for(lambda: listens(entrance))
        ways = {}
        for name, of in {"plain": port, "forward": entrance}.items():
            channel = stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{of}", OPTIONS))
            ways[name] = channel.unary_unary(METHOD)
        for size, count in CALLS.items():
            found = [{name: latency_us(call, size, count) for name, call in ways.items()} for _ in range(rounds)]
            quotients = sorted(each["forward"] / each["plain"] for each in found)
            us = {name: median(each[name] for each in found) for name in ways}
            spread = f"{median(quotients):.2f} ({quotients[0]:.2f} to {quotients[-1]:.2f})"
            print(f"{size} B: plain {us['plain']:.0f} us, forward {us['forward']:.0f} us, {spread}")


if __name__ == "__main__":
    main()
