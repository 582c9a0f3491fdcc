/* The C interface of Sealane: a process's tensors to and from other hosts' and processes'.
 *
 * Made of the library's source by `cargo xtask docs`: change it there.
 *
 * A process attaches to its host's daemon (sealane_attach), or starts an engine of its own (sealane_embedded), as a task
 * of the endpoint map. What it sends, the peer receives by the same step and key (sealane_send, sealane_recv); what it
 * publishes, peers pull as often as they like (sealane_publish, sealane_pull, sealane_plan_pull); what it pushes, the peer's
 * acceptor takes in the order of its coming (sealane_push, sealane_accept).
 *
 * Errors: functions return NULL or an error, which the caller frees; see sealane_error. A function that returns an error has
 * taken over nothing: no callback will be called, no memory released.
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
 * The version of this interface. It goes up when a program that was compiled with an older header would not work any more;
 * what is only added leaves it as it is.
 */
#define SEALANE_ABI_VERSION 1

/**
 * As the timeout of a call: it waits as long as it takes.
 */
#define SEALANE_NO_TIMEOUT -1

/**
 * Flag: a dead tensor, as TensorFlow's control flow sends it for a branch that was not taken. It has no bytes, and its shape is
 * ignored.
 */
#define SEALANE_DEAD 1

/**
 * Flag: a tensor of byte strings. Its type is that of bytes (code SEALANE_UINT, 8 bits, 1 lane); its data is one uint64_t offset a string
 * and one more for the end, counted from the first text byte, then the texts without separators.
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
 * DLPack's code of an opaque handle: with 8 bits, bytes that only the two sides understand. Their number is the one dimension.
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
 * DLPack's code of truth values.
 */
#define SEALANE_BOOL 6

/**
 * Most dimensions that a tensor may have.
 */
#define SEALANE_RANK_MAX 254

/**
 * As idle_spin_us: a thread that waits never sleeps.
 */
#define SEALANE_NEVER_SLEEP -1

/**
 * As idle_spin_us: a thread that waits sleeps at once.
 */
#define SEALANE_SLEEP_AT_ONCE -2

/**
 * As restart_timeout_ms: no function waits for a daemon.
 */
#define SEALANE_DO_NOT_WAIT -1

/**
 * As a direction: from the task to its peer.
 */
#define SEALANE_SENT 1

/**
 * As a direction: from the peer to the task.
 */
#define SEALANE_RECEIVED 2

/**
 * gRPC's canonical codes, as far as Sealane uses them.
 */
enum sealane_code
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * All is well.
   */
  SEALANE_CODE_OK = 0,
  /**
   * The call was cancelled: by sealane_call_cancel, or because what it belongs to was closed or detached.
   */
  SEALANE_CODE_CANCELLED = 1,
  /**
   * The call cannot be carried out, whatever the state: what it was given is wrong.
   */
  SEALANE_CODE_INVALID_ARGUMENT = 3,
  /**
   * The deadline passed first; see sealane_error_delivery_unknown.
   */
  SEALANE_CODE_DEADLINE_EXCEEDED = 4,
  /**
   * The task is not in the endpoint map, or not served where the map says.
   */
  SEALANE_CODE_NOT_FOUND = 5,
  /**
   * The peer or the daemon refuses this process.
   */
  SEALANE_CODE_PERMISSION_DENIED = 7,
  /**
   * A limit was reached, which the message names.
   */
  SEALANE_CODE_RESOURCE_EXHAUSTED = 8,
  /**
   * The step was aborted, or the engine stops.
   */
  SEALANE_CODE_ABORTED = 10,
  /**
   * The peer or this build does not know the operation.
   */
  SEALANE_CODE_UNIMPLEMENTED = 12,
  /**
   * A fault of the library itself.
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
 * The end of a queue from which tensors are taken. For any thread.
 */
typedef struct sealane_acceptor sealane_acceptor;

/**
 * A call that was started, for giving it up. Free it with sealane_call_free, on any thread, before or after the call has ended.
 */
