/* The C interface of Sealane: a process's tensors to and from other hosts' and processes'.
 *
 * Made of the library's source by `cargo xtask docs`: change it there.
 *
 * A process attaches to its host's daemon (sealane_attach), or starts an engine of its own (sealane_embedded), as a task
 * of the endpoint map. What it sends, the peer receives by the same step and key (sealane_send, sealane_recv); what it
 * publishes, peers pull as often as they like (sealane_publish, sealane_pull, sealane_plan_pull); what it pushes, the peer's
 * acceptor takes in the order of its coming (sealane_push, sealane_accept). Of tables, rows are pulled and pushed by their
 * numbers (sealane_publish_table, sealane_pull_rows, sealane_push_rows). Bytes that are no tensors pass through streams
 * (sealane_stream_dial, sealane_stream_accept), whose functions block as those of sockets do.
 *
 * Errors: functions return NULL or an error, which the caller frees; see sealane_error. A function that returns an error has
 * taken over nothing: no callback will be called, no memory released. Only sealane_publish_table keeps memory all the same.
 *
 * Callbacks: calls that take time end with one; see sealane_done for when, where and what it may do.
 *
 * Threads: any function may be called by any thread, unless it frees or closes what others are using.
 *
 * Memory: pointers that functions are given are read before they return, except tensors and destinations with a release; see
 * sealane_source and sealane_destination.
 *
 * Units: times are milliseconds or, where the name says so, microseconds; sizes are bytes.
 *
 * Unloading: once a task was made, the library is not to be unloaded (dlclose).
 *
 * Forks: the child of a process cannot use what its parent made, and is told so; it may attach as another task.
 */


#ifndef SEALANE_H
#define SEALANE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
/** As the bytes of a text: it ends in NUL. */
#define SEALANE_NUL_TERMINATED SIZE_MAX


/**
 * The version of this interface. It is incremented when programs compiled with an older header would no longer work; additions
 * do not change it.
 */
#define SEALANE_ABI_VERSION 1

/**
 * Value of a call's timeout: no limit.
 */
#define SEALANE_NO_TIMEOUT -1

/**
 * Flag: a dead tensor, as TensorFlow's control flow sends it for a branch that was not taken. It has no bytes, and its shape is
 * ignored.
 */
#define SEALANE_DEAD 1

/**
 * Flag: a tensor of byte strings. Its type is bytes (code SEALANE_UINT, 8 bits, 1 lane); its data is one uint64_t
 * offset per string and one for the end, relative to the first text byte, followed by the texts without separators.
 */
#define SEALANE_STRINGS 2

/**
 * DLPack's code of signed integers.
 */
#define SEALANE_INT 0

/**
 * DLPack's code of unsigned integers.
 */
#define SEALANE_UINT 1

/**
 * DLPack's code of IEEE floating-point numbers.
 */
#define SEALANE_FLOAT 2

/**
 * DLPack's code of an opaque handle: with 8 bits, bytes that only the two sides understand; their number is the only
 * dimension.
 */
#define SEALANE_OPAQUE 3

/**
 * DLPack's code of bfloat16.
 */
#define SEALANE_BFLOAT 4

/**
 * DLPack's code of complex numbers; bits are those of both parts.
 */
#define SEALANE_COMPLEX 5

/**
 * DLPack's code of booleans.
 */
#define SEALANE_BOOL 6

/**
 * Maximum number of dimensions of a tensor.
 */
#define SEALANE_RANK_MAX 254

/**
 * Value of idle_spin_us: waiting threads never sleep.
 */
#define SEALANE_NEVER_SLEEP -1

/**
 * Value of idle_spin_us: waiting threads sleep immediately.
 */
#define SEALANE_SLEEP_AT_ONCE -2

/**
 * Value of restart_timeout_ms: no function waits for a daemon.
 */
#define SEALANE_DO_NOT_WAIT -1

/**
 * Value of direction: from the task to its peer.
 */
#define SEALANE_SENT 1

/**
 * Value of direction: from the peer to the task.
 */
#define SEALANE_RECEIVED 2

/**
 * Value of sharding: consecutive rows go to one owner. With n owners, row i is row i % m of owner i / m, where m is rows / n rounded up.
 */
#define SEALANE_SHARDING_RANGE 1

/**
 * Value of sharding: row i is row i / n of owner i % n.
 */
#define SEALANE_SHARDING_MODULO 2

/**
 * Value of sharding: rows are scattered, by a hash that is the same in every release.
 */
#define SEALANE_SHARDING_HASH 3

/**
 * The canonical gRPC codes that Sealane uses.
 */
enum sealane_code
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * Success.
   */
  SEALANE_CODE_OK = 0,
  /**
   * The call was cancelled: by sealane_call_cancel, or because its plan, acceptor or task was closed or detached.
   */
  SEALANE_CODE_CANCELLED = 1,
  /**
   * An argument is invalid, whatever the state.
   */
  SEALANE_CODE_INVALID_ARGUMENT = 3,
  /**
   * The deadline passed; see sealane_error_delivery_unknown.
   */
  SEALANE_CODE_DEADLINE_EXCEEDED = 4,
  /**
   * The task is not in the endpoint map, or not served at its address.
   */
  SEALANE_CODE_NOT_FOUND = 5,
  /**
   * The peer or the daemon refuses this process.
   */
  SEALANE_CODE_PERMISSION_DENIED = 7,
  /**
   * A limit was reached; the message names it.
   */
  SEALANE_CODE_RESOURCE_EXHAUSTED = 8,
  /**
   * The step was aborted, or the engine is stopping.
   */
  SEALANE_CODE_ABORTED = 10,
  /**
   * The peer or this build does not support the operation.
   */
  SEALANE_CODE_UNIMPLEMENTED = 12,
  /**
   * An internal error of the library.
   */
  SEALANE_CODE_INTERNAL = 13,
  /**
   * The daemon or the peer cannot be reached, or was lost.
   */
  SEALANE_CODE_UNAVAILABLE = 14,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum sealane_code sealane_code;
#else
typedef int32_t sealane_code;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * The receiving end of a queue. Usable from any thread.
 */
typedef struct sealane_acceptor sealane_acceptor;

/**
 * Handle of a started call, for cancelling it. Free it with sealane_call_free, on any thread, before or after the call has
 * ended.
 */
typedef struct sealane_call sealane_call;

