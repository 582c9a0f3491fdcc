/* One side of a measurement of ZeroMQ, for `cargo xtask peers`:
 *
 *     zeromq push ENDPOINT BYTES                     sends one way, until it is ended
 *     zeromq pull ENDPOINT BYTES SECONDS             takes what is pushed; prints messages a second
 *     zeromq router ENDPOINT BYTES                   answers every request with a message of that size, until it is ended
 *     zeromq dealer ENDPOINT BYTES SECONDS WINDOW    keeps so many requests in flight; prints answers a second and, with a window
 *                                                    of one, the median round trip in microseconds
 *
 * pull and router bind, the others connect. ZeroMQ batches by itself what its I/O thread finds in a socket's queue, and blocks
 * where there is nothing; a large message is sent from where it lies. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <zmq.h>

enum { WAIT_MS = 10000, LOOK_EVERY = 32, TIMES_MAX = 1 << 20, REQUEST_BYTES = 64, LARGE_BYTES = 8192 };
/* Messages that wait in a socket's queue at most: as many as hold this much memory, within limits. */
enum { QUEUED_BYTES = 64 << 20, QUEUED_MIN = 4, QUEUED_MAX = 10000 };

static void *socket_;
static size_t size;

static void check(int outcome, const char *what) {
    if (outcome < 0) {
        fprintf(stderr, "%s: %s\n", what, zmq_strerror(zmq_errno()));
        exit(1);
    }
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static void set(int option, int value) { check(zmq_setsockopt(socket_, option, &value, sizeof value), "zmq_setsockopt"); }

static void receive(size_t expected) {
    zmq_msg_t message;
    zmq_msg_init(&message);
    check(zmq_msg_recv(&message, socket_, 0), "zmq_msg_recv");
    if (expected && zmq_msg_size(&message) != expected) {
        fprintf(stderr, "%zu bytes came instead of %zu\n", zmq_msg_size(&message), expected);
        exit(1);
    }
    zmq_msg_close(&message);
}

static void send_(const void *bytes, size_t count, int flags) {
    int large = count >= LARGE_BYTES;
    check((large ? zmq_send_const : zmq_send)(socket_, bytes, count, flags), "zmq_send");
}

static int by_value(const void *a, const void *b) {
    double difference = *(const double *)a - *(const double *)b;
    return (difference > 0) - (difference < 0);
}

/* Messages that `exchange` completes in a second, after the first and a tenth of that time that is not counted. */
static double rate(void (*exchange)(void), double seconds) {
    exchange();
    double begun = now(), counts_from = begun + seconds / 10, from = 0, at;
    unsigned long count = 0;
    for (;;) {
        for (int i = 0; i < (size < LARGE_BYTES ? LOOK_EVERY : 1); i++, count++)
            exchange();
        at = now();
        if (!from && at >= counts_from)
            from = at, count = 0;
        else if (from && at >= counts_from + seconds)
            return count / (at - from);
    }
}

static void take(void) { receive(size); }

static void ask(void) {
    static const char request[REQUEST_BYTES];
    send_(request, sizeof request, 0);
}

static void ask_again(void) {
    receive(size);
    ask();
}

static void round_trips(double seconds) {
    static double times[TIMES_MAX];
    size_t count = 0;
    double begun = now(), before = begun;
    while (count < TIMES_MAX && before < begun + 1.1 * seconds) {
        ask();
        receive(size);
        double after = now();
        if (before >= begun + seconds / 10)
            times[count++] = after - before;
        before = after;
    }
    qsort(times, count, sizeof *times, by_value);
    printf("rtt_us %f\n", count ? times[count / 2] * 1e6 : 0.0);
}

int main(int argc, char **argv) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const char *role = argc > 3 ? argv[1] : "";
    int is_push = !strcmp(role, "push"), is_pull = !strcmp(role, "pull"), is_router = !strcmp(role, "router");
    int is_dealer = !strcmp(role, "dealer");
    if (is_push + is_pull + is_router + is_dealer == 0 || argc != 4 + is_pull + 2 * is_dealer) {
        fprintf(stderr, "usage: %s push|pull|router|dealer ENDPOINT BYTES [SECONDS [WINDOW]]\n", argv[0]);
        return 2;
    }
    size = strtoul(argv[3], NULL, 10);
    double seconds = argc > 4 ? strtod(argv[4], NULL) : 0;
    long window = argc > 5 ? strtol(argv[5], NULL, 10) : 0;
    void *context = zmq_ctx_new();
    socket_ = zmq_socket(context, is_push ? ZMQ_PUSH : is_pull ? ZMQ_PULL : is_router ? ZMQ_ROUTER : ZMQ_DEALER);
    long queued = QUEUED_BYTES / (long)(size ? size : 1);
    queued = queued < QUEUED_MIN ? QUEUED_MIN : queued > QUEUED_MAX ? QUEUED_MAX : queued;
    set(ZMQ_SNDHWM, queued);
    set(ZMQ_RCVHWM, queued);
    set(ZMQ_RCVTIMEO, WAIT_MS);
    set(ZMQ_SNDTIMEO, WAIT_MS);
    set(ZMQ_LINGER, 0);
    /* Nothing is queued before there is a connection. */
    set(ZMQ_IMMEDIATE, 1);
    check((is_pull || is_router ? zmq_bind : zmq_connect)(socket_, argv[2]), argv[2]);
    char *tensor = calloc(1, size);
    while (is_push)
        send_(tensor, size, 0);
    while (is_router) {
        char name[256];
        int length = zmq_recv(socket_, name, sizeof name, 0);
        check(length, "zmq_recv");
        receive(REQUEST_BYTES);
        send_(name, length, ZMQ_SNDMORE);
        send_(tensor, size, 0);
    }
    if (is_dealer && window == 1) {
        round_trips(seconds);
        return 0;
    }
    for (long i = 0; i < window; i++)
        ask();
    printf("per_second %f\n", rate(is_pull ? take : ask_again, seconds));
    return 0;
}