typedef struct sealane_call sealane_call;

/**
 * Why something failed: a code and a message.
 *
 * A function that can fail returns NULL if all is well, and else an error that the caller frees with sealane_error_free. One
 * that a callback gets is NULL or the library's, which frees it when the callback returns. May be read by any thread.
 */
typedef struct sealane_error sealane_error;

/**
 * Keys of what a peer publishes, pulled together again and again, into the same memory each time. For any thread; one pull at a time.
 */
typedef struct sealane_plan sealane_plan;

/**
 * A task of this process, made by sealane_attach or sealane_embedded. For any number of threads at a time, until one of them
 * detaches it.
 */
typedef struct sealane_task sealane_task;

/**
 * A tensor that was received, pulled or accepted. It is the callback's, which frees it with sealane_tensor_free, then or later, on
 * any thread; it may outlive its task. Until then the memory stays taken that it came in.
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
   * How many dimensions there are, 0 to SEALANE_RANK_MAX; 0 for a scalar.
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
 * What a tensor is and where its bytes are. Pointers are valid as long as the tensor they describe; each function says how long that is.
 */
typedef struct {
  /**
   * Type, shape and flags.
   */
  sealane_meta meta;
  /**
   * The bytes: row-major and little-endian, without gaps. Not NULL, also without bytes.
   */
  const void *data;
  /**
   * How many there are.
   */
  size_t bytes;
  /**
   * The version of a tensor that was pulled, else 0.
   */
  int64_t version;
} sealane_view;

/**
 * How to attach. Set `size` to `sizeof` this struct; fields left 0 take their defaults.
 */
typedef struct {
  /**
   * sizeof(sealane_attach_options), so that a later header may add fields.
   */
  size_t size;
  /**
   * The daemon's socket, a path that ends in NUL. Default: sealane.sock in $XDG_RUNTIME_DIR where that is set, else
   * /run/sealane/sealane.sock.
   */
  const char *socket;
  /**
   * Bytes of memory that tensors are sent from and received in, shared with the daemon. Default 64 MiB; the daemon may give less.
   */
  uint64_t arena_bytes;
  /**
   * How many microseconds a thread that waits looks before it sleeps, SEALANE_NEVER_SLEEP or SEALANE_SLEEP_AT_ONCE. Default 50.
   */
  int64_t idle_spin_us;
  /**
   * How many milliseconds attaching may take, now and when the daemon was restarted. Default 5000.
   */
  int64_t attach_timeout_ms;
  /**
   * How many milliseconds functions wait for the next daemon where one has drained, or SEALANE_DO_NOT_WAIT: then no function waits
   * for a daemon, be it drained or dead. Functions that start calls fail at once with SEALANE_CODE_UNAVAILABLE, and a thread of the library's attaches
   * again. Default 30000, at most a day.
   */
  int64_t restart_timeout_ms;
  /**
   * How many calls may wait in this process where the daemon reads late. Functions that start one more fail with
   * SEALANE_CODE_RESOURCE_EXHAUSTED. Default 262144.
   */
  uint64_t backlog_calls_max;
  /**
   * How many bytes they may have, with tensors that wait for room in the arena, wherever those are. Default 256 MiB.
   */
  uint64_t backlog_bytes_max;
} sealane_attach_options;

/**
 * How to start an engine. Set `size` to `sizeof` this struct; fields left 0 take their defaults.
 */