/**
 * Why something failed: a code and a message.
 *
 * A function that can fail returns NULL on success, else an error that the caller frees with sealane_error_free. An error
 * passed to a callback belongs to the library, which frees it when the callback returns. Any thread may read it.
 */
typedef struct sealane_error sealane_error;

/**
 * A set of keys published by a peer that are pulled together repeatedly, into the same memory each time. Usable from any
 * thread; one pull at a time.
 */
typedef struct sealane_plan sealane_plan;

/**
 * A table that one task has published, or several, each a part of it under the same key. Usable from any thread and with any task.
 */
typedef struct sealane_sharded_table sealane_sharded_table;

/**
 * A stream of bytes to and from another task: ordered, reliable, flow-controlled. One thread may read while another writes.
 * Its process being lost is SEALANE_CODE_UNAVAILABLE. Close it with sealane_stream_close, even if its task was detached, which stays
 * attached as long as it has streams.
 */
typedef struct sealane_stream sealane_stream;

/**
 * Accepts streams by a name. Usable from any thread. Close it with sealane_stream_listener_close.
 */
typedef struct sealane_stream_listener sealane_stream_listener;

/**
 * A table that this task publishes: others pull its rows (sealane_pull_rows), and this process writes them. Usable from any thread.
 */
typedef struct sealane_table sealane_table;

/**
 * A task of this process, created by sealane_attach or sealane_embedded. Any number of threads may use it, until one of them
 * detaches it.
 */
typedef struct sealane_task sealane_task;

/**
 * A tensor that was received, pulled or accepted. The callback owns it and frees it with sealane_tensor_free, then or later,
 * on any thread; it may outlive its task. Its memory stays in use until then.
 */
typedef struct sealane_tensor sealane_tensor;

/**
 * Type, shape and flags of a tensor.
 */
typedef struct {
  /**
   * DLPack's DLDataTypeCode: SEALANE_FLOAT, for example. Codes up to 17 (DLPack 1.1) are known.
   */
  uint8_t code;
  /**
   * Bits of one lane, 1 to 255. Elements of fewer than 8 are packed.
   */
  uint8_t bits;
  /**
   * Lanes of one element; 1 unless elements are vectors.
   */
  uint16_t lanes;
  /**
   * 0, or SEALANE_DEAD or SEALANE_STRINGS.
   */
  uint8_t flags;
  /**
   * Number of dimensions, 0 to SEALANE_RANK_MAX; 0 for a scalar.
   */
  uint8_t rank;
  /**
   * 0.
   */
  uint16_t reserved;
  /**
   * The dimensions, outermost first. May be NULL if there are none.
   */
  const uint64_t *dims;
} sealane_meta;

/**
 * Type, shape and bytes of a tensor. The pointers are valid as long as the tensor; each function says how long that is.
 */
typedef struct {
  /**
   * Type, shape and flags.
   */
  sealane_meta meta;
  /**
   * The bytes: row-major, little-endian, contiguous. Never NULL, even for 0 bytes.
   */
  const void *data;
  /**
   * Number of bytes.
   */
  size_t bytes;
  /**
   * The version of a pulled tensor, else 0.
   */
  int64_t version;
} sealane_view;

/**
 * Options for attaching. Set `size` to the struct's `sizeof`; fields that are 0 take their defaults.
 */
typedef struct {
  /**
   * sizeof(sealane_attach_options), so that later headers can add fields.
   */
  size_t size;
  /**
   * The daemon's socket, a NUL-terminated path. Default: the first sealane.sock at which a daemon listens, of those in
   * $XDG_RUNTIME_DIR, in /tmp/sealane-UID (this user's alone), in /run/user/UID and in /run/sealane.
   */
  const char *socket;
  /**
   * Size in bytes of the memory shared with the daemon, for tensors to send and receive. Default 512 MiB, or less where the
   * daemon grants less. The first 8 MiB are allocated when the client attaches, the rest on first use.
   */
  uint64_t arena_bytes;
  /**
   * How many microseconds a waiting thread spins before it sleeps, SEALANE_NEVER_SLEEP or SEALANE_SLEEP_AT_ONCE. Default 50,
   * and none where that does not pay: on one CPU, where answers take longer, or other threads want the CPU.
   */
  int64_t idle_spin_us;
  /**
   * How many milliseconds attaching may take, now and after a restart of the daemon. Default 5000.
   */
  int64_t attach_timeout_ms;
  /**
   * How many milliseconds functions wait for the next daemon after one has drained, or SEALANE_DO_NOT_WAIT: then no function
   * waits for a drained or dead daemon. Functions that start calls fail immediately with SEALANE_CODE_UNAVAILABLE, and a
   * thread of the library attaches again. Default 30000, at most a day.
   */
  int64_t restart_timeout_ms;
  /**
   * How many calls may wait in this process for a slow daemon. Functions that would start one more fail with
   * SEALANE_CODE_RESOURCE_EXHAUSTED. Default 262144.
   */
  uint64_t backlog_calls_max;
  /**
   * How many bytes they may have, including tensors that wait for room in the arena. Default 256 MiB.
   */
  uint64_t backlog_bytes_max;
  /**
   * The name of the job that this process belongs to, terminated by NUL: 1 to 64 printable ASCII characters without spaces. A
   * daemon of another job, or of none, refuses the process. Default: $SEALANE_JOB if set and not empty, else the daemon's job.
   */
  const char *job;
  /**
   * If not 0, and another process of this user is attached as the task, that process is detached. Its functions fail with
   * SEALANE_CODE_UNAVAILABLE, and it does not attach again.
   */
  uint64_t replace;
} sealane_attach_options;

/**
 * Options for starting an engine. Set `size` to the struct's `sizeof`; fields that are 0 take their defaults.
 */
typedef struct {
  /**
   * sizeof(sealane_embedded_options), so that later headers can add fields.
   */
  size_t size;
  /**
   * Number of the engine's threads. Default 1.
   */
  uint64_t shards;
  /**
   * How many microseconds an idle thread spins before it sleeps, SEALANE_NEVER_SLEEP or
   * SEALANE_SLEEP_AT_ONCE. Default 200.
   */
  int64_t idle_spin_us;
  /**
   * Default timeout of calls in milliseconds, or SEALANE_NO_TIMEOUT. Default 600000.
   */
  int64_t request_timeout_ms;
  /**
   * A file with the secret that peers share. Default: none.
   */
  const char *secret_file;
  /**
   * A file with this side's certificate in PEM; requires tls_key and tls_authorities, and excludes secret_file. Default:
   * none.
   */
  const char *tls_certificate;
  /**
   * The file with its key.
   */
  const char *tls_key;
  /**
   * The file with the trusted authorities.
   */
  const char *tls_authorities;
  /**
   * Not 0: listen on addresses that other hosts can reach even without a secret or certificates. Default 0: without them,
   * only on loopback addresses.
   */
  uint64_t insecure;
} sealane_embedded_options;

