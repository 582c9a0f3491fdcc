// A CUDA driver for tests, over host memory: build it as `libcuda.so.1`, and load it before the program under test looks for one.
//
// A device's memory is at addresses that the host can neither read nor write: touching it is a segmentation fault, and only copies reach
// the bytes. Each stream is a thread that does its work in order, after the call has returned, so that what is used too soon is wrong.
// The functions that begin with `fake_` are for tests: they hold copies, let calls fail, lose the device, and count.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef int Status;
enum { OK = 0, INVALID = 1, NO_MEMORY = 2, NO_CONTEXT = 201, NOT_READY = 600, LOST = 719, NOT_REGISTERED = 713 };

enum { DEVICES = 2, BLOCKS = 1024, REGISTERED = 64 };
static const size_t RESERVED = (size_t)1 << 42;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static struct Block { char *handle, *bytes; size_t len; int device; } blocks[BLOCKS];
static struct { char *start; size_t len; } registered[REGISTERED];
static int held, lost;
static struct { char function[64]; Status status; int after; } failing;
static long pinned_copies, unpinned_copies, copied_bytes;
static __thread int current[16], depth;

typedef enum { COPY, RECORD, WAIT, CALL, NOTHING } Kind;
typedef struct Event { long recorded, passed; } Event;
typedef struct Work {
  Kind kind;
  char *to, *from;
  size_t len;
  Event *event;
  long number;
  void (*function)(void *);
  void *argument;
  struct Work *next;
} Work;
typedef struct Stream { Work *first, **last; pthread_t thread; int device; } Stream;
static Stream default_streams[DEVICES];

// The status that a test wants of this function, or OK. With the lock.
static Status wanted(const char *function) {
  if (lost) return LOST;
  if (strcmp(failing.function, function) != 0 || failing.after-- > 0) return OK;
  failing.function[0] = 0;
  return failing.status;
}

static Status asked(const char *function) {
  pthread_mutex_lock(&lock);
  Status status = wanted(function);
  pthread_mutex_unlock(&lock);
  return status;
}

// The bytes behind an address of a device, if all of them are in one block. With the lock.
static char *behind(const char *handle, size_t len) {
  for (int i = 0; i < BLOCKS; i++) {
    struct Block *block = &blocks[i];
    if (block->handle && handle >= block->handle && handle + len <= block->handle + block->len) return block->bytes + (handle - block->handle);
  }
  return NULL;
}

static int is_pinned(const char *start, size_t len) {
  for (int i = 0; i < REGISTERED; i++)
    if (registered[i].start && start >= registered[i].start && start + len <= registered[i].start + registered[i].len) return 1;
  return 0;
}

static void *run(void *argument) {
  Stream *stream = argument;
  pthread_mutex_lock(&lock);
  for (;;) {
    Work *work = stream->first;
    int waits = !work || lost || (work->kind == COPY && held) || (work->kind == WAIT && work->event->passed < work->number);
    if (waits) {
      pthread_cond_wait(&changed, &lock);
      continue;
    }
    if (work->kind == COPY) {
      pthread_mutex_unlock(&lock);
      memcpy(work->to, work->from, work->len);
      pthread_mutex_lock(&lock);
      copied_bytes += work->len;
    } else if (work->kind == RECORD) {
      work->event->passed = work->number;
    } else if (work->kind == CALL) {
      pthread_mutex_unlock(&lock);
      work->function(work->argument);
      pthread_mutex_lock(&lock);
    }
    stream->first = work->next;
    if (!stream->first) stream->last = &stream->first;
    free(work);
    pthread_cond_broadcast(&changed);
  }
  return NULL;
}

static void start(Stream *stream, int device) {
  stream->last = &stream->first;
  stream->device = device;
  pthread_create(&stream->thread, NULL, run, stream);
  pthread_detach(stream->thread);
}