typedef struct {
  /**
   * sizeof(sealane_embedded_options), so that a later header may add fields.
   */
  size_t size;
  /**
   * How many threads the engine has. Default 1.
   */
  uint64_t shards;
  /**
   * How many microseconds a thread that has nothing to do looks before it sleeps, SEALANE_NEVER_SLEEP or
   * SEALANE_SLEEP_AT_ONCE. Default 200.
   */
  int64_t idle_spin_us;
  /**
   * The deadline of calls that have none of their own, in milliseconds, or SEALANE_NO_TIMEOUT. Default 600000.
   */
  int64_t request_timeout_ms;
  /**
   * A file with the secret that peers share. Default: none.
   */
  const char *secret_file;
  /**
   * A file with this side's certificate, in PEM; with it come tls_key and tls_authorities, and no secret_file. Default: none.
   */
  const char *tls_certificate;
  /**
   * The file of its key.
   */
  const char *tls_key;
  /**
   * The file of the authorities that are believed.
   */
  const char *tls_authorities;
  /**
   * Not 0: with neither a secret nor certificates, listens where other hosts reach it. Default 0: then this host alone does.
   */
  uint64_t insecure;
} sealane_embedded_options;

/**
 * UTF-8 text: the name of a task, a key, a queue's name. Need not end in NUL. Read before the function returns.
 */
typedef struct {
  /**
   * Where it begins. May be NULL if there are no bytes.
   */
  const char *start;
  /**
   * How many bytes it has, or SEALANE_NUL_TERMINATED.
   */
  size_t bytes;
} sealane_text;

/**
 * Called once the library no longer uses memory that it was lent: once for each call that was taken over, on the thread of the
 * task's callbacks (see sealane_done), before or after the call's own. Memory that a peer or the daemon may still
 * use when the task is detached is released after that, or never.
 */
typedef void (*sealane_release)(void *context);

/**
 * A tensor that is sent, published or pushed.
 */
typedef struct {
  /**
   * Type and shape.
   */
  sealane_meta meta;
  /**
   * The bytes: row-major and little-endian, without gaps. May be NULL if there are none.
   */
  const void *data;
  /**
   * How many there are: as many as type and shape say.
   */
  size_t bytes;
  /**
   * NULL: the bytes are copied before the function returns. Else they stay as they are until this was called. An attached
   * task sends memory of its arena (sealane_alloc) from where it is, and copies other memory of over 512 bytes into it: before the
   * function returns or, where the arena is full, as soon as it has room.
   */
  sealane_release release;
  /**
   * What it is called with.
   */
  void *release_context;
} sealane_source;

/**
 * Called when a call has ended: with NULL if it went well, else with the error, which is the library's and valid until this returns.
 *
 * Where a function that starts a call returns NULL, the callback is called exactly once, whatever happens; where it returns an
 * error, never. It is called on a thread that the library has for the callbacks of this task, one after the other: never within
 * the function that started the call, and with no lock of the library held. So it may call any function of this header; while it
 * runs, the task's other callbacks wait. It must not throw. In the child of a fork no callback comes. While a daemon that has drained is
 * replaced, callbacks may wait for the next one.
 */
typedef void (*sealane_done)(void *context, const sealane_error *error);

/**
 * One tensor of many that are sent or published together.
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
   * What the callback of sealane_send_all gets for this one; other functions ignore it.
   */
  void *context;
} sealane_item;

/**
 * Memory that a recv writes its tensor to. It is the library's alone until release was called, which is not before the tensor
 * was freed.
 */
typedef struct {
  /**
   * Where it begins. NULL: none is given, and the tensor arrives in memory of the library's. An attached task writes memory of its
   * arena (sealane_alloc) in place, and other memory by a copy.
   */
  void *memory;
  /**
   * How long it is. Where a longer tensor comes, the recv ends with SEALANE_CODE_INVALID_ARGUMENT, and may be made again.
   */
  size_t bytes;
  /**
   * Must not be NULL where memory is not.
   */
  sealane_release release;
  /**
   * What it is called with.
   */
  void *release_context;
} sealane_destination;

/**
 * The same of a call that brings a tensor, which is the callee's to free; NULL if there is an error.
 */
typedef void (*sealane_received)(void *context, const sealane_error *error, sealane_tensor *tensor);

/**
 * One tensor of many that are requested together.
 */
typedef struct {
  /**
   * Its name.
   */
  sealane_text key;
  /**
   * Where it is to be written; its memory is NULL where the library has the memory.
   */
  sealane_destination destination;
  /**
   * What the callback gets for this one.
   */
  void *context;
} sealane_wanted;

