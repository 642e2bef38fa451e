#ifndef HOTROW_HOTROW_H_
#define HOTROW_HOTROW_H_

// hotrow's C interface: embedding tables that outgrow memory, for programs in any language.
// Compiles as C11 and as C++. The program links to libhotrow.so.
//
// What is stable: functions, their arguments and their meaning, fields of structs with their order
// and meaning, values of the enums, and codes of errors, within one major number of the soname
// (libhotrow.so.1; every symbol has the version HOTROW_1). A program that was built with an older
// header of this number runs with a newer library, and the other way round as long as it uses
// nothing that the library lacks. What is added are functions, fields at the end of structs that
// have a struct_size, and words. Not stable: texts of errors, and members that come on top in JSON.
//
// Structs: whose first field is struct_size grow at their end. Call their *_default function with
//          sizeof, then set fields. In an array of them all have the struct_size of the first. A
//          field that this library does not know must be zero (UNIMPLEMENTED). The others
//          (hotrow_bags, hotrow_matrix, hotrow_blob) never grow.
// Texts:   char pointers are UTF-8 and end in NUL. A choice is a word (optimizer "adam"); NULL is
//          the default, the error of an unknown word lists all.
// Results: a status. Unless it is HOTROW_OK nothing was written but where a comment says so, and
//          hotrow_error_message() says what was wrong: which argument or field, and what was
//          expected. No call throws or ends the process, but for bugs of the library itself; out of
//          memory is RESOURCE_EXHAUSTED.
// Buffers: texts that the library makes go into buffers of the caller. *needed (may be NULL) is
//          their size with the NUL; OUT_OF_RANGE when `size` is below it, and then nothing is
//          written and nothing else was done.
// Memory:  what a call takes may be freed when it returns, but for *_in_place. *_destroy ends what
//          *_create and *_open make, and takes NULL, too.
// Threads: calls of one collection, with its steps, wait for each other, so any thread may make
//          them; those of a scorer run at once. A callback must not call what called it
//          (FAILED_PRECONDITION). A handle is destroyed while no other thread uses it.
// Forks:   a handle belongs to the process that made it. In a child of fork calls with it are
//          FAILED_PRECONDITION, and *_close and *_destroy do nothing, at once; the parent goes on.
//          The child may make its own handles.

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// ---- Errors ----

typedef int32_t hotrow_status;
// The numbers of Abseil and gRPC.
enum {
  HOTROW_OK = 0,
  HOTROW_CANCELLED = 1,  // a callback said so
  HOTROW_UNKNOWN = 2,
  HOTROW_INVALID_ARGUMENT = 3,
  HOTROW_DEADLINE_EXCEEDED = 4,
  HOTROW_NOT_FOUND = 5,
  HOTROW_ALREADY_EXISTS = 6,
  HOTROW_PERMISSION_DENIED = 7,
  HOTROW_RESOURCE_EXHAUSTED = 8,
  HOTROW_FAILED_PRECONDITION = 9,
  HOTROW_ABORTED = 10,
  HOTROW_OUT_OF_RANGE = 11,
  HOTROW_UNIMPLEMENTED = 12,
  HOTROW_INTERNAL = 13,
  HOTROW_UNAVAILABLE = 14,
  HOTROW_DATA_LOSS = 15
};

// The message of the last call of this thread that failed; "" before. Valid until the next one
// fails.
const char* hotrow_error_message(void);
// "INVALID_ARGUMENT"; "?" for other numbers.
const char* hotrow_status_name(hotrow_status status);
// The version of the library: "0.2.0".
const char* hotrow_version(void);
// What the library is and what it finds, as JSON: "version", "commit" ("": not told), "cuda", which
// is null without CUDA code: "architectures", "runtime", "driver" (the newest version it takes;
// "": none), "devices" ("name", "capability", "memory_bytes") and "problem", why there is none.
hotrow_status hotrow_environment(char* text, uint64_t size, uint64_t* needed);

// ---- Context: threads and device ----

typedef struct hotrow_context hotrow_context;

typedef struct hotrow_context_options {
  uint64_t struct_size;
  int32_t threads;       // with the calling one; 0: as many as this process has processors
  const char* device;    // "cpu" (default) or "cuda"
  void* cuda_stream;     // cuda: a cudaStream_t, not the default one, on which rows are read and
                         // written in the order of calls; it outlives the context's collections.
                         // NULL: one of the context's own, see hotrow_collection_use_stream
  int32_t device_index;  // cuda: which GPU, that of cuda_stream; 0. Which one is current in a
                         // thread that calls (cudaSetDevice) does not matter, and stays
} hotrow_context_options;

void hotrow_context_options_default(hotrow_context_options* options, uint64_t struct_size);
// options may be NULL. Collections that were made in it keep what they need of it.
hotrow_status hotrow_context_create(const hotrow_context_options* options,
                                    hotrow_context** context);
void hotrow_context_destroy(hotrow_context* context);

// ---- Communicators: ranks that the caller connects ----

typedef struct hotrow_communicator hotrow_communicator;