// Numbers 0 to 2 are the default streams. With the lock.
static Stream *stream_of(void *handle) {
  if ((uintptr_t)handle > 2) return handle;
  Stream *stream = &default_streams[depth ? current[depth - 1] : 0];
  if (!stream->last) start(stream, depth ? current[depth - 1] : 0);
  return stream;
}

static Status put(void *handle, Work work) {
  Stream *stream = stream_of(handle);
  Work *added = malloc(sizeof *added);
  *added = work;
  added->next = NULL;
  *stream->last = added;
  stream->last = &added->next;
  pthread_cond_broadcast(&changed);
  return OK;
}

uintptr_t fake_allocate(int device, const void *bytes, size_t len);
int fake_read(uintptr_t device, void *to, size_t len);
void fake_free(uintptr_t device);

Status cuInit(unsigned flags) { (void)flags; return asked("cuInit"); }

Status cuDeviceGetCount(int *count) { *count = DEVICES; return OK; }

Status cuDeviceGet(int *device, int ordinal) {
  *device = ordinal;
  return ordinal < DEVICES ? OK : INVALID;
}

Status cuDeviceGetName(char *name, int len, int device) {
  snprintf(name, len, "Fake %d", device);
  return OK;
}

Status cuDevicePrimaryCtxRetain(void **context, int device) {
  *context = (void *)(uintptr_t)(device + 1);
  return asked("cuDevicePrimaryCtxRetain");
}

Status cuCtxPushCurrent_v2(void *context) {
  if (depth == 16) return INVALID;
  current[depth++] = (int)(uintptr_t)context - 1;
  return OK;
}

Status cuCtxPopCurrent_v2(void **context) {
  if (depth == 0) return NO_CONTEXT;
  *context = (void *)(uintptr_t)(current[--depth] + 1);
  return OK;
}

Status cuThreadExchangeStreamCaptureMode(int *mode) {
  static __thread int now;
  int before = now;
  now = *mode;
  *mode = before;
  return OK;
}

Status cuStreamSynchronize(void *stream) {
  pthread_mutex_lock(&lock);
  while (stream_of(stream)->first) pthread_cond_wait(&changed, &lock);
  pthread_mutex_unlock(&lock);
  return OK;
}

Status cuStreamCreate(void **handle, unsigned flags) {
  (void)flags;
  if (!depth) return NO_CONTEXT;
  Status status = asked("cuStreamCreate");
  if (status) return status;
  Stream *stream = calloc(1, sizeof *stream);
  start(stream, current[depth - 1]);
  *handle = stream;
  return OK;
}

Status cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
  (void)flags;
  pthread_mutex_lock(&lock);
  Status status = wanted("cuStreamWaitEvent");
  if (!status) status = put(stream, (Work){.kind = WAIT, .event = event, .number = ((Event *)event)->recorded});
  pthread_mutex_unlock(&lock);
  return status;
}

Status cuEventCreate(void **event, unsigned flags) {
  (void)flags;
  *event = calloc(1, sizeof(Event));
  return asked("cuEventCreate");
}

// Events are never freed: streams may still wait for them.
Status cuEventDestroy_v2(void *event) { (void)event; return OK; }

Status cuEventRecord(void *event, void *stream) {
  pthread_mutex_lock(&lock);
  Status status = wanted("cuEventRecord");
  if (!status) status = put(stream, (Work){.kind = RECORD, .event = event, .number = ++((Event *)event)->recorded});
  pthread_mutex_unlock(&lock);
  return status;
}

Status cuEventQuery(void *event) {
  pthread_mutex_lock(&lock);
  Status status = wanted("cuEventQuery");
  if (!status && ((Event *)event)->passed < ((Event *)event)->recorded) status = NOT_READY;
  pthread_mutex_unlock(&lock);
  return status;
}

Status cuLaunchHostFunc(void *stream, void (*function)(void *), void *argument) {
  pthread_mutex_lock(&lock);
  Status status = wanted("cuLaunchHostFunc");
  if (!status) status = put(stream, (Work){.kind = CALL, .function = function, .argument = argument});
  pthread_mutex_unlock(&lock);
  return status;
}