/**
 * How much may wait in a queue. Set `size` to `sizeof` this struct; fields left 0 take their defaults.
 */
typedef struct {
  /**
   * sizeof(sealane_accept_options), so that a later header may add fields.
   */
  size_t size;
  /**
   * Tensors that wait. Default 4096.
   */
  uint64_t tensors_max;
  /**
   * Their bytes; the queue is full when there are as many or more. Default 256 MiB; of an attached task at most half of the memory
   * that the daemon has for what arrives.
   */
  uint64_t bytes_max;
} sealane_accept_options;

/**
 * Called when an accept has ended: with the tensors that came, each the callee's to free, in an array that is valid until this returns;
 * or with the error, and no tensors. Otherwise as sealane_done.
 */
typedef void (*sealane_accepted)(void *context,
                                 const sealane_error *error,
                                 sealane_tensor *const *tensors,
                                 size_t count);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The version of the interface that the library has, to be compared with SEALANE_ABI_VERSION of the header.
 */
uint32_t sealane_abi_version(void);

/**
 * The release of the library, "0.1.0" for example. Valid as long as the library is loaded.
 */
const char *sealane_version(void);

/**
 * The code of an error; SEALANE_CODE_OK of NULL.
 */
sealane_code sealane_error_code(const sealane_error *error);

/**
 * The message of an error: UTF-8, ends in NUL, valid as long as the error. Of NULL it is "".
 */
const char *sealane_error_message(const sealane_error *error);

/**
 * True if a send or a push ended at its deadline while its tensor was in transit: it may or may not arrive. False for
 * NULL.
 */
bool sealane_error_delivery_unknown(const sealane_error *error);

/**
 * Frees an error that a function returned; does nothing with NULL. Not for errors that a callback got.
 */
void sealane_error_free(sealane_error *error);

/**
 * What a tensor is and where its bytes are. Valid until the tensor is freed. Of NULL it is a dead tensor.
 */
sealane_view sealane_tensor_view(const sealane_tensor *tensor);

/**
 * The task that pushed a tensor, for one that was accepted; else NULL. Ends in NUL, valid until the tensor is freed.
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
 * If options are NULL, all have their defaults. After a restart of the daemon, the first call that finds it attaches again, or a thread does in the
 * background (restart_timeout_ms): calls that were in progress end with SEALANE_CODE_UNAVAILABLE, published tensors must be published again, and the arena is a new one.
 *
 * Fails with SEALANE_CODE_UNAVAILABLE if no daemon listens at the socket, SEALANE_CODE_NOT_FOUND if it does not serve the task,
 * SEALANE_CODE_PERMISSION_DENIED if it does not let this user in.
 */
sealane_error *sealane_attach(const char *task,
                              const sealane_attach_options *options,
                              sealane_task **attached);

/**
 * Starts an engine in this process for one task of the endpoint map, and listens on that task's transport address. The name
 * of the task and the path of the map end in NUL. Where options are NULL, all have their defaults.
 *
 * Fails with SEALANE_CODE_UNAVAILABLE if the address cannot be listened on, SEALANE_CODE_UNIMPLEMENTED if the library was built
 * without engines.
 */
sealane_error *sealane_embedded(const char *endpoint_map,
                                const char *task,
                                const sealane_embedded_options *options,
                                sealane_task **embedded);

/**
 * The task's name, as it was attached. Ends in NUL, valid until the task is detached. NULL of NULL.
 */
const char *sealane_task_name(const sealane_task *task);

/**
 * Detaches, or stops the engine, and frees the task; does nothing with NULL.
 *
 * Calls in progress end with SEALANE_CODE_CANCELLED, and their callbacks have returned when this does; a send or push continues
 * as far as it can. Such callbacks may call functions with the task, which start no calls any more. If this is called within a
 * callback of the task, it does not wait for the other callbacks, which must not use the task.
 * Tensors stay readable, memory of sealane_alloc usable; plans and acceptors can only be closed. In the child of a fork it
 * leaves everything to the parent.
 *
 * Otherwise no function may be running with the task, or with a plan or an acceptor of it, nor be called with the task afterwards.
 */