/**
 * UTF-8 text: the name of a task, a key, a queue's name. Need not be NUL-terminated. Read before the function returns.
 */
typedef struct {
  /**
   * The first byte. May be NULL if there are none.
   */
  const char *start;
  /**
   * Length in bytes, or SEALANE_NUL_TERMINATED.
   */
  size_t bytes;
} sealane_text;

/**
 * Called when the library no longer uses memory that was lent to it: once per accepted call, on the thread of the task's
 * callbacks (see sealane_done), before or after the call's own callback. Memory that a peer or the daemon may still use when
 * the task is detached is released later, or never.
 */
typedef void (*sealane_release)(void *context);

/**
 * A tensor to send, publish or push.
 */
typedef struct {
  /**
   * Type and shape.
   */
  sealane_meta meta;
  /**
   * The bytes: row-major, little-endian, contiguous. May be NULL if there are none.
   */
  const void *data;
  /**
   * Number of bytes; must match type and shape.
   */
  size_t bytes;
  /**
   * NULL: the bytes are copied before the function returns. Otherwise they must not change until this is called. An attached
   * task sends memory of its arena (sealane_alloc) in place, and copies other memory of more than 512 bytes into the arena:
   * before the function returns or, if the arena is full, as soon as there is room.
   */
  sealane_release release;
  /**
   * Passed to release.
   */
  void *release_context;
} sealane_source;

/**
 * Called when a call has ended: with NULL on success, else with the error, which belongs to the library and is valid until
 * this returns.
 *
 * If the function that starts a call returns NULL, the callback is called exactly once, whatever happens; if it returns an
 * error, never. All callbacks of a task run one after the other on one thread of the library: never within the function that
 * started the call, and with no lock of the library held. So a callback may call any function of this header; while it runs,
 * the task's other callbacks wait. It must not throw. In the child of a fork, no callbacks are called. While a drained daemon
 * is being replaced, callbacks may wait for the next one.
 */
typedef void (*sealane_done)(void *context, const sealane_error *error);

/**
 * One of many tensors that are sent or published together.
 */
typedef struct {
  /**
   * Its name.
   */
  sealane_text key;
  /**
   * The tensor.
   */
  sealane_source source;
  /**
   * Passed to the callback of sealane_send_all for this tensor; other functions ignore it.
   */
  void *context;
} sealane_item;

/**
 * Memory that a recv writes its tensor to. Only the library may use it until release is called, which is not before the tensor
 * is freed.
 */
typedef struct {
  /**
   * The first byte. NULL: no destination, and the tensor arrives in the library's memory. An attached task writes memory of
   * its arena (sealane_alloc) in place, and other memory by a copy.
   */
  void *memory;
  /**
   * Length in bytes. If a longer tensor arrives, the recv ends with SEALANE_CODE_INVALID_ARGUMENT, and may be repeated.
   */
  size_t bytes;
  /**
   * Must not be NULL unless memory is. For sealane_pull_all_rows_wait, which calls none, it must be NULL.
   */
  sealane_release release;
  /**
   * Passed to release.
   */
  void *release_context;
} sealane_destination;

/**
 * The same for a call that returns a tensor, which the callback must free; NULL if there is an error.
 */
typedef void (*sealane_received)(void *context, const sealane_error *error, sealane_tensor *tensor);

/**
 * One of many tensors that are requested together.
 */
typedef struct {
  /**
   * Its name.
   */
  sealane_text key;
  /**
   * Where to write it; memory is NULL if the library is to provide it.
   */
  sealane_destination destination;
  /**
   * Passed to the callback for this tensor.
   */
  void *context;
} sealane_wanted;

/**
 * Capacity of a queue. Set `size` to the struct's `sizeof`; fields that are 0 take their defaults.
 */
typedef struct {
  /**
   * sizeof(sealane_accept_options), so that later headers can add fields.
   */
  size_t size;
  /**
   * Waiting tensors. Default 4096.
   */
  uint64_t tensors_max;
  /**
   * Their bytes; the queue is full when there are as many or more. Default 256 MiB; for an attached task at most half of the
   * daemon's memory for received tensors.
   */
  uint64_t bytes_max;
} sealane_accept_options;

/**
 * Called when a call has ended that returns any number of tensors: with the tensors, each of which the callback must free, in an
 * array that is valid until this returns; or with the error and no tensors. Otherwise like sealane_done.
 */
typedef void (*sealane_received_all)(void *context,
                                     const sealane_error *error,
                                     sealane_tensor *const *tensors,
                                     size_t count);

/**
 * Called when an accept has ended: with the tensors that were taken, or the error.
 */
typedef sealane_received_all sealane_accepted;

/**
 * How a table is published. Set `size` to the struct's `sizeof`; fields that are 0 take their defaults.
 */
typedef struct {
  /**
   * sizeof(sealane_table_options), so that later headers can add fields.
   */
  size_t size;
  /**
   * The version that it has first. Default 0.
   */
  int64_t version;
  /**
   * Not 0: whoever reads a row that is written meanwhile may get half of it (Hogwild), which saves some nanoseconds a row, and the
   * table may also be pulled as one tensor. Default 0: rows are whole.
   */
  uint64_t torn;
} sealane_table_options;

/**
 * How rows are pulled. Set `size` to the struct's `sizeof`; fields that are 0 take their defaults.
 */
typedef struct {
  /**
   * sizeof(sealane_rows_options), so that later headers can add fields.
   */
  size_t size;
  /**
   * The oldest version of the table that will do; INT64_MIN for any. Default 0, which tables have first.
   */
  int64_t min_version;
  /**
   * How many milliseconds to wait, or SEALANE_NO_TIMEOUT. Default: that of the daemon or the engine.
   */
  int64_t timeout_ms;
  /**
   * Not 0: rows that their table does not have, or whose owner is gone or does not answer in time, are left out, and
   * sealane_tensor_missing names them. Default 0: the call fails with the first error.
   */
  uint64_t partial;
  /**
   * Not 0: an owner whose process has left is waited for, since it may come back. Default 0: its rows fail at once with
   * SEALANE_CODE_UNAVAILABLE; an owner that was never there is waited for.
   */
  uint64_t wait_if_gone;
} sealane_rows_options;