// How a rank talks to the others, on a transport of the caller's. The ranks make the same calls in
// the same order on each channel. Functions return HOTROW_OK or the status that the call is to end
// with, and then may put a text of at most text_size bytes with its NUL in `text`, which should
// name the rank at fault. After an error the communicator is not used any more.
typedef struct hotrow_communicator_callbacks {
  uint64_t struct_size;
  void* user;  // of the first channel
  int32_t rank;
  int32_t world_size;
  // Sends send_bytes[p] bytes from send[p] to each rank p, and receives recv_bytes[p] bytes from it
  // to recv[p]; any may be 0, those of this rank are. Returns when all of recv is there and all of
  // send may be overwritten. A rank that is silent for timeout_seconds is DEADLINE_EXCEEDED.
  // Different channels are used by different threads at once; one channel by one at a time.
  // operation ("AllGather") is the same on all ranks, unless they make different calls.
  hotrow_status (*exchange)(void* user, const char* operation, const void* const* send,
                            const int64_t* send_bytes, void* const* recv, const int64_t* recv_bytes,
                            double timeout_seconds, char* text, uint64_t text_size);
  // Another channel between the same ranks, whose calls are independent of those of this one. All
  // ranks call it at the same point.
  hotrow_status (*duplicate)(void* user, void** channel, char* text, uint64_t text_size);
  // Ends a channel, the first one too. May be NULL.
  void (*release)(void* user);
  // Makes the calls of all ranks fail, also running ones, with UNAVAILABLE and this text, as far as
  // the transport can; does not wait for others. Any thread, at any time until the first channel is
  // released, whose user it gets. May be NULL: then the others find out by their timeouts.
  void (*abort)(void* user, const char* message);
  double timeout_seconds;  // default 30
  // HOTROW_OK, or the status and text of an abort of any rank. Asked some 50 times a second while
  // work on a GPU awaits other ranks; as abort otherwise. May be NULL: that work ends by timeouts.
  hotrow_status (*status)(void* user, char* text, uint64_t text_size);
} hotrow_communicator_callbacks;

void hotrow_communicator_callbacks_default(hotrow_communicator_callbacks* callbacks,
                                           uint64_t struct_size);
// Calls nothing yet.
hotrow_status hotrow_communicator_create(const hotrow_communicator_callbacks* callbacks,
                                         hotrow_communicator** communicator);
// Collections that use it keep it alive.
void hotrow_communicator_destroy(hotrow_communicator* communicator);
// For an error of this rank, of its data say: all ranks' calls fail with UNAVAILABLE and "rank 1
// ended the job: MESSAGE". The first error counts. Does not wait. Any thread; not within callbacks.
hotrow_status hotrow_communicator_abort(hotrow_communicator* communicator, const char* message);

// ---- Tables ----

typedef struct hotrow_optimizer {
  uint64_t struct_size;
  const char* kind;     // "rowwise_adagrad" (default), "sgd", "momentum", "adagrad", "adam",
                        // "partial_rowwise_adam", "ftrl", "lamb", "partial_rowwise_lamb"
  float learning_rate;  // 0.01
  float eps;            // 1e-8
  float beta1;          // 0.9
  float beta2;          // 0.999
  float weight_decay;   // 0
  float initial_accumulator;
  float lr_power;  // FTRL: -0.5, with TensorFlow's sign
  float l1;
  float l2;
  float ftrl_beta;                // FTRL: 0
  const char* weight_decay_mode;  // "l2" (default), "decoupled", "table": l2 of all rows in each
                                  // step, also of those that it does not look up (CPU only)
} hotrow_optimizer;

void hotrow_optimizer_default(hotrow_optimizer* optimizer, uint64_t struct_size);

// A table has no fixed size: any 64-bit key gets a row at its first update.
typedef struct hotrow_table {
  uint64_t struct_size;
  const char* name;                  // required, distinct
  int64_t embedding_dim;             // required
  const char* const* feature_names;  // required: the features that look rows up here
  int64_t num_features;
  const char* pooling;                // "sum" (default), "mean", "none"
  const char* weights_precision;      // "fp32" (default), "fp16", "bf16"
  const hotrow_optimizer* optimizer;  // NULL: the default one
  const char* initializer;  // "uniform" (default: in +-value), "normal" (value: deviation),
                            // "constant", "zeros"
  float initializer_value;  // 0.01
  // A row's gradient of a step that is longer is scaled down to this norm; 0: none is. CPU only.
  float max_row_gradient_norm;
  int64_t num_embeddings;  // 0: any key; otherwise keys lie in [0, num_embeddings)
  int64_t max_hotness;     // most lookups of a feature in one sample; 0: not known
  // Those of feature_names whose lookups get no gradient. All of them: the table is frozen.
  const char* const* read_only_features;
  int64_t num_read_only_features;
  // Which keys get a row: "always" (default), "lookups:N" (in the step of the N-th lookup),
  // "lookups:N:STEPS" (the count begins again after so many steps without one), "coin:P" (each
  // lookup with probability P). Others read their first values and are not trained. CPU only.
  const char* admission;
  int64_t ttl_steps;  // rows that no step has updated for more than so many read as new; 0: never
  // Rows of all ranks; 0: no limit. With ttl_steps: so many of the latest updates stay. Above
  // max_rows those of the oldest updates go. Kept at multiples of row_limit_steps.
  int64_t min_rows;
  int64_t max_rows;
  // Whether rows keep a score, which the scores of batches make: "none" (default), "max", "sum" or
  // "last" of what came. CPU only. max_rows_by: above max_rows those of the oldest updates go,
  // "age" (default), or those of the lowest scores, "score".
  const char* score;
  const char* max_rows_by;
  // How lookups read rows: "as_trained" (default), or with the weights of a model that is served
  // with rows in "fp16", "bf16", "int8" or "int4". Updates keep all bits. CPU only.
  const char* serve_rows;
} hotrow_table;

