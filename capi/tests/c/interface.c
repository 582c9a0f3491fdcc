/* A program in C that goes through the interface: as two tasks of the daemon whose socket is its argument. */
#include <pthread.h>
#include <sealane.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                     \
  do {                                                                       \
    if (!(condition)) {                                                      \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      abort();                                                               \
    }                                                                        \
  } while (0)

enum { TENSORS_MAX = 16 };

/* What callbacks have brought. */
typedef struct {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  int ended;
  int released;
  sealane_code code;
  size_t count;
  sealane_tensor *tensors[TENSORS_MAX];
} heard;

#define HEARD {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER}

static void hear(heard *heard, const sealane_error *error, sealane_tensor *const *tensors, size_t count) {
  pthread_mutex_lock(&heard->lock);
  heard->code = sealane_error_code(error);
  for (size_t index = 0; index < count; index++) {
    CHECK(heard->count < TENSORS_MAX);
    heard->tensors[heard->count++] = tensors[index];
  }
  heard->ended++;
  pthread_cond_broadcast(&heard->changed);
  pthread_mutex_unlock(&heard->lock);
}

static void done(void *context, const sealane_error *error) { hear(context, error, NULL, 0); }

static void received(void *context, const sealane_error *error, sealane_tensor *tensor) {
  hear(context, error, &tensor, error == NULL);
}

static void accepted(void *context, const sealane_error *error, sealane_tensor *const *tensors, size_t count) {
  hear(context, error, tensors, count);
}

static void released(void *context) {
  heard *heard = context;
  pthread_mutex_lock(&heard->lock);
  heard->released++;
  pthread_cond_broadcast(&heard->changed);
  pthread_mutex_unlock(&heard->lock);
}

static void wait_for(heard *heard, int ended, int released) {
  pthread_mutex_lock(&heard->lock);
  while (heard->ended < ended || heard->released < released) pthread_cond_wait(&heard->changed, &heard->lock);
  CHECK(heard->ended == ended && heard->released == released);
  pthread_mutex_unlock(&heard->lock);
}

static void must(sealane_error *error) {
  if (error != NULL) fprintf(stderr, "%s\n", sealane_error_message(error));
  CHECK(error == NULL);
}

static void must_refuse(sealane_error *error, sealane_code code) {
  CHECK(sealane_error_code(error) == code);
  CHECK(strlen(sealane_error_message(error)) > 0);
  sealane_error_free(error);
}

static const uint64_t shape[2] = {2, 3};

static sealane_source source_of(const float *values) {
  sealane_source source = {
      .meta = {.code = SEALANE_FLOAT, .bits = 32, .lanes = 1, .rank = 2, .dims = shape},
      .data = values,
      .bytes = 6 * sizeof *values,
  };
  return source;
}

static void check_values(sealane_view view, const float *values) {
  CHECK(view.meta.code == SEALANE_FLOAT && view.meta.bits == 32 && view.meta.lanes == 1 && view.meta.flags == 0);
  CHECK(view.meta.rank == 2 && view.meta.dims[0] == 2 && view.meta.dims[1] == 3);
  CHECK(view.bytes == 6 * sizeof *values && memcmp(view.data, values, view.bytes) == 0);
}

enum { ROWS = 1000 };