/**
 * Rows of one table that are to be pulled.
 */
typedef struct {
  /**
   * The table.
   */
  const sealane_sharded_table *table;
  /**
   * The rows' numbers. May be NULL if there are none.
   */
  const uint64_t *ids;
  /**
   * How many.
   */
  size_t count;
  /**
   * Where to write the rows, exactly as long as they are, and no other table's; memory is NULL if the library is to provide it.
   */
  sealane_destination destination;
} sealane_wanted_rows;

/**
 * Rows of one owner that did not come.
 */
typedef struct {
  /**
   * The owner's name; not NUL-terminated. Empty for rows that lie beyond the whole table.
   */
  sealane_text owner;
  /**
   * Their places in what was asked for, in no order.
   */
  const uint32_t *places;
  /**
   * How many.
   */
  size_t count;
  /**
   * Why they did not come, the first of them.
   */
  const sealane_error *error;
} sealane_missing_rows;

/**
 * Rows of one table that are to be pushed. Read before the function returns.
 */
typedef struct {
  /**
   * The table.
   */
  const sealane_sharded_table *table;
  /**
   * The rows' numbers. May be NULL if there are none.
   */
  const uint64_t *ids;
  /**
   * How many.
   */
  size_t count;
  /**
   * A tensor with one row for each number.
   */
  sealane_view rows;
} sealane_outgoing_rows;

/**
 * Rows of one table that were pushed.
 */
typedef struct {
  /**
   * The table's key; not NUL-terminated.
   */
  sealane_text table;
  /**
   * The rows' numbers in the part of the task that accepts them.
   */
  const uint64_t *ids;
  /**
   * How many.
   */
  size_t count;
  /**
   * The rows.
   */
  sealane_view rows;
} sealane_table_rows;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The library's interface version; compare it with SEALANE_ABI_VERSION of the header.
 */
uint32_t sealane_abi_version(void);

/**
 * The release of the library, such as "0.2.0". Valid as long as the library is loaded.
 */
const char *sealane_version(void);

/**
 * The code of an error; SEALANE_CODE_OK for NULL.
 */
sealane_code sealane_error_code(const sealane_error *error);

/**
 * The message of an error: UTF-8, NUL-terminated, valid as long as the error. "" for NULL.
 */
const char *sealane_error_message(const sealane_error *error);

/**
 * True if a send or push ended at its deadline while its tensor was in transit, so that it may or may not arrive. False for
 * NULL.
 */
bool sealane_error_delivery_unknown(const sealane_error *error);

/**
 * Frees an error returned by a function; does nothing with NULL. Not for errors passed to a callback.
 */
void sealane_error_free(sealane_error *error);

/**
 * Type, shape and bytes of a tensor. Valid until the tensor is freed. For NULL, a dead tensor.
 */
sealane_view sealane_tensor_view(const sealane_tensor *tensor);

/**
 * The task that pushed an accepted tensor; else NULL. NUL-terminated, valid until the tensor is freed.
 */
const char *sealane_tensor_from(const sealane_tensor *tensor);

/**
 * Frees a tensor; does nothing with NULL.
 */
void sealane_tensor_free(sealane_tensor *tensor);

/**
 * Cancels a call: its callback is called with SEALANE_CODE_CANCELLED, unless the call has ended. This does not wait for that.
 * A recv or pull is cancelled here and at the peer; a send, push or publication continues unobserved.
 */
sealane_error *sealane_call_cancel(sealane_call *call);

/**
 * Frees the handle of a call without cancelling it; does nothing with NULL.
 */
void sealane_call_free(sealane_call *call);

/**
 * Attaches this process to the host's daemon as a task, named as in the endpoint map and terminated by NUL.
 *
 * If options is NULL, all options have their defaults. After a restart of the daemon, the first call that reaches it attaches
 * again, or a background thread does (restart_timeout_ms): calls that were in flight end with SEALANE_CODE_UNAVAILABLE,
 * what the task has published is published again by a background thread, and the arena is a new one.
 *
 * Fails with SEALANE_CODE_UNAVAILABLE if no daemon listens at the socket, SEALANE_CODE_NOT_FOUND if it does not serve the
 * task, SEALANE_CODE_PERMISSION_DENIED if it does not admit this user or serves another job.
 */
sealane_error *sealane_attach(const char *task,
                              const sealane_attach_options *options,
                              sealane_task **attached);

/**
 * Starts an engine in this process for one task of the endpoint map, and listens on that task's transport address. The task's
 * name and the map's path are NUL-terminated. If options is NULL, all options have their defaults.
 *
 * Fails with SEALANE_CODE_UNAVAILABLE if the address cannot be listened on, SEALANE_CODE_UNIMPLEMENTED if the library was built
 * without engines.
 */
sealane_error *sealane_embedded(const char *endpoint_map,
                                const char *task,
                                const sealane_embedded_options *options,
                                sealane_task **embedded);

/**
 * The task's name, as it was attached. NUL-terminated, valid until the task is detached. NULL for NULL.
 */
const char *sealane_task_name(const sealane_task *task);

/**
 * Detaches the task, or stops its engine, and frees it; does nothing with NULL.
 *
 * Calls in progress end with SEALANE_CODE_CANCELLED, and their callbacks have returned when this does; a send or push
 * continues as far as it can. Those callbacks may still call functions with the task, but no new calls are started. If this is
 * called from a callback of the task, it does not wait for the other callbacks, which must not use the task. Tensors stay
 * readable and memory from sealane_alloc usable; plans and acceptors can only be closed. In the child of a fork it does
 * nothing.
 *
 * No other function may be using the task, its plans or its acceptors at this time, nor the task afterwards.
 */
void sealane_detach(sealane_task *task);

/**
 * Ends a step of this task, here and at its peers: every waiting recv of it ends with SEALANE_CODE_ABORTED and the reason,
 * waiting tensors are freed, and later calls fail the same way until sealane_cleanup.
 */
sealane_error *sealane_abort(sealane_task *task,
                             int64_t step,
                             sealane_text reason);

/**
 * Frees everything left of a step of this task: waiting tensors, waiting requests, and the record of an abort. The step's
 * number may be used again. A recv of a peer that is made before the word of it has come there may still get a small tensor (4 KiB)
 * that was sent.
 */