void hotrow_table_default(hotrow_table* table, uint64_t struct_size);

typedef struct hotrow_collection_options {
  uint64_t struct_size;
  const hotrow_table* tables;  // required
  int64_t num_tables;
  // The order of features in batches and outputs; none: table by table.
  const char* const* feature_order;
  int64_t num_feature_order;
  uint64_t seed;           // of first rows and of stochastic rounding
  int64_t max_batch_size;  // required; of all ranks together

  // Where rows are kept.
  const char* store;       // "memory" (default), "ssd", "rocksdb"
  const char* store_path;  // ssd ("a,b": several), rocksdb: required. memory: of snapshots, if any
  int64_t store_memory_bytes;  // required, a hard limit; ssd: of its index and buffers
  int64_t store_disk_bytes;    // ssd, rocksdb: required, a hard limit

  // The cache above the store. 0, for memory only: none, rows are trained where they are kept.
  int64_t cache_bytes;
  int64_t cache_device_bytes;  // cuda: of device memory; cache_bytes is the tier below then
  const char* cache_policy;    // "lru" (default), "lfu", "sieve"

  int64_t prefetch_depth;            // steps prefetched beyond the current one, 0 to 32
  int64_t evaluation_staging_bytes;  // 64 MiB

  // Several ranks share the tables: collection calls are collective where a comment says so. What
  // one rank refuses, a wrong argument too, ends the job on all. A NULL handle they cannot hear of.
  hotrow_communicator* communicator;  // NULL: one rank
  const char* exchange_forward;       // "fp32" (default), "fp16", "bf16", "int8"
  const char* exchange_backward;
  const char* exchange_rounding;    // "nearest" (default), "stochastic"
  int64_t exchange_feedback_bytes;  // 0: none

  // Checkpoints, see below. NULL: none.
  const char* checkpoint_dir;
  int64_t checkpoint_keep;  // 2: how many stay; with one rank only the newest does where a call
                            // wants the room that older ones hold of store_disk_bytes
  const char* checkpoint_model;  // "custom": names what is trained; checked when it goes on
  // What the tables start from. resume: the newest checkpoint of checkpoint_dir, when there is one;
  // what a run left in the store that was killed before its first checkpoint goes. Without it
  // a checkpoint_dir with checkpoints is refused (FAILED_PRECONDITION).
  int32_t resume;
  // The same as max_row_gradient_norm for the gradients of all rows of a step together, behind it.
  float max_gradient_norm;
  const char* init_from;    // a saved model or checkpoint of the same tables, unless it resumes;
                            // NULL: new tables
  int64_t admission_bytes;  // of each rank, for the counters of admission "lookups"; required there
  int64_t row_limit_steps;  // min_rows and max_rows of tables are kept each so many steps; 64
  // Device memory for an index of the store, with cache_device_bytes and store "memory": where its
  // rows lie; 0: the host finds them.
  int64_t cache_device_index_bytes;
} hotrow_collection_options;

void hotrow_collection_options_default(hotrow_collection_options* options, uint64_t struct_size);

typedef struct hotrow_collection hotrow_collection;

// Collective. context may be NULL: one with default options.
hotrow_status hotrow_collection_create(hotrow_context* context,
                                       const hotrow_collection_options* options,
                                       hotrow_collection** collection);
// cuda, where the context has its own stream: the stream on which the caller writes what calls read
// from device memory, and reads what they write there; NULL is the legacy default stream. From now
// on a call's work comes behind what that stream has when it is made, and before what the stream
// gets later; no host waits. May change between calls. FAILED_PRECONDITION: the CPU, or a context
// that was given a stream. INVALID_ARGUMENT: a stream of another device.
hotrow_status hotrow_collection_use_stream(hotrow_collection* collection, void* cuda_stream);
// cuda: waits until the device has done what calls have enqueued. cpu: returns at once.
hotrow_status hotrow_wait(hotrow_collection* collection);
// Ends what is running and the store in good order, so that it opens quickly the next time, and
// frees its memory. A step that has not ended is FAILED_PRECONDITION, and so are calls that follow,
// or that other threads make meanwhile; when those have returned, destroy the handle.
hotrow_status hotrow_collection_close(hotrow_collection* collection);
// Instead of close: leaves the store as a kill would, every checkpoint is there. Steps that have
// not ended are cancelled; their handles stay to be destroyed. Of other threads' calls as close.
void hotrow_collection_abandon(hotrow_collection* collection);
// Frees the handle, and abandons what was not closed.
void hotrow_collection_destroy(hotrow_collection* collection);

// The smallest cache_bytes (on a GPU cache_device_bytes) that create accepts for these options.
hotrow_status hotrow_min_cache_bytes(hotrow_context* context,
                                     const hotrow_collection_options* options, int64_t* bytes);

