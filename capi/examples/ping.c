/* Two processes that are tasks of one host's daemon, or of two, send each other a tensor again and again:
 *
 *   cc ping.c $(pkg-config --cflags --libs sealane) -pthread -o ping
 *   ./ping ps0.train:2222 worker0.train:2222 1000 &
 *   ./ping worker0.train:2222 ps0.train:2222 1000
 *
 * A fourth argument is the daemon's socket, where it is not at its default place. */
#include <pthread.h>
#include <sealane.h>
#include <stdio.h>
#include <stdlib.h>

/* What the main thread waits for. */
typedef struct {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  int ended;
  sealane_tensor *tensor;
  int failed;
} wait_for;

static void end(wait_for *wait, const sealane_error *error, sealane_tensor *tensor) {
  if (error != NULL) fprintf(stderr, "ping: %s\n", sealane_error_message(error));
  pthread_mutex_lock(&wait->lock);
  wait->ended++;
  wait->failed |= error != NULL;
  if (tensor != NULL) wait->tensor = tensor;
  pthread_cond_signal(&wait->changed);
  pthread_mutex_unlock(&wait->lock);
}

/* Both are called on the library's thread. */
static void sent(void *context, const sealane_error *error) { end(context, error, NULL); }
static void received(void *context, const sealane_error *error, sealane_tensor *tensor) { end(context, error, tensor); }

static void must(sealane_error *error) {
  if (error == NULL) return;
  fprintf(stderr, "ping: %s\n", sealane_error_message(error));
  sealane_error_free(error);
  exit(1);
}

int main(int count, char **arguments) {
  if (count < 4) {
    fprintf(stderr, "usage: ping TASK PEER ROUNDS [SOCKET]\n");
    return 2;
  }
  sealane_attach_options options = {.size = sizeof options, .socket = count > 4 ? arguments[4] : NULL};
  sealane_task *task = NULL;
  must(sealane_attach(arguments[1], &options, &task));
  sealane_text peer = sealane_text_of(arguments[2]), key = sealane_text_of("ping");
  long rounds = strtol(arguments[3], NULL, 10);
  float sum = 0;
  for (long step = 0; step < rounds; step++) {
    float values[3] = {1, 2, (float)step};
    uint64_t shape[1] = {3};
    sealane_source source = {
        .meta = {.code = SEALANE_FLOAT, .bits = 32, .lanes = 1, .rank = 1, .dims = shape},
        .data = values,
        .bytes = sizeof values,
    };
    wait_for wait = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    must(sealane_send(task, peer, step, key, &source, 0, sent, &wait, NULL));
    must(sealane_recv(task, peer, step, key, NULL, 0, received, &wait, NULL));
    pthread_mutex_lock(&wait.lock);
    while (wait.ended < 2) pthread_cond_wait(&wait.changed, &wait.lock);
    pthread_mutex_unlock(&wait.lock);
    if (wait.failed) return 1;
    sealane_view view = sealane_tensor_view(wait.tensor);
    sum += ((const float *)view.data)[2];
    sealane_tensor_free(wait.tensor);
  }
  sealane_detach(task);
  printf("%ld rounds, sum %.0f\n", rounds, sum);
  return 0;
}