/* Rows of a table are pulled, blocking and not, pushed, accepted and added to it. */
static void check_tables(sealane_task *ps, sealane_task *worker, sealane_text to_ps) {
  heard got = HEARD, taken = HEARD, pushed = HEARD;
  sealane_text key = sealane_text_of("user"), queue = sealane_text_of("gradients/user");
  uint64_t dims[2] = {ROWS, 3}, ids[3] = {999, 0, 999};
  void *memory = NULL;
  must(sealane_alloc(ps, ROWS * 3 * sizeof(float), &memory));
  for (int index = 0; index < ROWS * 3; index++) ((float *)memory)[index] = (float)index;
  sealane_view whole = {
      .meta = {.code = SEALANE_FLOAT, .bits = 32, .lanes = 1, .rank = 2, .dims = dims},
      .data = memory,
      .bytes = ROWS * 3 * sizeof(float),
  };
  sealane_table *table = NULL;
  sealane_sharded_table *users = NULL;
  must(sealane_publish_table(ps, key, &whole, NULL, &table));
  must(sealane_sharded_table_new(key, &to_ps, 1, ROWS, SEALANE_SHARDING_RANGE, &users));

  float rows[9];
  sealane_tensor *tensor = NULL;
  must(sealane_pull_rows_wait(worker, users, ids, 3, rows, sizeof rows, NULL, &tensor));
  const float expected[9] = {2997, 2998, 2999, 0, 1, 2, 2997, 2998, 2999};
  CHECK(memcmp(rows, expected, sizeof rows) == 0 && sealane_tensor_view(tensor).data == rows);
  sealane_tensor_free(tensor);

  float ones[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
  uint64_t some[2] = {3, 3};
  sealane_view gradients = {.meta = whole.meta, .data = ones, .bytes = sizeof ones};
  gradients.meta.dims = some;
  sealane_acceptor *acceptor = NULL;
  must(sealane_acceptor_open(ps, queue, NULL, &acceptor));
  must(sealane_push_rows(worker, users, queue, ids, 3, &gradients, true, 0, done, &pushed, NULL));
  must(sealane_accept(acceptor, 1, 0, accepted, &taken, NULL));
  wait_for(&taken, 1, 0);
  wait_for(&pushed, 1, 0);
  const sealane_table_rows *sums = NULL;
  size_t tables = 0;
  must(sealane_pushed_rows(taken.tensors[0], &sums, &tables));
  CHECK(tables == 1 && sums->table.bytes == strlen("user") && memcmp(sums->table.start, "user", sums->table.bytes) == 0);
  CHECK(sums->count == 2 && sums->ids[0] == 0 && sums->ids[1] == 999 && sums->rows.meta.dims[0] == 2);
  must(sealane_table_add(table, sums->ids, sums->count, &sums->rows));
  must(sealane_set_versions(ps, &table, 1, 1));
  sealane_tensor_free(taken.tensors[0]);
  sealane_acceptor_close(acceptor);

  sealane_rows_options newer = {.size = sizeof newer, .min_version = 1};
  must(sealane_pull_rows(worker, users, ids, 3, NULL, &newer, received, &got, NULL));
  wait_for(&got, 1, 0);
  const float *now = sealane_tensor_view(got.tensors[0]).data;
  CHECK(now[0] == 2999 && now[3] == 1 && now[8] == 3001);
  sealane_missing_rows missing;
  CHECK(!sealane_tensor_missing(got.tensors[0], 0, &missing));
  sealane_tensor_free(got.tensors[0]);
  sealane_sharded_table_free(users);
  must(sealane_withdraw(ps, key));
  sealane_table_close(table);
}

/* Rows of two tables, each of another task, are pulled and pushed in one call. */
static void check_many_tables(sealane_task *ps, sealane_task *worker, sealane_text to_ps, sealane_text to_worker) {
  enum { TABLES = 2, FEW = 10 };
  sealane_task *tasks[TABLES] = {ps, worker};
  sealane_text owners[TABLES] = {to_ps, to_worker}, keys[TABLES] = {{"many/user", 9}, {"many/item", 9}};
  sealane_text queue = sealane_text_of("gradients/many");
  sealane_table *tables[TABLES];
  sealane_sharded_table *sharded[TABLES];
  sealane_acceptor *acceptors[TABLES];
  heard got = HEARD, pushed = HEARD, taken[TABLES] = {HEARD, HEARD};
  uint64_t dims[2] = {FEW, 2}, some[2] = {2, 2}, ids[TABLES][2] = {{9, 0}, {3, 3}};
  float values[FEW * 2], ones[4] = {1, 1, 1, 1}, rows[4];
  for (int index = 0; index < FEW * 2; index++) values[index] = (float)index;
  sealane_view whole = {
      .meta = {.code = SEALANE_FLOAT, .bits = 32, .lanes = 1, .rank = 2, .dims = dims},
      .data = values,
      .bytes = sizeof values,
  };
  sealane_view gradients = {.meta = whole.meta, .data = ones, .bytes = sizeof ones};
  gradients.meta.dims = some;
  sealane_wanted_rows wanted[TABLES];
  sealane_outgoing_rows outgoing[TABLES];
  for (int index = 0; index < TABLES; index++) {
    must(sealane_publish_table(tasks[index], keys[index], &whole, NULL, &tables[index]));
    must(sealane_sharded_table_new(keys[index], &owners[index], 1, 0, SEALANE_SHARDING_RANGE, &sharded[index]));
    must(sealane_acceptor_open(tasks[index], queue, NULL, &acceptors[index]));
    sealane_wanted_rows rows_of = {.table = sharded[index], .ids = ids[index], .count = 2};
    sealane_outgoing_rows rows_to = {.table = sharded[index], .ids = ids[index], .count = 2, .rows = gradients};
    wanted[index] = rows_of;
    outgoing[index] = rows_to;
  }

  /* The rows of the second go to memory of this function. */
  sealane_tensor *tensors[TABLES] = {NULL, NULL};
  wanted[1].destination.memory = rows;
  wanted[1].destination.bytes = sizeof rows;
  must(sealane_pull_all_rows_wait(worker, wanted, TABLES, NULL, tensors));
  const float of_user[4] = {18, 19, 0, 1}, of_item[4] = {6, 7, 6, 7};
  CHECK(memcmp(sealane_tensor_view(tensors[0]).data, of_user, sizeof of_user) == 0);
  CHECK(memcmp(rows, of_item, sizeof rows) == 0 && sealane_tensor_view(tensors[1]).data == rows);
  for (int index = 0; index < TABLES; index++) sealane_tensor_free(tensors[index]);

  must(sealane_push_all_rows(worker, queue, outgoing, TABLES, true, 0, done, &pushed, NULL));
  for (int index = 0; index < TABLES; index++) {
    const sealane_table_rows *sums = NULL;
    size_t count = 0;
    must(sealane_accept(acceptors[index], 1, 0, accepted, &taken[index], NULL));
    wait_for(&taken[index], 1, 0);
    must(sealane_pushed_rows(taken[index].tensors[0], &sums, &count));
    CHECK(count == 1 && sums->table.bytes == 9 && memcmp(sums->table.start, keys[index].start, 9) == 0);
    must(sealane_table_add(tables[index], sums->ids, sums->count, &sums->rows));
    must(sealane_table_set_version(tables[index], 1));
    sealane_tensor_free(taken[index].tensors[0]);
  }
  wait_for(&pushed, 1, 0);
  CHECK(pushed.code == SEALANE_CODE_OK);

  /* One of the rows is missing; a destination is released when its tensor is freed. */
  sealane_rows_options newer = {.size = sizeof newer, .min_version = 1, .partial = 1};
  sealane_missing_rows missing;
  ids[0][1] = FEW;
  wanted[1].destination.release = released;
  wanted[1].destination.release_context = &got;
  must(sealane_pull_all_rows(worker, wanted, TABLES, &newer, accepted, &got, NULL));
  wait_for(&got, 1, 0);
  CHECK(got.code == SEALANE_CODE_OK && got.count == TABLES);
  const float *now = sealane_tensor_view(got.tensors[0]).data;
  CHECK(now[0] == 19 && now[1] == 20 && rows[0] == 8 && rows[3] == 9);
  CHECK(sealane_tensor_missing(got.tensors[0], 0, &missing) && missing.count == 1 && missing.places[0] == 1);
  CHECK(sealane_error_code(missing.error) == SEALANE_CODE_INVALID_ARGUMENT);
  CHECK(!sealane_tensor_missing(got.tensors[1], 0, &missing));
  for (int index = 0; index < TABLES; index++) sealane_tensor_free(got.tensors[index]);
  wait_for(&got, 1, 1);

  wanted[1].table = NULL;
  must_refuse(sealane_pull_all_rows(worker, wanted, TABLES, NULL, accepted, &got, NULL), SEALANE_CODE_INVALID_ARGUMENT);
  wait_for(&got, 1, 1);
  for (int index = 0; index < TABLES; index++) {
    sealane_acceptor_close(acceptors[index]);
    sealane_sharded_table_free(sharded[index]);
    must(sealane_withdraw(tasks[index], keys[index]));
    sealane_table_close(tables[index]);
  }
}

static void check_fork(sealane_task *task) {
  void *memory = NULL;
  must(sealane_alloc(task, 1000, &memory));
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    int refused = sealane_error_code(sealane_cleanup(task, 1)) == SEALANE_CODE_INVALID_ARGUMENT;
    sealane_free(memory);
    sealane_detach(task);
    /* As another program: a checker of memory would call lost what the threads had that are not in this process. */
    execl("/bin/sh", "sh", "-c", refused ? "exit 0" : "exit 1", (char *)NULL);
    _exit(1);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  sealane_free(memory);
}

int main(int count, char **arguments) {
  CHECK(count == 2);
  CHECK(sealane_abi_version() == SEALANE_ABI_VERSION && strlen(sealane_version()) > 0);
  sealane_attach_options options = {.size = sizeof options, .socket = arguments[1], .arena_bytes = 4 << 20};
  /* As long as a loaded machine takes. */
  options.attach_timeout_ms = 60000;
  sealane_task *ps = NULL, *worker = NULL;
  must(sealane_attach("ps0.train:2222", &options, &ps));
  must(sealane_attach("worker0.train:2222", &options, &worker));
  must_refuse(sealane_attach("nobody:1", &options, &worker), SEALANE_CODE_NOT_FOUND);
  CHECK(strcmp(sealane_task_name(ps), "ps0.train:2222") == 0);
  sealane_text to_ps = sealane_text_of("ps0.train:2222"), to_worker = sealane_text_of("worker0.train:2222");
  sealane_text key = sealane_text_of("dense/kernel");
  float values[6] = {1, 2, 3, 4, 5, 6}, others[6] = {7, 8, 9, 10, 11, 12};
  sealane_source source = source_of(values);

  { /* A tensor that is copied, and one that lies in the arena and arrives in it. */
    heard sent = HEARD, got = HEARD;
    must(sealane_recv(worker, to_ps, 1, key, NULL, SEALANE_NO_TIMEOUT, received, &got, NULL));
    must(sealane_send(ps, to_worker, 1, key, &source, 0, done, &sent, NULL));
    wait_for(&got, 1, 0);
    wait_for(&sent, 1, 0);
    CHECK(got.code == SEALANE_CODE_OK && sent.code == SEALANE_CODE_OK);
    check_values(sealane_tensor_view(got.tensors[0]), values);
    CHECK(sealane_tensor_from(got.tensors[0]) == NULL);
    sealane_tensor_free(got.tensors[0]);
  }
  {
    enum { FLOATS = 4096 };
    heard sent = HEARD, got = HEARD;
    void *from = NULL, *to = NULL;
    must(sealane_alloc(ps, FLOATS * sizeof(float), &from));
    must(sealane_alloc(worker, FLOATS * sizeof(float), &to));
    CHECK(sealane_in_arena(ps, from, FLOATS * sizeof(float)) && !sealane_in_arena(ps, to, 1));
    for (int index = 0; index < FLOATS; index++) ((float *)from)[index] = (float)index;
    uint64_t length[1] = {FLOATS};
    sealane_source large = {
        .meta = {.code = SEALANE_FLOAT, .bits = 32, .lanes = 1, .rank = 1, .dims = length},
        .data = from,
        .bytes = FLOATS * sizeof(float),
        .release = released,
        .release_context = &sent,
    };
    sealane_destination destination = {
        .memory = to, .bytes = FLOATS * sizeof(float), .release = released, .release_context = &got};
    sealane_call *call = NULL;
    must(sealane_recv(worker, to_ps, 2, key, &destination, 0, received, &got, &call));
    must(sealane_send(ps, to_worker, 2, key, &large, 0, done, &sent, NULL));
    wait_for(&sent, 1, 1);
    wait_for(&got, 1, 0);
    sealane_view view = sealane_tensor_view(got.tensors[0]);
    CHECK(view.data == to && memcmp(to, from, view.bytes) == 0);
    sealane_tensor_free(got.tensors[0]);
    wait_for(&got, 1, 1);
    must(sealane_call_cancel(call)); /* It has ended: nothing happens. */
    sealane_call_free(call);
    sealane_free(from);
    sealane_free(to);
  }
  { /* A recv that is given up. */
    heard got = HEARD;
    sealane_call *call = NULL;
    must(sealane_recv(worker, to_ps, 3, key, NULL, 0, received, &got, &call));
    must(sealane_call_cancel(call));
    sealane_call_free(call);
    wait_for(&got, 1, 0);
    CHECK(got.code == SEALANE_CODE_CANCELLED);
  }
  { /* Many. */
    heard sent = HEARD, got = HEARD;
    sealane_item items[2] = {{.key = {"a", 1}, .source = source, .context = &sent},
                             {.key = {"b", 1}, .source = source_of(others), .context = &sent}};
    sealane_wanted wanted[2] = {{.key = {"a", 1}, .context = &got}, {.key = {"b", 1}, .context = &got}};
    must(sealane_recv_all(worker, to_ps, 4, wanted, 2, 0, received, NULL));
    must(sealane_send_all(ps, to_worker, 4, items, 2, 0, done, NULL));
    wait_for(&sent, 2, 0);
    wait_for(&got, 2, 0);
    for (int index = 0; index < 2; index++) sealane_tensor_free(got.tensors[index]);
  }
  { /* What is published is pulled, once and by a plan. */
    heard told = HEARD, got = HEARD, pulled = HEARD;
    sealane_item item = {.key = key, .source = source};
    sealane_plan *plan = NULL;
    sealane_view view;
    must(sealane_publish(ps, 5, &item, 1, done, &told, NULL));
    void *contexts[1] = {&got};
    must(sealane_pull(worker, to_ps, &key, 1, 5, 0, received, contexts, NULL));
    wait_for(&got, 1, 0);
    CHECK(sealane_tensor_view(got.tensors[0]).version == 5);
    sealane_tensor_free(got.tensors[0]);
    must(sealane_plan_open(worker, to_ps, &key, 1, &plan));
    must(sealane_plan_pull(plan, 5, 0, done, &pulled, NULL));
    wait_for(&pulled, 1, 0);
    must(sealane_plan_get(plan, 0, &view));
    check_values(view, values);
    CHECK(view.version == 5);
    must_refuse(sealane_plan_get(plan, 1, &view), SEALANE_CODE_INVALID_ARGUMENT);
    sealane_plan_close(plan);
    must(sealane_withdraw(ps, key));
    wait_for(&told, 1, 0);
  }
  { /* What is pushed is accepted. */
    heard pushed = HEARD, got = HEARD;
    sealane_acceptor *acceptor = NULL;
    sealane_source sources[2] = {source, source_of(others)};
    must(sealane_acceptor_open(ps, sealane_text_of("gradients"), NULL, &acceptor));
    must(sealane_push(worker, to_ps, sealane_text_of("gradients"), sources, 2, 0, done, &pushed, NULL));
    for (int ended = 1; got.count < 2; ended++) {
      must(sealane_accept(acceptor, 2, 0, accepted, &got, NULL));
      wait_for(&got, ended, 0);
    }
    wait_for(&pushed, 1, 0);
    CHECK(strcmp(sealane_tensor_from(got.tensors[0]), "worker0.train:2222") == 0);
    check_values(sealane_tensor_view(got.tensors[0]), values);
    check_values(sealane_tensor_view(got.tensors[1]), others);
    for (int index = 0; index < 2; index++) sealane_tensor_free(got.tensors[index]);
    sealane_acceptor_close(acceptor);
  }
  check_tables(ps, worker, to_ps);
  check_many_tables(ps, worker, to_ps, to_worker);
  { /* An aborted step, and a wrong call. */
    heard got = HEARD;
    must(sealane_recv(worker, to_ps, 6, key, NULL, 0, received, &got, NULL));
    must(sealane_abort(worker, 6, sealane_text_of("enough")));
    wait_for(&got, 1, 0);
    CHECK(got.code == SEALANE_CODE_ABORTED);
    must(sealane_cleanup(worker, 6));
    source.bytes--;
    must_refuse(sealane_send(ps, to_worker, 6, key, &source, 0, done, &got, NULL), SEALANE_CODE_INVALID_ARGUMENT);
  }
  check_fork(ps);

  heard left = HEARD;
  must(sealane_recv(worker, to_ps, 7, key, NULL, 0, received, &left, NULL));
  sealane_detach(worker);
  CHECK(left.ended == 1 && left.code == SEALANE_CODE_CANCELLED);
  sealane_detach(ps);
  puts("all is well");
  return 0;
}