// {"features": [{"name": "item", "table": "items", "dim": 64, "pooling": "sum", "column": 0}],
//  "pooled_dim": 64, "start": "/ckpt/step-000000001000", "step": 1000}
// column: of EmbeddingOutput's pooled matrix, or with pooling "none" the place among `unpooled`.
// start: the checkpoint or model that the tables came from; "": none.
hotrow_status hotrow_collection_describe(hotrow_collection* collection, char* text, uint64_t size,
                                         uint64_t* needed);

// ---- Batches ----

enum { HOTROW_UINT64 = 1, HOTROW_INT64 = 2, HOTROW_INT32 = 3, HOTROW_FLOAT32 = 4 };

// Ids in bags: one sample's lookups of one feature are a bag. Dimensions: B samples, N lookups.
typedef struct hotrow_bags {
  const void* values;    // [N] ids of values_type; an int64 is its 64 bits, a negative int32
                         // is INVALID_ARGUMENT: some mean its 32 bits, a cast extends its sign
  const void* offsets;   // [B + 1] of bags_type, or NULL
  const void* lengths;   // [B] of bags_type instead of offsets, or NULL
  const float* weights;  // [N], finite, or NULL: every weight is 1
  int64_t num_values;    // N
  int32_t values_type;   // HOTROW_UINT64, HOTROW_INT64, HOTROW_INT32
  int32_t bags_type;     // HOTROW_INT64, HOTROW_INT32
} hotrow_bags;

typedef struct hotrow_batch {
  uint64_t struct_size;
  int64_t batch_size;  // B
  // One for each feature, in their order; or a single one with all of them, feature-major, with
  // F*B bags, and num_features = 0.
  const hotrow_bags* bags;
  int64_t num_features;
  // Scores, as many as bags: one for each lookup, [N], finite, or NULL: they bring none. NULL: none
  // does. For a feature whose table keeps none it is NULL (with all features together they are not
  // looked at). Only training makes use of them.
  const float* const* scores;
  // 1: any of the arrays may be memory of the collection's GPU: each is looked at. Those are read
  // in the order of the caller's stream, which may write them again right after; no host waits. A
  // batch that is malformed is then found out by the step's lookup, with prefetch_depth 0 by
  // prefetch. 0: all are memory of the host. Not for the CPU, scorers and packers.
  int32_t on_device;
  int32_t reserved;  // 0
} hotrow_batch;

// Row-major: element (r, c) is data[r * stride + c]. On a GPU memory of that device (or page-locked
// memory of the host; any other is INVALID_ARGUMENT), unless a comment says so. Inputs are read
// alone.
typedef struct hotrow_matrix {
  void* data;
  int64_t rows;
  int64_t cols;
  int64_t stride;    // in elements, at least cols
  int32_t type;      // HOTROW_FLOAT32
  int32_t reserved;  // 0
} hotrow_matrix;

// ---- Steps ----

typedef struct hotrow_step hotrow_step;

// Begins a step: makes the batch's rows resident, up to prefetch_depth steps ahead, and returns
// without waiting for that. Steps are looked up and updated in this order. Collective.
hotrow_status hotrow_prefetch(hotrow_collection* collection, const hotrow_batch* batch,
                              hotrow_step** step);
// The same without a copy: arrays that have the library's form are read where they lie, and stay
// as they are until release(user) is called: ids and offsets of 64 bits and weights, all features
// in one array; of features apart ids and weights, where those of all features lie end to end. On a
// GPU page-locked ones alone; with on_device none. The structs themselves may be freed at once.
// release is called once, also where this fails: when the step ends, or at once where nothing has
// to stay, by the call that ends it and on its thread; it must call nothing of the collection.
// NULL: the arrays stay until the step has been updated or destroyed, or its collection was.
typedef void (*hotrow_release_fn)(void* user);
hotrow_status hotrow_prefetch_in_place(hotrow_collection* collection, const hotrow_batch* batch,
                                       hotrow_release_fn release, void* user, hotrow_step** step);
// Forward, after the update of the step before. pooled: [B, pooled_dim], NULL where no feature is
// pooled. unpooled: [N of the feature, D] for each feature with pooling "none". Collective.
hotrow_status hotrow_step_lookup(hotrow_step* step, const hotrow_matrix* pooled,
                                 const hotrow_matrix* unpooled, int64_t num_unpooled);
// Backward: gradients in the shapes of lookup, finite: one in host memory that is not is
// INVALID_ARGUMENT, names the number, and no row moves. learning_rate_factor multiplies the tables'
// learning rates. The step has ended when this returns, also with an error. Collective.
hotrow_status hotrow_step_update(hotrow_step* step, const hotrow_matrix* pooled,
                                 const hotrow_matrix* unpooled, int64_t num_unpooled,
                                 float learning_rate_factor);
// The first halves of both, which may be left out: rows and gradients set out between ranks, so
// that they travel while the caller computes. After begin_update update ignores its matrices.
hotrow_status hotrow_step_begin_lookup(hotrow_step* step);
hotrow_status hotrow_step_begin_update(hotrow_step* step, const hotrow_matrix* pooled,
                                       const hotrow_matrix* unpooled, int64_t num_unpooled);
