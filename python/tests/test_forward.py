"""Unmodified gRPC and HTTP programs, carried by two `sealane forward`."""

import http.server
import resource
import shutil
import subprocess
import threading
from concurrent import futures

import pytest
from daemons import PS, STUCK, WORKER, binary, new_daemon
from test_calls import in_thread

grpc = pytest.importorskip("grpc")

CHUNK = bytes(range(256)) * (4096 * 4)
GIBIBYTE = 1 << 30
CHANNELS = 1000
# A connection that is lost is made anew at once, not after gRPC's second.
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.initial_reconnect_backoff_ms", 10), ("grpc.max_reconnect_backoff_ms", 10)]


class Forwarder:
    """A process of `sealane forward`, which has said what it does."""

    def __init__(self, daemon, task, *arguments):
        command = [binary(), "forward", "--socket", daemon.socket, "--task", task, *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.says = self.process.stdout.readline()

    def address(self):
        """Where it takes connections."""
        return self.says.removeprefix("connections to ").split()[0]

    def kill(self):
        self.process.kill()
        self.process.communicate()


class Bytes:
    """A service of every kind of call, and how many calls that were to be cancelled began and were."""

    def __init__(self):
        self.begun = threading.Semaphore(0)
        self.given_up = threading.Semaphore(0)
        kinds = {
            "Echo": grpc.unary_unary_rpc_method_handler(lambda request, _: request),
            "Download": grpc.unary_stream_rpc_method_handler(self.download),
            "Upload": grpc.stream_unary_rpc_method_handler(lambda requests, _: str(sum(map(len, requests))).encode()),
            "Talk": grpc.stream_stream_rpc_method_handler(lambda requests, _: (request[::-1] for request in requests)),
            "Wait": grpc.unary_unary_rpc_method_handler(self.wait),
        }
        self.handler = grpc.method_handlers_generic_handler("Bytes", kinds)

    def download(self, request, _):
        return (CHUNK for _ in range(int(request)))

    def wait(self, request, context):
        ended = threading.Event()
        # A call that ended before its handler began calls nobody back.
        if not context.add_callback(ended.set):
            ended.set()
        if request == b"cancelled":
            self.begun.release()
        assert ended.wait(STUCK)
        if request == b"cancelled":
            self.given_up.release()


class Carried:
    """A server, the two forwarders, and the address that clients use."""

    def __init__(self, daemon, *handlers):
        self.daemon = daemon
        self.bytes = Bytes()
        self.server = grpc.server(futures.ThreadPoolExecutor(16), (self.bytes.handler, *handlers), options=OPTIONS)
        self.target = "127.0.0.1:%d" % self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()
        self.inward = Forwarder(daemon, PS, "--target", self.target)
        self.outward = Forwarder(daemon, WORKER, "--listen", "127.0.0.1:0", "--to", PS)

    def channel(self, *options):
        return grpc.insecure_channel(self.outward.address(), options=[*OPTIONS, *options])

    def end(self):
        self.outward.kill()
        self.inward.kill()
        self.server.stop(None).wait()


@pytest.fixture(scope="module")
def own():
    with new_daemon() as daemon:
        yield daemon


@pytest.fixture
def carried(own):
    carried = Carried(own)
    yield carried
    carried.end()


def test_calls_of_every_kind(carried):
    with carried.channel() as channel:
        assert channel.unary_unary("/Bytes/Echo")(CHUNK, timeout=STUCK) == CHUNK
        assert list(channel.unary_stream("/Bytes/Download")(b"3", timeout=STUCK)) == [CHUNK] * 3
        assert channel.stream_unary("/Bytes/Upload")(iter([CHUNK] * 3), timeout=STUCK) == str(3 * len(CHUNK)).encode()
        talked = channel.stream_stream("/Bytes/Talk")((str(number).encode() for number in range(10, 200)), timeout=STUCK)
        assert list(talked) == [str(number)[::-1].encode() for number in range(10, 200)]
        with pytest.raises(grpc.RpcError) as unknown:
            channel.unary_unary("/Bytes/Nothing")(b"", timeout=STUCK)
        assert unknown.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_deadlines_and_cancellations_reach_the_server(carried):
    with carried.channel() as channel:
        wait = channel.unary_unary("/Bytes/Wait")
        with pytest.raises(grpc.RpcError) as late:
            wait(b"", timeout=0.2)
        assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        call = wait.future(b"cancelled", timeout=STUCK)
        # A call that is cancelled before its handler begins is not given up by it. (Another call's answer does not say that it began.)
        assert carried.bytes.begun.acquire(timeout=STUCK)
        call.cancel()
        assert carried.bytes.given_up.acquire(timeout=STUCK)


def test_a_gibibyte_each_way(carried):
    count = GIBIBYTE // len(CHUNK)
    with carried.channel() as channel:
        came = sum(len(chunk) for chunk in channel.unary_stream("/Bytes/Download")(str(count).encode(), timeout=10 * STUCK))
        assert came == GIBIBYTE
        sent = channel.stream_unary("/Bytes/Upload")((CHUNK for _ in range(count)), timeout=10 * STUCK)
        assert sent == str(GIBIBYTE).encode()


def test_who_does_not_read_holds_up_itself_alone(carried):
    # Connections of their own.
    local = ("grpc.use_local_subchannel_pool", 1)
    with carried.channel(local) as slow, carried.channel(local) as fast:
        unread = slow.unary_stream("/Bytes/Download")(b"40", timeout=STUCK)
        assert next(unread) == CHUNK
        assert len(list(fast.unary_stream("/Bytes/Download")(b"40", timeout=STUCK))) == 40
        assert len(list(unread)) == 39


def test_a_thousand_channels(carried):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    channels = [carried.channel(("grpc.use_local_subchannel_pool", 1)) for _ in range(CHANNELS)]
    calls = [
        channel.unary_unary("/Bytes/Echo").future(str(number).encode(), timeout=STUCK, wait_for_ready=True)
        for number, channel in enumerate(channels)
    ]
    assert [int(call.result()) for call in calls] == list(range(CHANNELS))
    for channel in channels:
        channel.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_forwarders_that_are_killed_are_replaced(carried, own):
    with carried.channel() as channel:
        echo, wait = channel.unary_unary("/Bytes/Echo"), channel.unary_unary("/Bytes/Wait")
        for _ in range(3):
            assert echo(b"a", timeout=STUCK, wait_for_ready=True) == b"a"
            waiting = wait.future(b"", timeout=STUCK)
            echo(b"b", timeout=STUCK)
            carried.inward.kill()
            assert waiting.exception().code() is grpc.StatusCode.UNAVAILABLE
            carried.inward = Forwarder(own, PS, "--target", carried.target)


def test_calls_by_a_socket_that_only_some_may_use(carried, own, tmp_path):
    path = tmp_path / "ps.sock"
    for mode in ([], ["--listen-mode", "0660"]):
        # The second finds what the first has left.
        carried.outward.kill()
        carried.outward = Forwarder(own, WORKER, "--listen", f"unix:{path}", "--to", PS, *mode)
        assert carried.outward.address() == f"unix:{path}"
        assert oct(path.stat().st_mode & 0o777) == ("0o660" if mode else "0o600")
        with carried.channel() as channel:
            assert channel.unary_unary("/Bytes/Echo")(CHUNK, timeout=STUCK) == CHUNK


def test_health_and_reflection(own):
    health = pytest.importorskip("grpc_health.v1.health")
    health_pb2 = pytest.importorskip("grpc_health.v1.health_pb2")
    health_pb2_grpc = pytest.importorskip("grpc_health.v1.health_pb2_grpc")
    reflection = pytest.importorskip("grpc_reflection.v1alpha.reflection")
    client = pytest.importorskip("grpc_reflection.v1alpha.proto_reflection_descriptor_database")
    carried = Carried(own)
    try:
        servicer = health.HealthServicer()
        server = grpc.server(futures.ThreadPoolExecutor(4))
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        reflection.enable_server_reflection([health.SERVICE_NAME, reflection.SERVICE_NAME], server)
        target = "127.0.0.1:%d" % server.add_insecure_port("127.0.0.1:0")
        server.start()
        carried.inward.kill()
        carried.inward = Forwarder(own, PS, "--target", target)
        with carried.channel() as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            watched = stub.Watch(health_pb2.HealthCheckRequest(service="training"), timeout=STUCK, wait_for_ready=True)
            assert next(watched).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
            servicer.set("training", health_pb2.HealthCheckResponse.SERVING)
            assert next(watched).status == health_pb2.HealthCheckResponse.SERVING
            watched.cancel()
            assert health.SERVICE_NAME in client.ProtoReflectionDescriptorDatabase(channel).get_services()
        server.stop(None).wait()
    finally:
        carried.end()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_http_by_curl(own, tmp_path):
    class Echo(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        in_thread(server.serve_forever)
        inward = Forwarder(own, PS, "--target", "127.0.0.1:%d" % server.server_port)
        outward = Forwarder(own, WORKER, "--listen", "127.0.0.1:0", "--to", PS)
        body = tmp_path / "body"
        body.write_bytes(CHUNK)
        # Two requests by one connection.
        url = f"http://{outward.address()}/"
        command = ["curl", "--silent", "--fail", "--http1.1", "--data-binary", f"@{body}", url, url]
        came = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=STUCK).stdout
        assert came == CHUNK * 2
        outward.kill()
        inward.kill()
        server.shutdown()
