"""One side of a measurement of grpcio, or of gloo through torch, for `cargo xtask peers`:

    python_side.py grpcio|gloo server ADDRESS BYTES
    python_side.py grpcio|gloo client ADDRESS BYTES SECONDS WINDOW

grpcio: one bidirectional stream of messages that are bytes; the client keeps so many requests in flight. gloo: send and recv of
torch.distributed; with a window of one a tensor there and back, with more large tensors one way. Prints the median round trip in
microseconds for a window of one, else messages a second."""

import queue
import sys
import time
from statistics import median

REQUEST_BYTES, LARGE_BYTES, WAIT_S = 64, 8192, 10
METHOD = "/peers.Tensors/Stream"
# What a gloo server is told after the last tensor.
LAST = 255


def measure(exchange, seconds, window):
    """Exchanges for so long, after a tenth of that time that is not counted, and prints the figure."""
    begun = before = time.perf_counter()
    times = []
    while before < begun + 1.1 * seconds:
        exchange()
        after = time.perf_counter()
        if before >= begun + seconds / 10:
            times.append(after - before)
        before = after
    print(f"rtt_us {median(times) * 1e6}" if window == 1 else f"per_second {len(times) / sum(times)}")


def grpcio(address, size, seconds, window):
    import grpc

    options = [("grpc.max_receive_message_length", -1), ("grpc.http2.max_frame_size", 1 << 20)]
    if seconds is None:
        from concurrent.futures import ThreadPoolExecutor

        tensor = bytes(size)
        handler = grpc.stream_stream_rpc_method_handler(lambda requests, _: (tensor for _ in requests))
        service = grpc.method_handlers_generic_handler("peers.Tensors", {"Stream": handler})
        server = grpc.server(ThreadPoolExecutor(1), [service], options=options)
        server.add_insecure_port(address)
        server.start()
        server.wait_for_termination()
    with grpc.insecure_channel(address, options) as channel:
        grpc.channel_ready_future(channel).result(WAIT_S)
        asked, request = queue.SimpleQueue(), bytes(REQUEST_BYTES)
        answers = channel.stream_stream(METHOD)(iter(asked.get, None))
        for _ in range(window):
            asked.put(request)

        def exchange():
            if len(next(answers)) != size:
                raise SystemExit("other bytes came")
            asked.put(request)

        measure(exchange, seconds, window)
        answers.cancel()
        asked.put(None)


def gloo(address, size, seconds, window):
    import datetime

    import torch
    from torch import distributed

    is_server = seconds is None
    distributed.init_process_group("gloo", f"tcp://{address}", rank=int(not is_server), world_size=2,
                                   timeout=datetime.timedelta(seconds=WAIT_S))
    tensor, is_one_way = torch.zeros(size, dtype=torch.uint8), size >= LARGE_BYTES
    if is_server:
        while tensor[0] != LAST:
            distributed.recv(tensor, 1)
            if not is_one_way:
                distributed.send(tensor, 1)
        return

    def exchange():
        distributed.send(tensor, 0)
        if not is_one_way:
            distributed.recv(tensor, 0)

    measure(exchange, seconds, window)
    tensor[0] = LAST
    exchange()


def main():
    system, role, address, size, *more = sys.argv[1:]
    seconds, window = (float(more[0]), int(more[1])) if role == "client" else (None, None)
    {"grpcio": grpcio, "gloo": gloo}[system](address, int(size), seconds, window)


main()