// Unpins the rows of a step that was not updated, and updates nothing.
void hotrow_step_destroy(hotrow_step* step);

// ---- Beside training ----

// The values that lookup would give, and no trace left. Unseen keys read their first rows.
// Collective.
hotrow_status hotrow_evaluate(hotrow_collection* collection, const hotrow_batch* batch,
                              const hotrow_matrix* pooled, const hotrow_matrix* unpooled,
                              int64_t num_unpooled);
// The weights of keys of one table. rows: [num_keys, D] in host memory. found: [num_keys], whether
// a key has a row, or NULL. Collective.
hotrow_status hotrow_read_rows(hotrow_collection* collection, const char* table,
                               const uint64_t* keys, int64_t num_keys, const hotrow_matrix* rows,
                               uint8_t* found);
// Calls fn with the rows of one table that this rank keeps, some thousand at a time, in no order.
// A status of fn other than HOTROW_OK ends it and is returned.
typedef hotrow_status (*hotrow_rows_fn)(void* user, const uint64_t* keys, const float* rows,
                                        int64_t num_rows, int64_t dim);
hotrow_status hotrow_for_each_row(hotrow_collection* collection, const char* table,
                                  hotrow_rows_fn fn, void* user);
// Gives keys of one table these weights, with fresh optimizer state, for pretrained rows. keys:
// distinct. rows: [num_keys, D] in host memory, finite. Between two steps: none may be outstanding
// (HOTROW_FAILED_PRECONDITION; also of a table with weight_decay_mode "table"). Durable with the
// next checkpoint. Collective; each rank gives its own rows, of keys that any rank may keep.
hotrow_status hotrow_write_rows(hotrow_collection* collection, const char* table,
                                const uint64_t* keys, int64_t num_keys, const hotrow_matrix* rows);
// Removes the rows of keys of one table, which may repeat or have none: from here on the keys are
// new. Between two steps: none may have been looked up (HOTROW_FAILED_PRECONDITION). Durable with
// the next checkpoint. Collective; keys may be kept by any rank.
hotrow_status hotrow_erase(hotrow_collection* collection, const char* table, const uint64_t* keys,
                           int64_t num_keys);
// Removes in the same way the rows of one table whose last update was before update number `step`
// (of hotrow_steps, from 1); rows that no step has updated stay. *erased: how many of this rank's
// rows went; or NULL. HOTROW_FAILED_PRECONDITION also of a table with weight_decay_mode "table".
// Flushes, and reads every row. Collective.
hotrow_status hotrow_erase_older_than(hotrow_collection* collection, const char* table,
                                      int64_t step, int64_t* erased);
// Writes changed rows down to the store.
hotrow_status hotrow_flush(hotrow_collection* collection);
// Brings all rows to where they stand after the last step, with weight_decay_mode "table", so that
// the next checkpoint can be exported or start other tables; changes no bit of what follows.
// Otherwise it does nothing. Reads and writes each row. Collective.
hotrow_status hotrow_settle(hotrow_collection* collection);
// Counts and hashes all rows, reading each. {"hash": "...", "tables": [{"name": "items", "rows": 7,
// "dim": 64, "row_bytes": 272, "hash": "..."}]}. Two collections with the same hash have the same
// rows, bit for bit. *needed is an upper bound, known before anything is read. Collective.
hotrow_status hotrow_digest(hotrow_collection* collection, char* text, uint64_t size,
                            uint64_t* needed);
// Updates so far, those of what it started from included.
hotrow_status hotrow_steps(hotrow_collection* collection, int64_t* steps);
// What this rank has counted: {"steps": 9, ..., "tiers": [{"name": "cache", ...}],
// "tables": [{"name": "users", ...}]}. embedding/stats.h has all members.
hotrow_status hotrow_stats(hotrow_collection* collection, char* text, uint64_t size,
                           uint64_t* needed);
// The same as the text that Prometheus reads: docs/metrics.md.
hotrow_status hotrow_metrics(hotrow_collection* collection, char* text, uint64_t size,
                             uint64_t* needed);

// ---- Snapshots: for callers with their own manifests ----

// See store/row_store.h and embedding/snapshots.h. Not with a checkpoint_dir
// (FAILED_PRECONDITION). A name is any number but 0.
hotrow_status hotrow_snapshot_announce(hotrow_collection* collection);
hotrow_status hotrow_snapshot_begin(hotrow_collection* collection, uint64_t snapshot);
hotrow_status hotrow_snapshot_prepared(hotrow_collection* collection, int32_t* prepared);
hotrow_status hotrow_snapshot_wait(hotrow_collection* collection);
hotrow_status hotrow_snapshot_commit(hotrow_collection* collection, uint64_t snapshot);
hotrow_status hotrow_snapshot_drop(hotrow_collection* collection, uint64_t snapshot);
// Names of snapshots, of which at most `size` go to `snapshots`; *count is how many there are.
hotrow_status hotrow_snapshot_list(hotrow_collection* collection, uint64_t* snapshots, int64_t size,
                                   int64_t* count);

// ---- Checkpoints: tables, and bytes of the caller, as one ----

// Bytes of the caller's that belong to a checkpoint, by name: a model's parameters, the state of
// their optimizer, where the data stand.
typedef struct hotrow_blob {
  const char* name;  // distinct
  const void* data;
  uint64_t size;
} hotrow_blob;