sealane_error *sealane_cleanup(sealane_task *task,
                               int64_t step);

/**
 * Records that this many tensors went to the task `peer` (SEALANE_SENT), or came from it (SEALANE_RECEIVED), over another transport such as gRPC. They
 * are reported to the daemon at most once a second, at the task's next calls or when it is detached; the daemon shows them next to those that
 * Sealane carried, in `sealane stat` and in its metrics, separately for up to 1,024 peers and together beyond that. Never waits. Ignored with an
 * embedded engine.
 */
sealane_error *sealane_note_elsewhere(sealane_task *task,
                                      sealane_text peer,
                                      int32_t direction,
                                      uint64_t tensors,
                                      uint64_t bytes);

/**
 * Whether the current endpoint map of the daemon or the engine has a task. Waits for the answer, usually microseconds.
 */
sealane_error *sealane_knows_task(sealane_task *task,
                                  sealane_text other,
                                  bool *known);

/**
 * Allocates memory for tensors that are sent and received without a copy, aligned to 64 bytes: from the arena shared with the
 * daemon, or from the heap with an embedded engine. Its contents are undefined.
 *
 * It stays usable after its task is detached, until sealane_free. After a restart of the daemon it is ordinary memory, and is
 * copied. Fails with SEALANE_CODE_RESOURCE_EXHAUSTED if there is no room.
 */
sealane_error *sealane_alloc(sealane_task *task,
                             size_t bytes,
                             void **memory);

/**
 * Frees memory from sealane_alloc of any task; does nothing with NULL or other memory, such as a parent's in the child of a
 * fork. Can be used as a sealane_release with the memory as its context, to free lent memory as soon as it is no longer used.
 */
void sealane_free(void *memory);

/**
 * Returns the address range of the arena that a task shares with its daemon: tensors in it are sent and received in place. 0
 * bytes for a task with an embedded engine. A restarted daemon has a new arena: call this again after calls ended with
 * SEALANE_CODE_UNAVAILABLE.
 */
sealane_error *sealane_arena_range(sealane_task *task,
                                   const void **start,
                                   size_t *bytes);

/**
 * Has the CUDA driver pin the arena that a task shares with its daemon for all devices, by the context of this one: copies between it and GPUs are then
 * asynchronous and at full speed. Experimental. A restarted daemon has a new arena. SEALANE_CODE_UNAVAILABLE or
 * SEALANE_CODE_RESOURCE_EXHAUSTED with the driver's reason, SEALANE_CODE_UNIMPLEMENTED for a task with an embedded engine.
 */
sealane_error *sealane_pin(sealane_task *task,
                           size_t device);

/**
 * True if all of this memory is in the arena that a task shares with its daemon. False for a NULL task, and for memory outside
 * its arena.
 */
bool sealane_in_arena(sealane_task *task,
                      const void *memory,
                      size_t bytes);

/**
 * Sends a tensor to the task `to`, which may request it before or after; `done` is called when the consumer has it, or the send has failed.
 *
 * `timeout_ms` is how long the tensor waits to be requested: 0 is the default of the daemon or the engine, SEALANE_NO_TIMEOUT
 * no limit. `done` may be NULL: then the outcome is not reported. `call` may be NULL; else it is written before `done` is
 * called.
 *
 * Never waits for room: calls that a slow daemon has no room for, and tensors that the arena has no room for, wait in this
 * process and are sent as soon as there is room, within their timeout. Calls beyond the limits of sealane_attach_options are
 * refused with SEALANE_CODE_RESOURCE_EXHAUSTED and the limit's name, by this function or, if other threads start calls at the
 * same moment, by the callback. This applies to all functions that start calls. They may wait for a daemon that restarts,
 * unless restart_timeout_ms is SEALANE_DO_NOT_WAIT.
 */
sealane_error *sealane_send(sealane_task *task,
                            sealane_text to,
                            int64_t step,
                            sealane_text key,
                            const sealane_source *source,
                            int64_t timeout_ms,
                            sealane_done done,
                            void *context,
                            sealane_call **call);

/**
 * sealane_send for many tensors at a fraction of the cost each, with one timeout. `done` is called for each, with the context
 * of its item. `calls` is NULL or has an entry for each.
 *
 * A list that would bring the task's calls in flight on one shard of the daemon above 16,384 is refused as a whole: each tensor ends with
 * SEALANE_CODE_RESOURCE_EXHAUSTED. If this returns an error, none of them was sent.
 */
sealane_error *sealane_send_all(sealane_task *task,
                                sealane_text to,
                                int64_t step,
                                const sealane_item *items,
                                size_t count,
                                int64_t timeout_ms,
                                sealane_done done,
                                sealane_call **calls);

/**
 * Requests a tensor from the task `from`, which may send it before or after; `received` is called when it has arrived or the
 * recv has failed.
 *
 * `destination` may be NULL: then the tensor arrives in the library's memory. `timeout_ms` says how long to wait: 0 is the
 * default of the daemon or the engine, SEALANE_NO_TIMEOUT no limit. `call` may be NULL; else it is written before `received`
 * is called.
 */
sealane_error *sealane_recv(sealane_task *task,
                            sealane_text from,
                            int64_t step,
                            sealane_text key,
                            const sealane_destination *destination,
                            int64_t timeout_ms,
                            sealane_received received,
                            void *context,
                            sealane_call **call);

/**
 * sealane_recv that does not wait for a task whose process has left, or leaves: it ends with SEALANE_CODE_UNAVAILABLE then, at once if
 * it had left before. A task that was never there is waited for.
 */
sealane_error *sealane_recv_fail_if_gone(sealane_task *task,
                                         sealane_text from,
                                         int64_t step,
                                         sealane_text key,
                                         const sealane_destination *destination,
                                         int64_t timeout_ms,
                                         sealane_received received,
                                         void *context,
                                         sealane_call **call);

/**
 * sealane_recv for many tensors at a fraction of the cost each, with one timeout. `received` is called for each, with the
 * context of its entry. `calls` is NULL or has an entry for each.
 *
 * A list that is too long is refused as a whole, as by sealane_send_all. If this returns an error, none of them was requested.
 */
sealane_error *sealane_recv_all(sealane_task *task,
                                sealane_text from,
                                int64_t step,
                                const sealane_wanted *wanted,
                                size_t count,
                                int64_t timeout_ms,
                                sealane_received received,
                                sealane_call **calls);