Status cuPointerGetAttribute(void *data, int attribute, uintptr_t device) {
  Status status = INVALID;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < BLOCKS; i++)
    if (attribute == 9 && blocks[i].handle && device >= (uintptr_t)blocks[i].handle && device < (uintptr_t)blocks[i].handle + blocks[i].len)
      *(int *)data = blocks[i].device, status = OK;
  pthread_mutex_unlock(&lock);
  return status;
}

Status cuMemHostRegister_v2(void *start, size_t len, unsigned flags) {
  (void)flags;
  pthread_mutex_lock(&lock);
  Status status = depth ? wanted("cuMemHostRegister") : NO_CONTEXT;
  int i = 0;
  while (!status && i < REGISTERED && registered[i].start) i++;
  if (!status && i == REGISTERED) status = NO_MEMORY;
  if (!status) registered[i].start = start, registered[i].len = len;
  pthread_mutex_unlock(&lock);
  return status;
}

Status cuMemHostUnregister(void *start) {
  Status status = NOT_REGISTERED;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < REGISTERED; i++)
    if (registered[i].start == start) registered[i].start = NULL, status = OK;
  pthread_mutex_unlock(&lock);
  return status;
}

static Status copy(const char *function, char *host, char *handle, size_t len, void *stream, int to_host) {
  pthread_mutex_lock(&lock);
  Status status = depth ? wanted(function) : NO_CONTEXT;
  char *bytes = behind(handle, len);
  if (!status && !bytes) status = INVALID;
  if (!status) {
    (is_pinned(host, len) ? pinned_copies++ : unpinned_copies++);
    status = put(stream, (Work){.kind = COPY, .to = to_host ? host : bytes, .from = to_host ? bytes : host, .len = len});
  }
  pthread_mutex_unlock(&lock);
  return status;
}

Status cuMemcpyDtoHAsync_v2(void *host, uintptr_t device, size_t len, void *stream) {
  return copy("cuMemcpyDtoHAsync", host, (char *)device, len, stream, 1);
}

Status cuMemcpyHtoDAsync_v2(uintptr_t device, const void *host, size_t len, void *stream) {
  return copy("cuMemcpyHtoDAsync", (char *)host, (char *)device, len, stream, 0);
}

Status cuMemAlloc_v2(uintptr_t *device, size_t len) {
  if (!depth) return NO_CONTEXT;
  Status status = asked("cuMemAlloc");
  if (status) return status;
  *device = fake_allocate(current[depth - 1], NULL, len);
  return *device ? OK : NO_MEMORY;
}

Status cuMemFree_v2(uintptr_t device) { fake_free(device); return OK; }

Status cuMemcpyDtoH_v2(void *host, uintptr_t device, size_t len) {
  return depth && fake_read(device, host, len) ? asked("cuMemcpyDtoH") : INVALID;
}

Status cuMemcpyHtoD_v2(uintptr_t device, const void *host, size_t len) {
  pthread_mutex_lock(&lock);
  char *bytes = depth ? behind((char *)device, len) : NULL;
  if (bytes) memcpy(bytes, host, len);
  pthread_mutex_unlock(&lock);
  return bytes ? OK : INVALID;
}

Status cuGetErrorName(Status status, const char **name) {
  *name = status == LOST ? "CUDA_ERROR_LAUNCH_FAILED" : status == NO_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
  return OK;
}

Status cuGetErrorString(Status status, const char **text) {
  *text = status == LOST ? "unspecified launch failure" : status == NO_MEMORY ? "out of memory" : "a fake error";
  return OK;
}