void sealane_detach(sealane_task *task);

/**
 * Ends a step of this task, here and at its peers: every waiting recv of it ends with SEALANE_CODE_ABORTED and the reason, tensors that wait are
 * freed, and calls that come later hear the same until sealane_cleanup.
 */
sealane_error *sealane_abort(sealane_task *task,
                             int64_t step,
                             sealane_text reason);

/**
 * Frees what is left of a step of this task: tensors that wait, requests that wait for it, and the record that the
 * step was aborted. The step's number may be used again.
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
 * Whether the endpoint map of the daemon or of the engine has a task, now. Waits for the answer, microseconds most often.
 */
sealane_error *sealane_knows_task(sealane_task *task,
                                  sealane_text other,
                                  bool *known);

/**
 * Memory that tensors leave from and arrive in without a copy, aligned to 64 bytes: of the arena that is shared with the
 * daemon, or of the heap where the engine is in this process. What it holds is not defined.
 *
 * It stays usable after its task was detached, until sealane_free. After the daemon was restarted it is memory like any
 * other, and is copied. Fails with SEALANE_CODE_RESOURCE_EXHAUSTED if there is no room.
 */
sealane_error *sealane_alloc(sealane_task *task,
                             size_t bytes,
                             void **memory);

/**
 * Frees memory of sealane_alloc, of whichever task; does nothing with NULL or any other memory, as a parent's is in the child of a fork. As a sealane_release, with the
 * memory as its context, it frees what was lent as soon as that is no longer used.
 */
void sealane_free(void *memory);

/**
 * Where the arena is that a task shares with its daemon: memory within it is sent from, and received in, where it is. No bytes for a
 * task whose engine is in this process. Another daemon has another arena: ask again when calls have ended with SEALANE_CODE_UNAVAILABLE.
 */
sealane_error *sealane_arena_range(sealane_task *task,
                                   const void **start,
                                   size_t *bytes);

/**
 * True if all of this memory lies in the arena that a task shares with its daemon. False for a NULL task, and for memory outside its arena.
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
 * Never waits for room: calls for which a slow daemon has no room wait in this process, as do tensors for which the arena
 * has none, and are sent as soon as there is room; their timeout is running. Calls beyond the limits of sealane_attach_options are refused with
 * SEALANE_CODE_RESOURCE_EXHAUSTED and the limit's name, by this function or, if other threads start calls at the same moment, by the callback. This holds for
 * all functions that start calls. They may wait for a daemon that restarts, unless restart_timeout_ms is SEALANE_DO_NOT_WAIT.
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
 * sealane_send for many tensors at a fraction of the cost each, with one timeout. `done` is called for each, with the context of its
 * item. `calls` is NULL or has a place for each.
 *
 * Where this returns an error, none of them was sent.
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
 * Asks the task `from` for a tensor, which may be sent before or after; `received` is called when it has come, or the recv has failed.
 *
 * `destination` may be NULL: then the tensor comes in memory of the library's. `timeout_ms` says how long to wait: 0 is the default of the
 * daemon or the engine, SEALANE_NO_TIMEOUT no limit. `call` may be NULL; else it is written before `received` is called.
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
 * sealane_recv for many tensors at a fraction of the cost each, with one timeout. `received` is called for each, with the context of its
 * entry. `calls` is NULL or has a place for each.
 *
 * Where this returns an error, none of them was asked for.
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
 * The version is chosen by the caller, such as the step number, and may not decrease. Memory that was lent is released when a newer version has
 * replaced it and nobody reads it any more. `call` is NULL or a place. A tensor for which the arena has no room fails with
 * SEALANE_CODE_RESOURCE_EXHAUSTED: it might have to wait for memory that only its own publication frees.
 */