/**
 * Publishes tensors under one version: any peer may pull each as often as it likes, until a newer version replaces it, it is withdrawn,
 * or the task ends. `done`, which may be NULL, is called once, when all peers can see all of them, or with the first error.
 *
 * The version is chosen by the caller, such as the step number, and may not decrease. Lent memory is released when a newer
 * version has replaced it and nobody reads it any more. `call` may be NULL. A tensor for which the arena has no room fails
 * with SEALANE_CODE_RESOURCE_EXHAUSTED: waiting could mean waiting for memory that only its own publication frees.
 */
sealane_error *sealane_publish(sealane_task *task,
                               int64_t version,
                               const sealane_item *items,
                               size_t count,
                               sealane_done done,
                               void *context,
                               sealane_call **call);

/**
 * Withdraws a published tensor; pulls of it wait for the next publication. A pull that another task asks for a moment later may still
 * get it.
 */
sealane_error *sealane_withdraw(sealane_task *task,
                                sealane_text key);

/**
 * Pulls tensors that the task `from` publishes, each at `min_version` or newer, and waits for them if necessary. When all have
 * arrived or failed, `received` is called for each, in order, with its entry of `contexts`, or with NULL if `contexts` is
 * NULL.
 *
 * `timeout_ms` says how long to wait: 0 is the default of the daemon or the engine, SEALANE_NO_TIMEOUT no limit. `call`, which
 * may be NULL, cancels all of them. To pull the same keys repeatedly, a plan is cheaper.
 */
sealane_error *sealane_pull(sealane_task *task,
                            sealane_text from,
                            const sealane_text *keys,
                            size_t count,
                            int64_t min_version,
                            int64_t timeout_ms,
                            sealane_received received,
                            void *const *contexts,
                            sealane_call **call);

/**
 * Creates a plan of keys that the task `from` publishes. The keys are sent once; after that a pull is one small message. Close
 * it with sealane_plan_close, even if its task was detached.
 */
sealane_error *sealane_plan_open(sealane_task *task,
                                 sealane_text from,
                                 const sealane_text *keys,
                                 size_t count,
                                 sealane_plan **plan);

/**
 * Pulls every tensor of the plan at `min_version` or newer, and waits for those that are older. `done` is called when all have
 * arrived or failed, with the first error if any failed; sealane_plan_get returns each.
 *
 * `timeout_ms` says how long to wait: 0 is the default of the daemon or the engine, SEALANE_NO_TIMEOUT no limit. Earlier
 * results of sealane_plan_get become invalid. `call` may be NULL.
 */
sealane_error *sealane_plan_pull(sealane_plan *plan,
                                 int64_t min_version,
                                 int64_t timeout_ms,
                                 sealane_done done,
                                 void *context,
                                 sealane_call **call);

/**
 * sealane_plan_pull that does not wait for what a task has not published whose process has left, or leaves: that ends with
 * SEALANE_CODE_UNAVAILABLE then, at once if it had left before. A task that was never there is waited for.
 */
sealane_error *sealane_plan_pull_fail_if_gone(sealane_plan *plan,
                                              int64_t min_version,
                                              int64_t timeout_ms,
                                              sealane_done done,
                                              void *context,
                                              sealane_call **call);

/**
 * Returns the tensor of that index, starting at 0, from the last pull, or an error that says why it did not arrive. Valid
 * until the next pull is started, or the plan is closed.
 */
sealane_error *sealane_plan_get(sealane_plan *plan,
                                size_t index,
                                sealane_view *tensor);

/**
 * Closes a plan, and frees it here and at its peer; does nothing with NULL. A pull in progress ends with
 * SEALANE_CODE_CANCELLED. No other function may be using the plan, now or afterwards.
 */
void sealane_plan_close(sealane_plan *plan);

/**
 * Pushes tensors into a queue of the task `to`, in order. `done`, which may be NULL, is called once, when the queue has taken all, or with the
 * first error. While the queue is full, or nobody accepts from it, the push waits.
 *
 * `timeout_ms` says how long: 0 is the default of the daemon or the engine, SEALANE_NO_TIMEOUT no limit. `call` may be NULL.
 */
sealane_error *sealane_push(sealane_task *task,
                            sealane_text to,
                            sealane_text queue,
                            const sealane_source *sources,
                            size_t count,
                            int64_t timeout_ms,
                            sealane_done done,
                            void *context,
                            sealane_call **call);

/**
 * Opens a queue of this task, into which any peer may push. A queue has one acceptor at a time: every accept of a second one
 * fails with SEALANE_CODE_INVALID_ARGUMENT. Close it with sealane_acceptor_close, even if its task was detached.
 */
sealane_error *sealane_acceptor_open(sealane_task *task,
                                     sealane_text queue,
                                     const sealane_accept_options *options,
                                     sealane_acceptor **acceptor);

/**
 * Takes the next tensors from the queue, at most `most`: those that are available, or the first that arrives. `accepted` is
 * called with them.
 *
 * `timeout_ms` says how long to wait for the first: 0 and SEALANE_NO_TIMEOUT mean no limit. `call` may be NULL.
 */
sealane_error *sealane_accept(sealane_acceptor *acceptor,
                              size_t most,
                              int64_t timeout_ms,
                              sealane_accepted accepted,
                              void *context,
                              sealane_call **call);

/**
 * sealane_accept that ends with SEALANE_CODE_UNAVAILABLE when the process of one of `tasks_count` tasks has left and there is
 * nothing to accept, at once if it had left before. A task that was never there is waited for. The acceptor stays as it is.
 */
sealane_error *sealane_accept_fail_if_gone(sealane_acceptor *acceptor,
                                           size_t most,
                                           const sealane_text *tasks,
                                           size_t tasks_count,
                                           int64_t timeout_ms,
                                           sealane_accepted accepted,
                                           void *context,
                                           sealane_call **call);

/**
 * Closes a queue; does nothing with NULL. Pushes wait for its next acceptor, which first gets the tensors that were taken but
 * not accepted. Accepts in progress end with SEALANE_CODE_CANCELLED; the queue is closed when they have. No other function may
 * be using the acceptor, now or afterwards.
 */
void sealane_acceptor_close(sealane_acceptor *acceptor);