// Begins a checkpoint of the tables as they are after the last update, in checkpoint_dir. Blobs are
// copied. A thread writes while training goes on; the checkpoint appears by one rename once
// everything in it is durable, so that a kill at any moment leaves it whole or not there, and the
// one before it untouched. One at a time, and one for a step. Rank 0's blobs count. Collective.
hotrow_status hotrow_checkpoint_begin(hotrow_collection* collection, const hotrow_blob* blobs,
                                      int64_t num_blobs);
// Whether it has just been committed. Does not wait. Collective while one is being written.
hotrow_status hotrow_checkpoint_poll(hotrow_collection* collection, int32_t* committed);
// Waits until it is. OK when there is none. Collective.
hotrow_status hotrow_checkpoint_wait(hotrow_collection* collection);
// The directory of the newest one that is committed; "": none.
hotrow_status hotrow_checkpoint_newest(hotrow_collection* collection, char* text, uint64_t size,
                                       uint64_t* needed);

// A saved model or checkpoint, opened to be read. path: as in init_from, or a directory of
// checkpoints, which stands for its newest one.
typedef struct hotrow_saved hotrow_saved;
hotrow_status hotrow_saved_open(const char* path, hotrow_saved** saved);
void hotrow_saved_destroy(hotrow_saved* saved);
// {"dir": "/ckpt/step-000000001000", "model": "custom", "step": 1000, "world_size": 1, "tables":
//  [{"name", "dim", "optimizer", "weights_precision", "score"}], "blobs": [{"name", "bytes"}]}
hotrow_status hotrow_saved_describe(hotrow_saved* saved, char* text, uint64_t size,
                                    uint64_t* needed);
// The bytes of a blob; its checksum is checked (DATA_LOSS). As texts go into buffers, without a
// NUL.
hotrow_status hotrow_saved_blob(hotrow_saved* saved, const char* name, void* data, uint64_t size,
                                uint64_t* needed);

// ---- The portable form: a directory of .npy arrays with a manifest in JSON ----

// docs/formats/portable.md has the layout. Both read `from` and make `to`, which must not be there,
// or be an empty directory; it appears by one rename when it is whole. Rows go through buffers, so
// that tables may be larger than memory.

typedef struct hotrow_export_options {
  uint64_t struct_size;
  const char* from;            // required; as hotrow_saved_open takes it
  const char* to;              // required
  int64_t shard_bytes;         // 1 GiB: most bytes of an array in one file
  int64_t memory_bytes;        // 256 MiB: of buffers
  int64_t store_memory_bytes;  // of the index of an ssd store; 0: no limit
} hotrow_export_options;

void hotrow_export_options_default(hotrow_export_options* options, uint64_t struct_size);
// Every row is checked against its checksum on the way.
hotrow_status hotrow_export(const hotrow_export_options* options);

typedef struct hotrow_import_options {
  uint64_t struct_size;
  const char* from;            // required: what hotrow_export made
  const char* to;              // required: becomes a directory of checkpoints with one in it
  const char* store;           // "memory" (default), "ssd", "rocksdb": where its rows lie
  const char* store_path;      // ssd, rocksdb: NULL: below `to`
  int64_t store_memory_bytes;  // required, a hard limit
  int64_t store_disk_bytes;    // 0: three times the rows
  int64_t memory_bytes;        // 256 MiB: of buffers
  // Not 0: arrays were changed on purpose, and are not compared with the checksums, hashes and
  // numbers of rows of the manifest.
  int32_t edited;
  int32_t reserved;  // 0
} hotrow_import_options;

void hotrow_import_options_default(hotrow_import_options* options, uint64_t struct_size);
hotrow_status hotrow_import(const hotrow_import_options* options);

// A model to be scored with, of tables that are open and a dense part that others trained: a file
// of ONNX with the inputs "embeddings" [B, pooled_dim] and "dense" [B, num_dense] and the output
// "logits" [B, tasks], all floats.
typedef struct hotrow_onnx_options {
  uint64_t struct_size;
  const char* to;     // required: the directory to make; must not be there, or be empty
  const void* dense;  // required: the dense part
  uint64_t dense_size;
  int64_t num_dense;
  const char* const* labels;  // [num_labels] of the tasks; NULL: those of the schema, or none
  int64_t num_labels;
  const char* schema;    // of lines that are scored (docs/formats/table_schema.md), without files
                         // and split, features in the order of batches; NULL: there is none
  int64_t shard_bytes;   // 1 GiB: of an array in one file, at most
  int64_t memory_bytes;  // 256 MiB: of buffers
} hotrow_onnx_options;

void hotrow_onnx_options_default(hotrow_onnx_options* options, uint64_t struct_size);
// Writes the rows as they are after the last update. FAILED_PRECONDITION: `to` is there; several
// ranks; weight_decay_mode "table"; tables that differ in serve_rows. UNIMPLEMENTED: pooling
// "none", or a schema with min_count.
hotrow_status hotrow_export_onnx(hotrow_collection* collection, const hotrow_onnx_options* options);

// ---- Data ----

typedef struct hotrow_data hotrow_data;
typedef struct hotrow_reader hotrow_reader;
typedef struct hotrow_samples hotrow_samples;