// Memory of a device, with these bytes; 0 if there are too many blocks.
uintptr_t fake_allocate(int device, const void *bytes, size_t len) {
  pthread_mutex_lock(&lock);
  int i = 0;
  while (i < BLOCKS && blocks[i].handle) i++;
  // One allocation begins where the last one has ended, as a driver's may.
  static char *next;
  if (!next) next = mmap(NULL, RESERVED, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  char *handle = i < BLOCKS && len < RESERVED / BLOCKS ? next : MAP_FAILED;
  if (handle != MAP_FAILED) {
    next += (len + 511) / 512 * 512;
    blocks[i] = (struct Block){handle, malloc(len), len, device};
    if (bytes) memcpy(blocks[i].bytes, bytes, len);
  }
  pthread_mutex_unlock(&lock);
  return handle == MAP_FAILED ? 0 : (uintptr_t)handle;
}

// The bytes that lie there now; 0 if it is no device's memory.
int fake_read(uintptr_t device, void *to, size_t len) {
  pthread_mutex_lock(&lock);
  char *bytes = behind((char *)device, len);
  if (bytes) memcpy(to, bytes, len);
  pthread_mutex_unlock(&lock);
  return bytes != NULL;
}

void fake_free(uintptr_t device) {
  pthread_mutex_lock(&lock);
  for (int i = 0; i < BLOCKS; i++)
    if (blocks[i].handle == (char *)device) {
      // Its addresses are not used again. What is written there later is written to nothing that counts.
      blocks[i].handle = NULL;
    }
  pthread_mutex_unlock(&lock);
}

// A stream as a framework has it.
void *fake_stream(int device) {
  Stream *stream = calloc(1, sizeof *stream);
  start(stream, device);
  return stream;
}

// A kernel: once the stream gets there, the bytes at `device` become these, which are copied now.
void fake_compute(void *stream, uintptr_t device, const void *bytes, size_t len) {
  pthread_mutex_lock(&lock);
  char *from = malloc(len);
  memcpy(from, bytes, len);
  put(stream, (Work){.kind = COPY, .to = behind((char *)device, len), .from = from, .len = len});
  pthread_mutex_unlock(&lock);
}

// Has the stream wait until the event that this gives is opened.
void *fake_gate(void *stream) {
  pthread_mutex_lock(&lock);
  Event *gate = calloc(1, sizeof *gate);
  put(stream, (Work){.kind = WAIT, .event = gate, .number = 1});
  pthread_mutex_unlock(&lock);
  return gate;
}

void fake_open(void *gate) {
  pthread_mutex_lock(&lock);
  ((Event *)gate)->passed = 1;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}

// Has `stream` wait for the work that is in `other`, as producers of DLPack's capsules do.
void fake_order(void *stream, void *other) {
  pthread_mutex_lock(&lock);
  Event *event = calloc(1, sizeof *event);
  put(other, (Work){.kind = RECORD, .event = event, .number = event->recorded = 1});
  put(stream, (Work){.kind = WAIT, .event = event, .number = 1});
  pthread_mutex_unlock(&lock);
}

// Copies wait from now on; or go on.
void fake_hold(int holds) {
  pthread_mutex_lock(&lock);
  held = holds;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}

// After `after` calls of this function the next one fails.
void fake_fail(const char *function, Status status, int after) {
  pthread_mutex_lock(&lock);
  snprintf(failing.function, sizeof failing.function, "%s", function);
  failing.status = status, failing.after = after;
  pthread_mutex_unlock(&lock);
}

// Every call fails from now on, and what is in the streams stays there; or the device is back.
void fake_lose(int is_lost) {
  pthread_mutex_lock(&lock);
  lost = is_lost;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}

// Copies from and to pinned memory, from and to other memory, bytes of those that were made, and registered pieces.
void fake_counts(long counts[4]) {
  pthread_mutex_lock(&lock);
  counts[0] = pinned_copies, counts[1] = unpinned_copies, counts[2] = copied_bytes, counts[3] = 0;
  for (int i = 0; i < REGISTERED; i++) counts[3] += registered[i].start != NULL;
  pthread_mutex_unlock(&lock);
}