/**
 * Publishes a table: a tensor of one dimension or more, whose rows are what the first dimension counts. Blocks until all peers can see
 * it. If options is NULL, all options have their defaults.
 *
 * The tensor's data is copied, unless it is what sealane_alloc of this task gave: that memory is the table's own from now on, also if
 * this fails, and neither to be used nor freed any more. Needs 16 KiB beside the rows. A table of up to 512 bytes is published anew
 * with each write.
 *
 * Fails with SEALANE_CODE_INVALID_ARGUMENT if there are no rows of a fixed size, or the key is longer than 512 bytes;
 * SEALANE_CODE_RESOURCE_EXHAUSTED if the arena has no room.
 */
sealane_error *sealane_publish_table(sealane_task *task,
                                     sealane_text key,
                                     const sealane_view *tensor,
                                     const sealane_table_options *options,
                                     sealane_table **table);

/**
 * Writes rows over those of these numbers; of a row that is named twice, the later one. Whoever pulls a row meanwhile gets it as it was
 * or as it is, but of several rows some as they were.
 *
 * `rows` has the table's type, and its shape but for the first dimension, which is `count`. Fails with SEALANE_CODE_INVALID_ARGUMENT,
 * and has written nothing, if it has not, or there is no row of such a number.
 */
sealane_error *sealane_table_update(sealane_table *table,
                                    const uint64_t *ids,
                                    size_t count,
                                    const sealane_view *rows);

/**
 * Adds rows to those of these numbers: to a row that is named twice, both. For floats and signed integers of 32 and 64 bits; integers
 * wrap around. Otherwise like sealane_table_update.
 */
sealane_error *sealane_table_add(sealane_table *table,
                                 const uint64_t *ids,
                                 size_t count,
                                 const sealane_view *rows);

/**
 * The table is of that version from now on, for those who pull with a min_version. Blocks until all peers can see it.
 */
sealane_error *sealane_table_set_version(sealane_table *table,
                                         int64_t version);

/**
 * sealane_table_set_version of many tables of a task, in one round trip. After an error, each may have the version or not.
 *
 * Fails with SEALANE_CODE_INVALID_ARGUMENT if a table is another task's: then none has it.
 */
sealane_error *sealane_set_versions(sealane_task *task,
                                    sealane_table *const *tables,
                                    size_t count,
                                    int64_t version);

/**
 * Lets go of a table, which stays published as it is until its task is detached or withdraws its key (sealane_withdraw); does nothing
 * with NULL. No other function may be using the table, now or afterwards. To be called even if its task was detached.
 */
void sealane_table_close(sealane_table *table);

/**
 * Names a table of `rows` rows that `count` owners have: each has published its part under this key, and numbers its rows from 0.
 * `sharding` says who has which row: SEALANE_SHARDING_RANGE, SEALANE_SHARDING_MODULO or SEALANE_SHARDING_HASH. All who use the table
 * must name the same. With one owner, `rows` may be 0: however many it has.
 *
 * How large rows are is learnt with the first pull: keep the table. Free it with sealane_sharded_table_free.
 */
sealane_error *sealane_sharded_table_new(sealane_text key,
                                         const sealane_text *owners,
                                         size_t count,
                                         uint64_t rows,
                                         int32_t sharding,
                                         sealane_sharded_table **table);

/**
 * How many rows the owner of that number has, counted from 0.
 */
sealane_error *sealane_sharded_table_rows_of(const sealane_sharded_table *table,
                                             size_t owner,
                                             uint64_t *rows);

/**
 * The number in the whole table of row `local` of an owner's part.
 */
sealane_error *sealane_sharded_table_row(const sealane_sharded_table *table,
                                         size_t owner,
                                         uint64_t local,
                                         uint64_t *row);

/**
 * Frees a sharded table, which stays published; does nothing with NULL. Calls in progress go on.
 */
void sealane_sharded_table_free(sealane_sharded_table *table);

/**
 * Pulls rows of a table by their numbers, from the memory of those who have published them: no owner's process is woken. Rows may be
 * named in any order, and more than once. `received` is called when all have come, with a tensor of `count` rows, or the pull has
 * failed.
 *
 * A table that is not published yet is waited for. A row that is written meanwhile comes as it was or as it is. `destination` may be
 * NULL: then the rows come in the library's memory; else it is exactly as long as they are. `options` and `call` may be NULL. To pull
 * from many tables, use sealane_pull_all_rows.
 */
sealane_error *sealane_pull_rows(sealane_task *task,
                                 const sealane_sharded_table *table,
                                 const uint64_t *ids,
                                 size_t count,
                                 const sealane_destination *destination,
                                 const sealane_rows_options *options,
                                 sealane_received received,
                                 void *context,
                                 sealane_call **call);

/**
 * sealane_pull_rows that blocks until the rows have come, and needs no other thread. `out` may be NULL; else the rows are written there:
 * `bytes` bytes, exactly as many as they have, which are the caller's again when this returns an error, or else when the tensor is
 * freed. `options` may be NULL. To pull from many tables, use sealane_pull_all_rows_wait.
 */
sealane_error *sealane_pull_rows_wait(sealane_task *task,
                                      const sealane_sharded_table *table,
                                      const uint64_t *ids,
                                      size_t count,
                                      void *out,
                                      size_t bytes,
                                      const sealane_rows_options *options,
                                      sealane_tensor **rows);

/**
 * sealane_pull_rows of many tables in one call, at a fraction of the cost each: what one owner has of all of them is asked for by as few
 * requests as there can be, each of which is answered when all of its tables are published. `received` is called once: when all rows
 * have come, with a tensor for each of `wanted`, in that order; or with the first error, and without tensors.
 *
 * `options` are those of all tables; with `partial`, the call fails all the same if no row of one of the tables came, now or in an earlier
 * call with the same sealane_sharded_table. `options` and `call` may be NULL. `count` may be 0: then there are no tensors.
 */
sealane_error *sealane_pull_all_rows(sealane_task *task,
                                     const sealane_wanted_rows *wanted,
                                     size_t count,
                                     const sealane_rows_options *options,
                                     sealane_received_all received,
                                     void *context,
                                     sealane_call **call);

/**
 * sealane_pull_all_rows that blocks until the rows have come, and needs no other thread. `rows` has a place for a tensor of each of
 * `wanted`, none of which is written if this returns an error; it may be NULL if `count` is 0. `options` may be NULL.
 *
 * Memory of a destination is the caller's again when this returns an error, or else when its tensor is freed; its release is NULL.
 */