// What --data names, such as "synthetic:tables=26,rows=100000". seed: of shuffling, and of
// generated data.
hotrow_status hotrow_data_open(const char* spec, uint64_t seed, hotrow_data** data);

typedef struct hotrow_data_options {
  uint64_t struct_size;
  uint64_t seed;           // 0: of shuffling, and of generated data
  int32_t reader_threads;  // 1: that parse text, or copy packed data, at most 1024; nothing that is
                           // read depends on them
  int32_t reserved;        // 0
  // Memory for training data that are mixed with each other, as --shuffle_bytes of the trainers;
  // 0: they come in the order of the files.
  int64_t shuffle_bytes;
  // Readers hand out this rank's slice of each batch. 0 of 1: all of it.
  int32_t rank;
  int32_t world_size;
} hotrow_data_options;

void hotrow_data_options_default(hotrow_data_options* options, uint64_t struct_size);
// hotrow_data_open with all its options.
hotrow_status hotrow_data_open_with(const char* spec, const hotrow_data_options* options,
                                    hotrow_data** data);
void hotrow_data_destroy(hotrow_data* data);
// {"name", "num_dense", "labels": [...], "train_samples", "valid_samples", "test_samples",
//  "features": [{"name", "table", "num_embeddings", "max_hotness"}]}
hotrow_status hotrow_data_describe(hotrow_data* data, char* text, uint64_t size, uint64_t* needed);
// Reads a split ("train", "valid", "test") from a sample on. The order is a function of seed and
// epoch. The reader keeps `data`. One thread at a time.
hotrow_status hotrow_reader_open(hotrow_data* data, const char* split, int64_t epoch,
                                 int64_t first_sample, hotrow_reader** reader);
void hotrow_reader_destroy(hotrow_reader* reader);

// Samples that were read. Views are valid until it is read into again, or destroyed.
hotrow_status hotrow_samples_create(hotrow_samples** samples);
void hotrow_samples_destroy(hotrow_samples* samples);

typedef struct hotrow_samples_view {
  uint64_t struct_size;
  int64_t batch_size;  // B; 0: the end of the split, or there are more ranks than samples
  int64_t num_features;
  const float* dense;      // [B, num_dense]
  const float* labels;     // [B, num_labels]
  const uint64_t* values;  // [num_values], feature-major
  const int64_t* offsets;  // [num_features * B + 1]
  const float* weights;    // [num_values], or NULL
  int64_t num_values;
  int64_t num_dense;
  int64_t num_labels;
  int64_t global_batch_size;  // samples of all ranks; 0: the end of the split
} hotrow_samples_view;

// Reads up to max_samples, of all ranks together. view->struct_size is set by the caller.
hotrow_status hotrow_reader_next(hotrow_reader* reader, int64_t max_samples,
                                 hotrow_samples* samples, hotrow_samples_view* view);

// Packed data, which readers read as "packed:DIR" at a fraction of the time of text
// (docs/formats/packed_data.md). `hotrow pack` makes them of files that the trainers read; this
// makes them of anything else.
typedef struct hotrow_packer hotrow_packer;

typedef struct hotrow_packer_options {
  uint64_t struct_size;
  const char* dir;              // is created; if it exists, it must be empty
  const char* const* features;  // [num_features] names
  int64_t num_features;
  const char* const* tables;  // [num_features] the table of each; NULL: its own, of its name
  const char* const* labels;  // [num_labels] names; NULL: one, "label"
  int64_t num_labels;
  int64_t num_dense;
  int64_t block_samples;        // 8192: that are read together
  const char* source;           // what the samples were made of, for people; NULL: not said
  const char* const* dense;     // [num_dense] names; NULL: they have none
  const int64_t* max_hotness;   // [num_features] lookups in a sample at most; NULL or 0: not known
  const char* dense_precision;  // of dense numbers in the files: "fp32", or "fp16", which takes
                                // half the bytes and refuses numbers beyond 65504; NULL: "fp32"
} hotrow_packer_options;

void hotrow_packer_options_default(hotrow_packer_options* options, uint64_t struct_size);
hotrow_status hotrow_packer_create(const hotrow_packer_options* options, hotrow_packer** packer);
// Adds samples to a split ("train", "valid", "test"). batch: all have weights, or none; no scores.
// dense: [B, num_dense]; may be NULL where num_dense is 0. labels: [B, num_labels], each 0 or 1.
// All are copied. One thread at a time. After an error of the disk, or of a sample that cannot be
// packed, only destroy may follow.
hotrow_status hotrow_packer_append(hotrow_packer* packer, const char* split,
                                   const hotrow_batch* batch, const hotrow_matrix* dense,
                                   const hotrow_matrix* labels);
// The directory appears, whole and durable. No other call but destroy may follow.
hotrow_status hotrow_packer_finish(hotrow_packer* packer);
// Without finish nothing is left; a kill leaves DIR.hotrow-partial, which the next one removes.
void hotrow_packer_destroy(hotrow_packer* packer);

// ---- Scoring: with a trained model, read only ----