sealane_error *sealane_publish(sealane_task *task,
                               int64_t version,
                               const sealane_item *items,
                               size_t count,
                               sealane_done done,
                               void *context,
                               sealane_call **call);

/**
 * Takes a published tensor back; pulls of it wait for the next.
 */
sealane_error *sealane_withdraw(sealane_task *task, sealane_text key);

/**
 * Pulls tensors that the task `from` publishes, each at `min_version` or newer, and waits for them if necessary. When all have arrived or failed, `received` is
 * called for each, in order, with its place in `contexts`, or with NULL where `contexts` is NULL.
 *
 * `timeout_ms` says how long to wait: 0 is the default of the daemon or the engine, SEALANE_NO_TIMEOUT no limit. `call`, NULL or a
 * place, cancels all of them. To pull the same keys repeatedly, a plan is cheaper.
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
 * Makes a plan: keys that the task `from` publishes. They are sent once; after that a pull is one small message. Close it with
 * sealane_plan_close, even after its task was detached.
 */
sealane_error *sealane_plan_open(sealane_task *task,
                                 sealane_text from,
                                 const sealane_text *keys,
                                 size_t count,
                                 sealane_plan **plan);

/**
 * Pulls every tensor of the plan at `min_version` or newer, and waits for those that are older. `done` is called when all have come or failed,
 * with the first error if any failed; sealane_plan_get has each.
 *
 * `timeout_ms` says how long to wait: 0 is the default of the daemon or the engine, SEALANE_NO_TIMEOUT no limit. What sealane_plan_get
 * gave before is no longer valid. `call` is NULL or a place.
 */
sealane_error *sealane_plan_pull(sealane_plan *plan,
                                 int64_t min_version,
                                 int64_t timeout_ms,
                                 sealane_done done,
                                 void *context,
                                 sealane_call **call);

/**
 * The tensor of that number, counted from 0, as the last pull left it; the error says why it did not come. Valid until the next pull
 * is started, or the plan closed.
 */
sealane_error *sealane_plan_get(sealane_plan *plan,
                                size_t index,
                                sealane_view *tensor);

/**
 * Closes a plan, and frees it here and at its peer; does nothing with NULL. A pull in progress ends with
 * SEALANE_CODE_CANCELLED. No function may be running with the plan, nor be called with it afterwards.
 */
void sealane_plan_close(sealane_plan *plan);

/**
 * Pushes tensors into a queue of the task `to`, in order. `done`, which may be NULL, is called once, when the queue has taken all, or with the
 * first error. While the queue is full, or nobody accepts from it, the push waits.
 *
 * `timeout_ms` says how long: 0 is the default of the daemon or the engine, SEALANE_NO_TIMEOUT no limit. `call` is NULL or a place.
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
 * Opens a queue of this task, into which any peer may push. One acceptor of a queue at a time: of another, every accept fails with
 * SEALANE_CODE_INVALID_ARGUMENT. Close it with sealane_acceptor_close, also after its task was detached.
 */
sealane_error *sealane_acceptor_open(sealane_task *task,
                                     sealane_text queue,
                                     const sealane_accept_options *options,
                                     sealane_acceptor **acceptor);

/**
 * Takes the next tensors from the queue, `most` at most: those that are there, or the first that comes. `accepted` is called with them.
 *
 * `timeout_ms` says how long to wait for the first: 0 and SEALANE_NO_TIMEOUT are no limit. `call` is NULL or a place.
 */
sealane_error *sealane_accept(sealane_acceptor *acceptor,
                              size_t most,
                              int64_t timeout_ms,
                              sealane_accepted accepted,
                              void *context,
                              sealane_call **call);

/**
 * Closes a queue; does nothing with NULL. Pushes wait for its next acceptor, which first gets what was taken and not accepted.
 * Accepts in progress end with SEALANE_CODE_CANCELLED; the queue is closed when they have. No function may be running with
 * the acceptor, nor be called with it afterwards.
 */
void sealane_acceptor_close(sealane_acceptor *acceptor);

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