sealane_error *sealane_pull_all_rows_wait(sealane_task *task,
                                          const sealane_wanted_rows *wanted,
                                          size_t count,
                                          const sealane_rows_options *options,
                                          sealane_tensor **rows);

/**
 * Rows that a partial pull left out: those of the `index`th owner of which some are missing, counted from 0, into `missing`. False if
 * there are no more such owners. What it points to is valid until the tensor is freed.
 */
bool sealane_tensor_missing(const sealane_tensor *tensor,
                            size_t index,
                            sealane_missing_rows *missing);

/**
 * Pushes rows to the owners of a table, into the queue of that name of each, whose acceptor finds them with sealane_pushed_rows.
 * `rows` is a tensor with one row for each of `ids`, and read before this returns. `done`, which may be NULL, is called once, when all
 * queues have taken their part, or with the first error: other owners have then taken theirs.
 *
 * With `sum`, rows of the same number are added up, and pushed once: of 32-bit and 64-bit floats. `timeout_ms` says how long a full
 * queue is waited for: 0 is the default of the daemon or the engine, SEALANE_NO_TIMEOUT no limit. `call` may be NULL. To push rows of
 * many tables, use sealane_push_all_rows.
 */
sealane_error *sealane_push_rows(sealane_task *task,
                                 const sealane_sharded_table *table,
                                 sealane_text queue,
                                 const uint64_t *ids,
                                 size_t count,
                                 const sealane_view *rows,
                                 bool sum,
                                 int64_t timeout_ms,
                                 sealane_done done,
                                 void *context,
                                 sealane_call **call);

/**
 * sealane_push_rows of many tables in one call, at a fraction of the cost each: what goes to one owner goes together, about a MiB at a
 * time, and the tables in the order of `pushed`. `done` is called once for all. If this returns an error, nothing was pushed. `count` may
 * be 0: then nothing is.
 */
sealane_error *sealane_push_all_rows(sealane_task *task,
                                     sealane_text queue,
                                     const sealane_outgoing_rows *pushed,
                                     size_t count,
                                     bool sum,
                                     int64_t timeout_ms,
                                     sealane_done done,
                                     void *context,
                                     sealane_call **call);

/**
 * The rows of an accepted tensor that were pushed by sealane_push_rows or sealane_push_all_rows: into `tables` goes an array with a
 * place for each table, in the order in which they were pushed, and into `count` how many. sealane_table_add and sealane_table_update
 * take numbers and rows as they are. Valid until the tensor is freed, whose own view is not to be used any more. No other function may
 * be using the tensor at this time.
 *
 * Fails with SEALANE_CODE_INVALID_ARGUMENT if something else was pushed. Numbers and rows may come from anybody: look at them before
 * you use them for anything but these two functions, which do.
 */
sealane_error *sealane_pushed_rows(sealane_tensor *tensor,
                                   const sealane_table_rows **tables,
                                   size_t *count);

/**
 * Dials the listener of that name at the task `to`, and blocks until that has the stream. Fails with SEALANE_CODE_NOT_FOUND if nobody
 * listens there.
 *
 * `window_bytes` may come before they are read: 0 is 1 MiB. `timeout_ms` says how long to wait: 0 and SEALANE_NO_TIMEOUT mean one to
 * two request timeouts of the daemon.
 */
sealane_error *sealane_stream_dial(sealane_task *task,
                                   sealane_text to,
                                   sealane_text name,
                                   uint64_t window_bytes,
                                   int64_t timeout_ms,
                                   sealane_stream **stream);

/**
 * Listens for streams that peers dial by this name. `window_bytes` is as for sealane_stream_dial.
 */
sealane_error *sealane_stream_listen(sealane_task *task,
                                     sealane_text name,
                                     uint64_t window_bytes,
                                     sealane_stream_listener **listener);

/**
 * Blocks until there is a stream to accept. `timeout_ms` says how long: 0 and SEALANE_NO_TIMEOUT mean no limit.
 */
sealane_error *sealane_stream_accept(sealane_stream_listener *listener,
                                     int64_t timeout_ms,
                                     sealane_stream **stream);

/**
 * Accepts no more; does nothing with NULL. Streams that wait to be accepted are reset. No other function may be using the listener,
 * now or afterwards.
 */
void sealane_stream_listener_close(sealane_stream_listener *listener);

/**
 * The name of the task at the other end, into `peer`: valid until the stream is closed, and not NUL-terminated.
 */
sealane_error *sealane_stream_peer(const sealane_stream *stream,
                                   sealane_text *peer);

/**
 * Blocks until bytes have come, at most `bytes` of which go to `into`, and their number to `count`: 0 when the other end has finished.
 * `timeout_ms` says how long: 0 and SEALANE_NO_TIMEOUT mean no limit.
 */
sealane_error *sealane_stream_read(sealane_stream *stream,
                                   void *into,
                                   size_t bytes,
                                   int64_t timeout_ms,
                                   size_t *count);

/**
 * Blocks until all of `bytes` bytes have been taken over to be sent. `timeout_ms` says how long: 0 and SEALANE_NO_TIMEOUT mean no limit;
 * after SEALANE_CODE_DEADLINE_EXCEEDED nobody knows how many were.
 */
sealane_error *sealane_stream_write(sealane_stream *stream,
                                    const void *from,
                                    size_t bytes,
                                    int64_t timeout_ms);

/**
 * Says that nothing more is written, and blocks until the other process says that it has taken all that was. The other end may still write.
 * `timeout_ms` says how long: 0 and SEALANE_NO_TIMEOUT mean no limit; it may be called again.
 */
sealane_error *sealane_stream_finish(sealane_stream *stream,
                                     int64_t timeout_ms);

/**
 * Ends the stream at both ends at once, for a reason that the other end is told. It is still to be closed.
 */
sealane_error *sealane_stream_reset(sealane_stream *stream, sealane_text reason);

/**
 * Lets go of a stream; does nothing with NULL. If it was not finished, it is reset: the other end does not take a part for all. No other
 * function may be using it, now or afterwards.
 */
void sealane_stream_close(sealane_stream *stream);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SEALANE_H */

#ifndef SEALANE_TEXT_OF
#define SEALANE_TEXT_OF
/* The text of a string that ends in NUL. */
static inline sealane_text sealane_text_of(const char *string) {
  sealane_text text = {string, SEALANE_NUL_TERMINATED};
  return text;
}
#endif  /* SEALANE_TEXT_OF */