// docs/serving.md. A score is a logit for each task. Scores of a batch of up to max_batch_size
// samples have the bits of the trainer's evaluation of that batch, unless `rows` or `precision`
// says otherwise. Keys without a row read what evaluation gives them.
typedef struct hotrow_scorer hotrow_scorer;

typedef struct hotrow_scorer_options {
  uint64_t struct_size;
  const char* model;  // required: a model of a trainer's --save_dir, a checkpoint, a directory of
                      // checkpoints, which stands for its newest one, or what hotrow_export made
  const char* rows;   // how rows are kept: "as_trained" (default), "fp16", "bf16", "int8", "int4"
  const char* precision;       // of dense products: "fp32", "bf16", "int8"; NULL: as trained
  int64_t memory_bytes;        // of rows, their index and what calls read, a hard limit; 0: none
  int64_t store_memory_bytes;  // of the index of an ssd store while its rows are read; 0: no limit
  int64_t max_batch_size;      // 1024: samples that go through the dense part at once; longer
                               // batches are cut
  int32_t max_concurrency;  // calls that run at once, others wait; 0: one for each hardware thread
  int32_t reserved;         // 0
  const char* rows_dir;  // a directory on an SSD for the rows; memory_bytes, which must be given,
                         // has their index and a cache. One for each model. NULL: memory has all
  int64_t deadline_ms;   // of a call that scores, from its beginning, looked at between passes of
                         // max_batch_size samples: then it is DEADLINE_EXCEEDED; 0: none
  const char*
      onnxruntime;  // library for a dense part in ONNX; NULL: the loader's libonnxruntime.so
} hotrow_scorer_options;

void hotrow_scorer_options_default(hotrow_scorer_options* options, uint64_t struct_size);
// Reads the whole model; nothing that happens to it later changes the scorer. FAILED_PRECONDITION:
// no model there, or one that cannot be scored; DATA_LOSS; RESOURCE_EXHAUSTED: a budget.
hotrow_status hotrow_scorer_open(const hotrow_scorer_options* options, hotrow_scorer** scorer);
// Gives the memory back once calls that are running have ended, without waiting for them. Calls
// that begin later are FAILED_PRECONDITION. Any thread, at any time.
hotrow_status hotrow_scorer_close(hotrow_scorer* scorer);
void hotrow_scorer_destroy(hotrow_scorer* scorer);
// {"model": "dlrm", "step": 1000, "features": [{"name": "item"}], "num_dense": 2,
//  "dense": ["price", "age"], "num_tasks": 1, "labels": ["click"], "rows": 7, "table_bytes": 4096,
//  "max_batch_size": 1024, "line_columns": ["price", "age", "item"], "notes": ["..."]}
// features: in the order of batches. dense: names; null: not known. labels: none where they are not
// known. rows, table_bytes: of all tables; the latter are taken of memory_bytes. line_columns: of
// what hotrow_scorer_score_lines takes; null: the model has no schema of lines. notes: what the
// model lacks, and what stands in its place.
hotrow_status hotrow_scorer_describe(hotrow_scorer* scorer, char* text, uint64_t size,
                                     uint64_t* needed);

// Scoring: any number of threads at once. A call runs on the thread that makes it. Arrays are read
// where they lie; ids and offsets of 32 bits, and lengths, are copied. Matrices are contiguous:
// stride = cols. logits: [B, T], of T tasks. INVALID_ARGUMENT names feature, sample and value, or
// line and column; logits may have been written in part then.

// dense: [B, num_dense]; may be NULL where num_dense is 0.
hotrow_status hotrow_scorer_score(hotrow_scorer* scorer, const hotrow_batch* batch,
                                  const hotrow_matrix* dense, const hotrow_matrix* logits);

// One user with N candidates: the features of the user are given once, those of the candidates N
// times; together they are all features of the model. The scores are those of N whole samples.
typedef struct hotrow_candidates {
  uint64_t struct_size;
  int64_t num_candidates;        // N
  const int32_t* user_features;  // positions in `features` of describe, ascending
  int64_t num_user_features;
  const hotrow_batch* user;           // of these, one sample; NULL where there are none
  const hotrow_batch* candidates;     // of the others, N samples; NULL where there are none
  const int32_t* user_dense_columns;  // of the dense features, ascending
  int64_t num_user_dense_columns;
  const float* user_dense;               // [num_user_dense_columns]
  const hotrow_matrix* candidate_dense;  // [N, the others]; may be NULL where there are none
} hotrow_candidates;
// logits: [N, T].
hotrow_status hotrow_scorer_score_candidates(hotrow_scorer* scorer,
                                             const hotrow_candidates* candidates,
                                             const hotrow_matrix* logits);

// Lines of text by the schema of the model's data, without labels. Their ends, LF or CR LF, are no
// part of them. lengths: [num_lines] bytes of each; NULL: each line ends in NUL. logits:
// [num_lines, T]. FAILED_PRECONDITION: the model has no schema.
hotrow_status hotrow_scorer_score_lines(hotrow_scorer* scorer, const char* const* lines,
                                        const int64_t* lengths, int64_t num_lines,
                                        const hotrow_matrix* logits);

// probabilities[i] = 1 / (1 + exp(-logits[i])); both [count], and may be one array.
hotrow_status hotrow_probabilities(const float* logits, int64_t count, float* probabilities);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // HOTROW_HOTROW_H_
