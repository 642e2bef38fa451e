/* The C interface from a C11 program: training, reading, checkpoints, data, and what is refused. */

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hotrow/hotrow.h"

static int failures = 0;

#define CHECK(condition)                                                      \
  do {                                                                        \
    if (!(condition)) {                                                       \
      fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                             \
    }                                                                         \
  } while (0)
#define CHECK_OK(call)                                                  \
  do {                                                                  \
    const hotrow_status status_ = (call);                               \
    if (status_ != HOTROW_OK) {                                         \
      fprintf(stderr, "%s:%d: %s: %s: %s\n", __FILE__, __LINE__, #call, \
              hotrow_status_name(status_), hotrow_error_message());     \
      ++failures;                                                       \
    }                                                                   \
  } while (0)
/* The call fails with this status, and its message has this in it. */
#define CHECK_FAILS(call, status, part)                                                          \
  do {                                                                                           \
    const hotrow_status status_ = (call);                                                        \
    if (status_ != (status) || strstr(hotrow_error_message(), (part)) == NULL) {                 \
      fprintf(stderr, "%s:%d: %s: is %s: \"%s\", expected %s with \"%s\"\n", __FILE__, __LINE__, \
              #call, hotrow_status_name(status_), hotrow_error_message(),                        \
              hotrow_status_name(status), (part));                                               \
      ++failures;                                                                                \
    }                                                                                            \
  } while (0)

enum { kDim = 4, kBatch = 3 };

/* The layout is part of the interface. */
_Static_assert(sizeof(hotrow_context_options) == 40, "frozen");
_Static_assert(sizeof(hotrow_communicator_callbacks) == 72, "frozen");
_Static_assert(sizeof(hotrow_optimizer) == 64, "frozen");
_Static_assert(sizeof(hotrow_table) == 168, "frozen");
_Static_assert(sizeof(hotrow_collection_options) == 232, "frozen");
_Static_assert(sizeof(hotrow_bags) == 48, "frozen");
_Static_assert(sizeof(hotrow_batch) == 48, "frozen");
_Static_assert(sizeof(hotrow_matrix) == 40, "frozen");
_Static_assert(sizeof(hotrow_blob) == 24, "frozen");
_Static_assert(sizeof(hotrow_samples_view) == 96, "frozen");
_Static_assert(sizeof(hotrow_data_options) == 40, "frozen");
_Static_assert(sizeof(hotrow_packer_options) == 104, "frozen");
_Static_assert(sizeof(hotrow_export_options) == 48, "frozen");
_Static_assert(sizeof(hotrow_import_options) == 72, "frozen");
_Static_assert(sizeof(hotrow_onnx_options) == 80, "frozen");
_Static_assert(sizeof(hotrow_scorer_options) == 88, "frozen");
_Static_assert(sizeof(hotrow_candidates) == 80, "frozen");

static const char* const kFeatures[] = {"item", "category"};

static const char* decay_mode = NULL;
static float decay = 0.125f;
static int64_t num_read_only = 0; /* of the features */
static const char* score = NULL;
static int64_t max_rows = 0; /* by score */

/* Two features in one table; sgd with a rate of 1, so that an update takes the gradient off. */
static hotrow_status Create(const char* checkpoint_dir, int resume, hotrow_collection** out) {
  hotrow_optimizer optimizer;
  hotrow_optimizer_default(&optimizer, sizeof(optimizer));
  optimizer.kind = "sgd";
  optimizer.learning_rate = 1;
  optimizer.weight_decay_mode = decay_mode;
  if (decay_mode != NULL) optimizer.weight_decay = decay;
  hotrow_table table;
  hotrow_table_default(&table, sizeof(table));
  table.name = "items";
  table.embedding_dim = kDim;
  table.feature_names = kFeatures;
  table.num_features = 2;
  table.optimizer = &optimizer;
  table.read_only_features = kFeatures;
  table.num_read_only_features = num_read_only;
  table.score = score;
  table.max_rows = max_rows;
  if (max_rows > 0) table.max_rows_by = "score";
  hotrow_collection_options options;
  hotrow_collection_options_default(&options, sizeof(options));
  options.tables = &table;
  options.num_tables = 1;
  options.seed = 7;
  options.max_batch_size = kBatch;
  options.store_memory_bytes = 16 << 20;
  options.cache_bytes = 8 << 20;
  options.prefetch_depth = 1;
  options.checkpoint_dir = checkpoint_dir;
  options.resume = resume;
  if (max_rows > 0) options.row_limit_steps = 1;
  return hotrow_collection_create(NULL, &options, out);
}

static const uint64_t kValues[] = {1, 2, 3, 1, 10, 11, 12};
static const int64_t kOffsets[] = {0, 1, 3, 4, 5, 6, 7};

static hotrow_batch Batch(hotrow_bags* bags) {
  const hotrow_bags all = {.values = kValues,
                           .offsets = kOffsets,
                           .num_values = 7,
                           .values_type = HOTROW_UINT64,
                           .bags_type = HOTROW_INT64};
  *bags = all;
  const hotrow_batch batch = {.struct_size = sizeof(batch), .batch_size = kBatch, .bags = bags};
  return batch;
}

static hotrow_matrix Matrix(float* data) {
  const hotrow_matrix out = {
      .data = data, .rows = kBatch, .cols = 2 * kDim, .stride = 2 * kDim, .type = HOTROW_FLOAT32};
  return out;
}

static void Train(hotrow_collection* tables) {
  hotrow_bags bags;
  const hotrow_batch batch = Batch(&bags);
  hotrow_step* step = NULL;
  CHECK_OK(hotrow_prefetch(tables, &batch, &step));
  float before[kBatch * 2 * kDim];
  float gradient[kBatch * 2 * kDim];
  const hotrow_matrix output = Matrix(before);
  const hotrow_matrix descent = Matrix(gradient);
  for (int i = 0; i < kBatch * 2 * kDim; ++i) gradient[i] = 0.25f;
  CHECK_OK(hotrow_step_lookup(step, &output, NULL, 0));
  CHECK_OK(hotrow_step_update(step, &descent, NULL, 0, 1));
  CHECK_FAILS(hotrow_step_update(step, &descent, NULL, 0, 1), HOTROW_FAILED_PRECONDITION, "");
  hotrow_step_destroy(step);

  /* Evaluation reads what the update has made: bags of one id moved by one gradient each. */
  float after[kBatch * 2 * kDim];
  const hotrow_matrix evaluated = Matrix(after);
  CHECK_OK(hotrow_evaluate(tables, &batch, &evaluated, NULL, 0));
  for (int d = 0; d < kDim; ++d) {
    CHECK(fabsf(after[kDim + d] - (before[kDim + d] - 0.25f)) < 1e-6f); /* category of sample 0 */
    CHECK(fabsf(after[d] - (before[d] - 0.5f)) < 1e-6f); /* id 1, which samples 0 and 2 have */
  }
}

static void Digest(hotrow_collection* tables, char* out, uint64_t size) {
  CHECK_OK(hotrow_digest(tables, out, size, NULL));
}

static void TestTraining(void) {
  hotrow_collection* tables = NULL;
  CHECK_OK(Create(NULL, 0, &tables));
  Train(tables);
  int64_t steps = 0;
  CHECK_OK(hotrow_steps(tables, &steps));
  CHECK(steps == 1);

  char text[4096];
  uint64_t needed = 0;
  CHECK_OK(hotrow_collection_describe(tables, text, sizeof(text), &needed));
  CHECK(needed == strlen(text) + 1);
  CHECK(strstr(text, "\"pooled_dim\":8") != NULL);
  static char metrics[1 << 16];
  CHECK_OK(hotrow_metrics(tables, metrics, sizeof(metrics), NULL));
  CHECK(strstr(metrics, "\nhotrow_updates_total ") != NULL);
  CHECK_OK(hotrow_stats(tables, text, sizeof(text), NULL));
  CHECK(strstr(text, "\"steps\":1") != NULL);
  CHECK_FAILS(hotrow_stats(tables, text, 3, &needed), HOTROW_OUT_OF_RANGE, "size");
  CHECK(needed > 3);
  CHECK_FAILS(hotrow_digest(tables, text, 3, &needed), HOTROW_OUT_OF_RANGE, "size");
  CHECK(needed <= sizeof(text));

  /* The same batch, a feature at a time, with other types and with lengths. */
  hotrow_collection* again = NULL;
  CHECK_OK(Create(NULL, 0, &again));
  const int32_t items[] = {1, 2, 3, 1};
  const int32_t lengths[] = {1, 2, 1};
  const int64_t categories[] = {10, 11, 12};
  const int64_t ones[] = {1, 1, 1};
  const hotrow_bags bags[2] = {{.values = items,
                                .lengths = lengths,
                                .num_values = 4,
                                .values_type = HOTROW_INT32,
                                .bags_type = HOTROW_INT32},
                               {.values = categories,
                                .lengths = ones,
                                .num_values = 3,
                                .values_type = HOTROW_INT64,
                                .bags_type = HOTROW_INT64}};
  const hotrow_batch batch = {
      .struct_size = sizeof(batch), .batch_size = kBatch, .bags = bags, .num_features = 2};
  hotrow_step* step = NULL;
  CHECK_OK(hotrow_prefetch(again, &batch, &step));
  float output[kBatch * 2 * kDim];
  float gradient[kBatch * 2 * kDim];
  for (int i = 0; i < kBatch * 2 * kDim; ++i) gradient[i] = 0.25f;
  const hotrow_matrix matrix = Matrix(output);
  const hotrow_matrix descent = Matrix(gradient);
  CHECK_OK(hotrow_step_begin_lookup(step));
  CHECK_OK(hotrow_step_lookup(step, &matrix, NULL, 0));
  CHECK_OK(hotrow_step_begin_update(step, &descent, NULL, 0));
  CHECK_OK(hotrow_step_update(step, NULL, NULL, 0, 1));
  hotrow_step_destroy(step);
  char other[4096];
  Digest(tables, text, sizeof(text));
  Digest(again, other, sizeof(other));
  CHECK(strcmp(text, other) == 0);

  /* A step that is outstanding when its collection goes. */
  CHECK_OK(hotrow_prefetch(again, &batch, &step));
  CHECK_FAILS(hotrow_collection_close(again), HOTROW_FAILED_PRECONDITION, "");
  hotrow_collection_abandon(again);
  CHECK_FAILS(hotrow_steps(again, &steps), HOTROW_FAILED_PRECONDITION, "closed");
  hotrow_collection_destroy(again);
  CHECK_FAILS(hotrow_step_lookup(step, &matrix, NULL, 0), HOTROW_FAILED_PRECONDITION, "closed");
  hotrow_step_destroy(step);

  CHECK_OK(hotrow_collection_close(tables));
  CHECK_FAILS(hotrow_steps(tables, &steps), HOTROW_FAILED_PRECONDITION, "closed");
  hotrow_collection_destroy(tables);
}

typedef struct Seen {
  int64_t rows;
  uint64_t keys; /* sum */
  hotrow_collection* tables;
  hotrow_status nested;
} Seen;

static hotrow_status See(void* user, const uint64_t* keys, const float* rows, int64_t num_rows,
                         int64_t dim) {
  Seen* const seen = user;
  CHECK(dim == kDim && rows != NULL);
  for (int64_t i = 0; i < num_rows; ++i) seen->keys += keys[i];
  seen->rows += num_rows;
  int64_t steps = 0;
  seen->nested = hotrow_steps(seen->tables, &steps);
  return seen->rows < 0 ? HOTROW_INTERNAL : HOTROW_OK;
}

static hotrow_status Refuse(void* user, const uint64_t* keys, const float* rows, int64_t num_rows,
                            int64_t dim) {
  (void)user, (void)keys, (void)rows, (void)num_rows, (void)dim;
  return HOTROW_CANCELLED;
}

static void TestRows(void) {
  hotrow_collection* tables = NULL;
  CHECK_OK(Create(NULL, 0, &tables));
  Train(tables);
  Seen seen = {.tables = tables};
  CHECK_OK(hotrow_for_each_row(tables, "items", See, &seen));
  CHECK(seen.rows == 6 && seen.keys == 1 + 2 + 3 + 10 + 11 + 12);
  CHECK(seen.nested == HOTROW_FAILED_PRECONDITION);
  CHECK_FAILS(hotrow_for_each_row(tables, "items", Refuse, NULL), HOTROW_CANCELLED, "callback");
  CHECK_FAILS(hotrow_for_each_row(tables, "none", See, &seen), HOTROW_INVALID_ARGUMENT, "none");

  const uint64_t keys[] = {2, 99};
  /* Counts whose products pass what addresses can be. */
  CHECK_FAILS(hotrow_erase(tables, "items", keys, INT64_MAX), HOTROW_INVALID_ARGUMENT, "keys");
  CHECK_FAILS(hotrow_erase(tables, "items", keys, INT64_MIN), HOTROW_INVALID_ARGUMENT, "num_keys");
  for (int i = 0; i < 3; ++i) {
    float far[2 * kDim] = {0};
    hotrow_matrix wide = {
        .data = far, .rows = 2, .cols = kDim, .stride = kDim, .type = HOTROW_FLOAT32};
    *(i == 0 ? &wide.stride : i == 1 ? &wide.rows : &wide.cols) = INT64_MAX;
    if (i == 2) wide.stride = INT64_MAX;
    CHECK_FAILS(hotrow_read_rows(tables, "items", keys, 2, &wide, NULL), HOTROW_INVALID_ARGUMENT,
                "rows.data");
    CHECK(far[0] == 0);
  }
  float rows[2 * kDim];
  uint8_t found[2] = {7, 7};
  const hotrow_matrix matrix = {
      .data = rows, .rows = 2, .cols = kDim, .stride = kDim, .type = HOTROW_FLOAT32};
  CHECK_OK(hotrow_read_rows(tables, "items", keys, 2, &matrix, found));
  CHECK(found[0] == 1 && found[1] == 0);
  CHECK(fabsf(rows[0]) > 0.2f && fabsf(rows[kDim]) < 0.011f);

  CHECK_OK(hotrow_erase(tables, "items", keys, 2));
  CHECK_OK(hotrow_read_rows(tables, "items", keys, 2, &matrix, found));
  CHECK(found[0] == 0 && found[1] == 0 && fabsf(rows[0]) < 0.011f);
  CHECK_FAILS(hotrow_erase(tables, "none", keys, 2), HOTROW_INVALID_ARGUMENT, "none");
  CHECK_FAILS(hotrow_erase(tables, "items", keys, -1), HOTROW_INVALID_ARGUMENT, "num_keys");
  CHECK_FAILS(hotrow_erase(tables, "items", NULL, 2), HOTROW_INVALID_ARGUMENT, "keys");
  CHECK_FAILS(hotrow_erase_older_than(tables, "none", 1, NULL), HOTROW_INVALID_ARGUMENT, "none");
  CHECK_FAILS(hotrow_erase_older_than(tables, "items", -1, NULL), HOTROW_INVALID_ARGUMENT, "step");
  int64_t erased = -1;
  CHECK_OK(hotrow_erase_older_than(tables, "items", 1, &erased));
  CHECK(erased == 0);
  hotrow_collection_destroy(tables);
}

/* Scores of all features in one array, or of each in its own. */
static void TestScores(void) {
  score = "max";
  max_rows = 2;
  static const float kScores[] = {1, 9, 3, 8, 2, 4, -5}; /* of ids 1, 2, 3, 1, 10, 11, 12 */
  hotrow_bags all;
  const hotrow_batch whole = Batch(&all);
  hotrow_bags bags[2] = {all, all};
  const int64_t item_offsets[] = {0, 1, 3, 4};
  const int64_t category_offsets[] = {0, 1, 2, 3};
  bags[0].offsets = item_offsets;
  bags[0].num_values = 4;
  bags[1].offsets = category_offsets;
  bags[1].values = kValues + 4;
  bags[1].num_values = 3;
  for (int apart = 0; apart < 2; ++apart) {
    hotrow_collection* tables = NULL;
    CHECK_OK(Create(NULL, 0, &tables));
    const float* scores[2] = {kScores, kScores + 4};
    hotrow_batch batch = whole;
    if (apart) batch.bags = bags, batch.num_features = 2;
    batch.scores = scores;
    float floats[kBatch * 2 * kDim];
    const hotrow_matrix matrix = Matrix(floats);
    hotrow_step* step = NULL;
    CHECK_OK(hotrow_prefetch(tables, &batch, &step));
    CHECK_OK(hotrow_step_lookup(step, &matrix, NULL, 0));
    CHECK_OK(hotrow_step_update(step, &matrix, NULL, 0, 1));
    hotrow_step_destroy(step);
    Seen seen = {.tables = tables};
    CHECK_OK(hotrow_for_each_row(tables, "items", See, &seen));
    CHECK(seen.rows == 2 && seen.keys == 1 + 2);
    /* Of one feature alone. */
    if (apart) scores[0] = NULL;
    CHECK_OK(hotrow_evaluate(tables, &batch, &matrix, NULL, 0));
    const float wrong[] = {0, 0, 0, 0, 0, 0, INFINITY};
    scores[0] = wrong;
    scores[1] = wrong + 4;
    CHECK_FAILS(hotrow_prefetch(tables, &batch, &step), HOTROW_INVALID_ARGUMENT, "sample 2");
    hotrow_collection_destroy(tables);
  }
  score = "best";
  hotrow_collection* none = NULL;
  CHECK_FAILS(Create(NULL, 0, &none), HOTROW_INVALID_ARGUMENT, "max, sum, last");
  score = NULL;
  CHECK_FAILS(Create(NULL, 0, &none), HOTROW_INVALID_ARGUMENT, "max_rows_by");
  max_rows = 0;
}

static void TestRefusals(void) {
  hotrow_collection* tables = NULL;
  hotrow_collection_options options;
  hotrow_collection_options_default(&options, sizeof(options));
  CHECK_FAILS(hotrow_collection_create(NULL, NULL, &tables), HOTROW_INVALID_ARGUMENT, "options");
  CHECK_FAILS(hotrow_collection_create(NULL, &options, &tables), HOTROW_INVALID_ARGUMENT, "tables");
  options.struct_size = 3;
  CHECK_FAILS(hotrow_collection_create(NULL, &options, &tables), HOTROW_INVALID_ARGUMENT,
              "struct_size");
  /* A newer header: fields that are zero say nothing. */
  struct {
    hotrow_context_options known;
    int64_t unknown;
  } newer;
  hotrow_context* context = NULL;
  hotrow_context_options_default(&newer.known, sizeof(newer));
  CHECK(newer.unknown == 0 && newer.known.struct_size == sizeof(newer));
  newer.known.threads = 1;
  CHECK_OK(hotrow_context_create(&newer.known, &context));
  hotrow_context_destroy(context);
  newer.unknown = 1;
  CHECK_FAILS(hotrow_context_create(&newer.known, &context), HOTROW_UNIMPLEMENTED, "does not know");
  newer.unknown = 0;
  newer.known.device = "tpu";
  CHECK_FAILS(hotrow_context_create(&newer.known, &context), HOTROW_INVALID_ARGUMENT, "device");
  newer.known.device = "cpu";
  newer.known.device_index = 1;
  CHECK_FAILS(hotrow_context_create(&newer.known, &context), HOTROW_INVALID_ARGUMENT,
              "device_index: is 1, must lie in [0, 1)");
  /* The first header: its struct ends before that. */
  hotrow_context_options_default(&newer.known, offsetof(hotrow_context_options, device_index));
  CHECK_OK(hotrow_context_create(&newer.known, &context));
  hotrow_context_destroy(context);

  CHECK_OK(Create(NULL, 0, &tables));
  hotrow_bags bags;
  hotrow_batch batch = Batch(&bags);
  hotrow_step* step = NULL;
  bags.values_type = HOTROW_FLOAT32;
  CHECK_FAILS(hotrow_prefetch(tables, &batch, &step), HOTROW_INVALID_ARGUMENT, "values_type");
  batch = Batch(&bags);
  bags.values = (const char*)kValues + 1;
  CHECK_FAILS(hotrow_prefetch(tables, &batch, &step), HOTROW_INVALID_ARGUMENT, "aligned");
  batch = Batch(&bags);
  bags.lengths = kOffsets;
  CHECK_FAILS(hotrow_prefetch(tables, &batch, &step), HOTROW_INVALID_ARGUMENT, "both");
  batch = Batch(&bags);
  bags.num_values = -1;
  CHECK_FAILS(hotrow_prefetch(tables, &batch, &step), HOTROW_INVALID_ARGUMENT, "num_values");
  batch = Batch(&bags);
  batch.batch_size = INT64_MAX;
  CHECK_FAILS(hotrow_prefetch(tables, &batch, &step), HOTROW_INVALID_ARGUMENT, "batch_size");
  batch = Batch(&bags);
  batch.batch_size = -1;
  CHECK_FAILS(hotrow_prefetch(tables, &batch, &step), HOTROW_INVALID_ARGUMENT, "batch_size");
  batch = Batch(&bags);
  batch.num_features = 1;
  CHECK_FAILS(hotrow_prefetch(tables, &batch, &step), HOTROW_INVALID_ARGUMENT, "num_features");
  batch = Batch(&bags);
  batch.on_device = 1;
  CHECK_FAILS(hotrow_prefetch(tables, &batch, &step), HOTROW_INVALID_ARGUMENT, "not on a GPU");
  CHECK(step == NULL);
  batch.struct_size = offsetof(hotrow_batch, on_device); /* of a program that does not know it */
  CHECK_OK(hotrow_prefetch(tables, &batch, &step));
  hotrow_step_destroy(step);
  step = NULL;
  batch = Batch(&bags);
  CHECK_OK(hotrow_prefetch(tables, &batch, &step));
  float output[kBatch * 2 * kDim];
  hotrow_matrix matrix = Matrix(output);
  matrix.rows = kBatch + 1;
  CHECK_FAILS(hotrow_step_lookup(step, &matrix, NULL, 0), HOTROW_INVALID_ARGUMENT, "");
  matrix = Matrix(NULL);
  CHECK_FAILS(hotrow_step_lookup(step, &matrix, NULL, 0), HOTROW_INVALID_ARGUMENT, "pooled");
  CHECK_FAILS(hotrow_checkpoint_begin(tables, NULL, 0), HOTROW_FAILED_PRECONDITION,
              "checkpoint_dir");
  hotrow_step_destroy(step);
  hotrow_collection_destroy(tables);
  hotrow_collection_destroy(NULL);
  hotrow_step_destroy(NULL);
}

static void TestCheckpoints(const char* dir) {
  hotrow_collection* tables = NULL;
  CHECK_OK(Create(dir, 1, &tables));
  Train(tables);
  const hotrow_blob blobs[] = {{.name = "model", .data = "weights", .size = 7},
                               {.name = "empty", .data = NULL, .size = 0}};
  CHECK_FAILS(hotrow_snapshot_begin(tables, 5), HOTROW_FAILED_PRECONDITION, "checkpoint_dir");
  CHECK_OK(hotrow_checkpoint_begin(tables, blobs, 2));
  CHECK_FAILS(hotrow_checkpoint_begin(tables, blobs, 2), HOTROW_FAILED_PRECONDITION, "written");
  CHECK_OK(hotrow_checkpoint_wait(tables));
  const hotrow_blob twice[] = {{.name = "a"}, {.name = "a"}};
  CHECK_FAILS(hotrow_checkpoint_begin(tables, twice, 2), HOTROW_INVALID_ARGUMENT, "twice");
  char expected[4096];
  Digest(tables, expected, sizeof(expected));
  Train(tables); /* not in the checkpoint */
  hotrow_collection* second = NULL;
  CHECK_FAILS(Create(dir, 1, &second), HOTROW_FAILED_PRECONDITION, "lock");
  hotrow_collection_destroy(tables);

  CHECK_FAILS(Create(dir, 0, &tables), HOTROW_FAILED_PRECONDITION, "resume");
  CHECK_OK(Create(dir, 1, &tables));
  char text[4096];
  Digest(tables, text, sizeof(text));
  CHECK(strcmp(text, expected) == 0);
  int64_t steps = 0;
  CHECK_OK(hotrow_steps(tables, &steps));
  CHECK(steps == 1);
  CHECK_OK(hotrow_checkpoint_newest(tables, text, sizeof(text), NULL));
  hotrow_saved* saved = NULL;
  CHECK_OK(hotrow_saved_open(text, &saved));
  CHECK_OK(hotrow_saved_describe(saved, text, sizeof(text), NULL));
  CHECK(strstr(text, "{\"name\":\"model\",\"bytes\":7}") != NULL);
  char blob[16];
  uint64_t needed = 0;
  CHECK_OK(hotrow_saved_blob(saved, "model", blob, sizeof(blob), &needed));
  CHECK(needed == 7 && memcmp(blob, "weights", 7) == 0);
  CHECK_OK(hotrow_saved_blob(saved, "empty", NULL, 0, &needed));
  CHECK(needed == 0);
  CHECK_FAILS(hotrow_saved_blob(saved, "model", blob, 6, &needed), HOTROW_OUT_OF_RANGE, "7 bytes");
  CHECK_FAILS(hotrow_saved_blob(saved, "none", blob, 6, &needed), HOTROW_NOT_FOUND, "none");
  hotrow_saved_destroy(saved);
  Train(tables);
  CHECK_OK(hotrow_checkpoint_begin(tables, NULL, 0));
  CHECK_OK(hotrow_collection_close(tables)); /* waits for it */
  hotrow_collection_destroy(tables);
  CHECK_OK(hotrow_saved_open(dir, &saved));
  CHECK_OK(hotrow_saved_describe(saved, text, sizeof(text), NULL));
  CHECK(strstr(text, "\"step\":2") != NULL);
  hotrow_saved_destroy(saved);
}

/* One step over the first `batch_size` samples of the batch. */
static void Step(hotrow_collection* tables, int64_t batch_size) {
  const int32_t lengths[] = {1, 2, 1};
  const int32_t ones[] = {1, 1, 1};
  const hotrow_bags bags[2] = {{.values = kValues,
                                .lengths = lengths,
                                .num_values = batch_size == 1 ? 1 : 4,
                                .values_type = HOTROW_UINT64,
                                .bags_type = HOTROW_INT32},
                               {.values = kValues + 4,
                                .lengths = ones,
                                .num_values = batch_size,
                                .values_type = HOTROW_UINT64,
                                .bags_type = HOTROW_INT32}};
  const hotrow_batch batch = {
      .struct_size = sizeof(batch), .batch_size = batch_size, .bags = bags, .num_features = 2};
  hotrow_step* step = NULL;
  float values[kBatch * 2 * kDim];
  hotrow_matrix matrix = Matrix(values);
  matrix.rows = batch_size;
  CHECK_OK(hotrow_prefetch(tables, &batch, &step));
  CHECK_OK(hotrow_step_lookup(step, &matrix, NULL, 0));
  CHECK_OK(hotrow_step_update(step, &matrix, NULL, 0, 0.5f));
  hotrow_step_destroy(step);
}

static void Count(void* user) { ++*(int*)user; }

/* A batch that is not copied trains the same rows, and is let go of once. */
static void TestInPlace(void) {
  char digests[2][4096];
  for (int in_place = 0; in_place < 2; ++in_place) {
    hotrow_collection* tables = NULL;
    CHECK_OK(Create(NULL, 0, &tables));
    hotrow_bags bags;
    hotrow_batch batch = Batch(&bags);
    float floats[kBatch * 2 * kDim];
    const hotrow_matrix matrix = Matrix(floats);
    hotrow_step* step = NULL;
    int released = 0;
    CHECK_OK(in_place ? hotrow_prefetch_in_place(tables, &batch, Count, &released, &step)
                      : hotrow_prefetch(tables, &batch, &step));
    memset(&bags, 0xff, sizeof(bags));
    CHECK_OK(hotrow_step_lookup(step, &matrix, NULL, 0));
    CHECK(released == 0);
    CHECK_OK(hotrow_step_update(step, &matrix, NULL, 0, 1));
    CHECK(released == in_place);
    hotrow_step_destroy(step);
    Digest(tables, digests[in_place], sizeof(digests[in_place]));
    if (in_place) {
      /* Destroyed, refused, without a callback, and left to the end of the collection. */
      batch = Batch(&bags);
      CHECK_OK(hotrow_prefetch_in_place(tables, &batch, Count, &released, &step));
      hotrow_step_destroy(step);
      CHECK(released == 2);
      bags.values_type = 0;
      CHECK_FAILS(hotrow_prefetch_in_place(tables, &batch, Count, &released, &step),
                  HOTROW_INVALID_ARGUMENT, "values_type");
      CHECK_FAILS(hotrow_prefetch_in_place(NULL, &batch, Count, &released, &step),
                  HOTROW_INVALID_ARGUMENT, "collection");
      CHECK(released == 4);
      batch = Batch(&bags);
      hotrow_step* other = NULL;
      CHECK_OK(hotrow_prefetch_in_place(tables, &batch, NULL, NULL, &other));
      CHECK_OK(hotrow_prefetch_in_place(tables, &batch, Count, &released, &step));
      hotrow_collection_destroy(tables);
      CHECK(released == 5);
      hotrow_step_destroy(other);
      hotrow_step_destroy(step);
    } else {
      hotrow_collection_destroy(tables);
    }
  }
  CHECK(strcmp(digests[0], digests[1]) == 0);
}

/* Whole-table decay goes on over a checkpoint with the bits of a run that was never interrupted. */
static void TestDecay(const char* dir) {
  char text[4096];
  char expected[4096];
  decay_mode = "table";
  hotrow_collection* tables = NULL;
  CHECK_OK(Create(NULL, 0, &tables));
  for (int i = 0; i < 2; ++i) Step(tables, kBatch - 2 * i);
  for (int i = 0; i < 2; ++i) Step(tables, kBatch - 2 * i);
  CHECK_OK(hotrow_settle(tables));
  Digest(tables, expected, sizeof(expected));
  hotrow_collection_destroy(tables);

  for (int i = 0; i < 2; ++i) { /* the second time from the checkpoint of the first */
    CHECK_OK(Create(dir, 1, &tables));
    Step(tables, kBatch);
    Step(tables, 1);
    CHECK_OK(hotrow_checkpoint_begin(tables, NULL, 0));
    CHECK_OK(hotrow_checkpoint_wait(tables));
    if (i == 1) {
      CHECK_OK(hotrow_settle(tables));
      Digest(tables, text, sizeof(text));
      CHECK(strcmp(text, expected) == 0);
    }
    hotrow_collection_destroy(tables);
  }

  decay_mode = NULL; /* rows have yet to make up for steps */
  CHECK_FAILS(Create(dir, 1, &tables), HOTROW_FAILED_PRECONDITION, "weight_decay_mode");
  decay_mode = "table"; /* and by the numbers of those steps */
  decay = 0.25f;
  CHECK_FAILS(Create(dir, 1, &tables), HOTROW_FAILED_PRECONDITION, "same optimizers");
  decay = 0.125f;
  num_read_only = 2;
  CHECK_FAILS(Create(dir, 1, &tables), HOTROW_FAILED_PRECONDITION, "same tables");
  num_read_only = 0;
  char to[80];
  snprintf(to, sizeof(to), "%s-exported", dir);
  hotrow_export_options out;
  hotrow_export_options_default(&out, sizeof(out));
  out.from = dir;
  out.to = to;
  CHECK_FAILS(hotrow_export(&out), HOTROW_FAILED_PRECONDITION, "hotrow_settle");
  decay_mode = "table";
  CHECK_OK(Create(dir, 1, &tables));
  Step(tables, 1);
  CHECK_OK(hotrow_settle(tables));
  CHECK_OK(hotrow_checkpoint_begin(tables, NULL, 0));
  CHECK_OK(hotrow_collection_close(tables));
  hotrow_collection_destroy(tables);
  CHECK_OK(hotrow_export(&out));

  /* Keys that came first after settled tables were taken up again have missed steps, too. */
  snprintf(to, sizeof(to), "%s-settled", dir);
  for (int i = 0; i < 2; ++i) {
    CHECK_OK(Create(i == 0 ? NULL : to, i, &tables));
    Step(tables, 1);
    Step(tables, 1);
    CHECK_OK(hotrow_settle(tables));
    if (i == 1) {
      CHECK_OK(hotrow_checkpoint_begin(tables, NULL, 0));
      CHECK_OK(hotrow_collection_close(tables));
      hotrow_collection_destroy(tables);
      CHECK_OK(Create(to, 1, &tables));
    }
    Step(tables, kBatch);
    Digest(tables, i == 0 ? expected : text, sizeof(text));
    hotrow_collection_destroy(tables);
  }
  CHECK(strcmp(text, expected) == 0);
  decay_mode = NULL;
}

/* A table whose features are all read-only: nothing is trained, and no row is made. */
static void TestFrozen(void) {
  num_read_only = 2;
  hotrow_collection* tables = NULL;
  CHECK_OK(Create(NULL, 0, &tables));
  Step(tables, kBatch);
  char text[4096];
  Digest(tables, text, sizeof(text));
  CHECK(strstr(text, "\"rows\":0") != NULL);
  hotrow_collection_destroy(tables);
  num_read_only = -1;
  CHECK_FAILS(Create(NULL, 0, &tables), HOTROW_INVALID_ARGUMENT, "read_only_features");
  num_read_only = 0;
}

/* To plain arrays and back. */
static void TestPortable(const char* dir) {
  char checkpoints[80];
  char arrays[80];
  char back[80];
  snprintf(checkpoints, sizeof(checkpoints), "%s/saved", dir);
  snprintf(arrays, sizeof(arrays), "%s/arrays", dir);
  snprintf(back, sizeof(back), "%s/back", dir);
  hotrow_collection* tables = NULL;
  CHECK_OK(Create(checkpoints, 0, &tables));
  Train(tables);
  const hotrow_blob blob = {.name = "model", .data = "weights", .size = 7};
  CHECK_OK(hotrow_checkpoint_begin(tables, &blob, 1));
  CHECK_OK(hotrow_checkpoint_wait(tables));
  char expected[4096];
  Digest(tables, expected, sizeof(expected));
  CHECK_OK(hotrow_collection_close(tables));
  hotrow_collection_destroy(tables);

  hotrow_export_options out;
  hotrow_export_options_default(&out, sizeof(out));
  CHECK(out.shard_bytes == 1 << 30 && out.memory_bytes == 256 << 20);
  CHECK_FAILS(hotrow_export(NULL), HOTROW_INVALID_ARGUMENT, "options");
  CHECK_FAILS(hotrow_export(&out), HOTROW_INVALID_ARGUMENT, "from");
  out.from = checkpoints;
  CHECK_FAILS(hotrow_export(&out), HOTROW_INVALID_ARGUMENT, "to");
  out.to = arrays;
  out.shard_bytes = 0;
  CHECK_FAILS(hotrow_export(&out), HOTROW_INVALID_ARGUMENT, "shard_bytes");
  out.shard_bytes = 64; /* several files */
  CHECK_OK(hotrow_export(&out));
  CHECK_FAILS(hotrow_export(&out), HOTROW_FAILED_PRECONDITION, arrays); /* it is there */

  hotrow_import_options in;
  hotrow_import_options_default(&in, sizeof(in));
  in.from = arrays;
  in.to = back;
  CHECK_FAILS(hotrow_import(&in), HOTROW_INVALID_ARGUMENT, "store_memory_bytes");
  in.store_memory_bytes = 16 << 20;
  in.store = "tape";
  CHECK_FAILS(hotrow_import(&in), HOTROW_INVALID_ARGUMENT, "store");
  in.store = NULL;
  in.store_path = back;
  CHECK_FAILS(hotrow_import(&in), HOTROW_INVALID_ARGUMENT, "store_path");
  CHECK(strstr(hotrow_error_message(), "--") == NULL); /* no flag of a program */
  in.store_path = NULL;
  CHECK_OK(hotrow_import(&in));
  hotrow_saved* saved = NULL;
  char bytes[8];
  CHECK_OK(hotrow_saved_open(back, &saved));
  CHECK_OK(hotrow_saved_blob(saved, "model", bytes, sizeof(bytes), NULL));
  CHECK(memcmp(bytes, "weights", 7) == 0);
  hotrow_saved_destroy(saved);
  CHECK_OK(Create(back, 1, &tables));
  char text[4096];
  Digest(tables, text, sizeof(text));
  CHECK(strcmp(text, expected) == 0);
  int64_t steps = 0;
  CHECK_OK(hotrow_steps(tables, &steps));
  CHECK(steps == 1);
  hotrow_collection_destroy(tables);
}

/* A model with a dense part of others; what it scores, tests/models/onnx_dense_test.cc says. */
static void TestOnnx(const char* dir) {
  char to[80];
  snprintf(to, sizeof(to), "%s/served", dir);
  hotrow_collection* tables = NULL;
  CHECK_OK(Create(NULL, 0, &tables));
  Train(tables);
  hotrow_onnx_options out;
  hotrow_onnx_options_default(&out, sizeof(out));
  CHECK(out.shard_bytes == 1 << 30 && out.memory_bytes == 256 << 20);
  CHECK_FAILS(hotrow_export_onnx(tables, NULL), HOTROW_INVALID_ARGUMENT, "options");
  CHECK_FAILS(hotrow_export_onnx(tables, &out), HOTROW_INVALID_ARGUMENT, "options.to");
  out.to = to;
  CHECK_FAILS(hotrow_export_onnx(tables, &out), HOTROW_INVALID_ARGUMENT, "options.dense");
  out.dense = "layers";
  out.dense_size = 6;
  out.num_dense = -1;
  CHECK_FAILS(hotrow_export_onnx(tables, &out), HOTROW_INVALID_ARGUMENT, "options.num_dense");
  out.num_dense = 1;
  out.memory_bytes = -1;
  CHECK_FAILS(hotrow_export_onnx(tables, &out), HOTROW_INVALID_ARGUMENT, "options.memory_bytes");
  out.memory_bytes = 1 << 20;
  out.schema =
      "{\"name\": \"shop\", \"columns\": [{\"name\": \"click\", \"role\": \"label\"},"
      "{\"name\": \"item\", \"role\": \"categorical\", \"key\": \"integer\"}]}";
  CHECK_FAILS(hotrow_export_onnx(tables, &out), HOTROW_INVALID_ARGUMENT, "options.schema");
  out.schema = NULL;
  CHECK_OK(hotrow_export_onnx(tables, &out));
  CHECK_FAILS(hotrow_export_onnx(tables, &out), HOTROW_FAILED_PRECONDITION, to); /* it is there */
  hotrow_collection_destroy(tables);

  hotrow_scorer_options options;
  hotrow_scorer_options_default(&options, sizeof(options));
  options.model = to;
  options.onnxruntime = "/nowhere.so";
  hotrow_scorer* scorer = NULL;
  CHECK_FAILS(hotrow_scorer_open(&options, &scorer), HOTROW_FAILED_PRECONDITION,
              "options.onnxruntime");
}

static void TestData(void) {
  hotrow_data* data = NULL;
  CHECK_FAILS(hotrow_data_open("none", 1, &data), HOTROW_INVALID_ARGUMENT, "none");
  hotrow_data_options options;
  hotrow_data_options_default(&options, sizeof(options));
  CHECK(options.reader_threads == 1 && options.seed == 0 && options.reserved == 0);
  CHECK_FAILS(hotrow_data_open_with("none", &options, &data), HOTROW_INVALID_ARGUMENT, "none");
  CHECK_FAILS(hotrow_data_open_with("none", NULL, &data), HOTROW_INVALID_ARGUMENT, "options");
  options.reader_threads = 0;
  CHECK_FAILS(hotrow_data_open_with("none", &options, &data), HOTROW_INVALID_ARGUMENT,
              "reader_threads: is 0");
  options.reader_threads = 3;
  options.reserved = 1;
  CHECK_FAILS(hotrow_data_open_with("none", &options, &data), HOTROW_INVALID_ARGUMENT, "reserved");
  options.reserved = 0;
  options.seed = 1;
  CHECK_OK(
      hotrow_data_open_with("synthetic:tables=3,rows=100,samples=10,dense=2", &options, &data));
  hotrow_data_destroy(data);
  CHECK_OK(hotrow_data_open("synthetic:tables=3,rows=100,samples=10,dense=2", 1, &data));
  char text[4096];
  CHECK_OK(hotrow_data_describe(data, text, sizeof(text), NULL));
  CHECK(strstr(text, "\"num_dense\":2") != NULL);
  hotrow_reader* reader = NULL;
  hotrow_samples* samples = NULL;
  CHECK_FAILS(hotrow_reader_open(data, "holiday", 0, 0, &reader), HOTROW_INVALID_ARGUMENT, "split");
  CHECK_OK(hotrow_reader_open(data, "train", 0, 4, &reader));
  hotrow_data_destroy(data); /* the reader keeps it */
  CHECK_OK(hotrow_samples_create(&samples));
  hotrow_samples_view view = {.struct_size = sizeof(view)};
  int64_t read = 0;
  do {
    CHECK_OK(hotrow_reader_next(reader, 4, samples, &view));
    read += view.batch_size;
    if (view.batch_size > 0) {
      CHECK(view.num_features == 3 && view.num_dense == 2 && view.num_labels == 1);
      CHECK(view.offsets[3 * view.batch_size] == view.num_values);
    }
  } while (view.batch_size > 0);
  CHECK(read == 6);
  CHECK_FAILS(hotrow_reader_next(reader, 0, samples, &view), HOTROW_INVALID_ARGUMENT,
              "max_samples");
  hotrow_samples_destroy(samples);
  hotrow_reader_destroy(reader);
}

/* Samples of this program's own, packed and read by two ranks. */
static void TestPacking(const char* dir) {
  char path[512];
  snprintf(path, sizeof(path), "%s/packed", dir);
  const char* const labels[] = {"click", "buy"};
  hotrow_packer_options options;
  hotrow_packer_options_default(&options, sizeof(options));
  CHECK(options.block_samples == 8192);
  hotrow_packer* packer = NULL;
  CHECK_FAILS(hotrow_packer_create(&options, &packer), HOTROW_INVALID_ARGUMENT, "dir: is null");
  options.dir = path;
  CHECK_FAILS(hotrow_packer_create(&options, &packer), HOTROW_INVALID_ARGUMENT, "features");
  options.features = kFeatures;
  options.num_features = 2;
  options.labels = labels;
  options.num_labels = 2;
  options.num_dense = 1;
  options.block_samples = 0;
  CHECK_FAILS(hotrow_packer_create(&options, &packer), HOTROW_INVALID_ARGUMENT, "block_samples");
  options.block_samples = 4;
  const char* const dense_names[] = {"price"};
  int64_t most[] = {1, 65536};
  options.dense = dense_names;
  options.max_hotness = most;
  CHECK_FAILS(hotrow_packer_create(&options, &packer), HOTROW_INVALID_ARGUMENT, "max_hotness[1]");
  most[1] = 2;
  options.dense_precision = "fp8";
  CHECK_FAILS(hotrow_packer_create(&options, &packer), HOTROW_INVALID_ARGUMENT, "dense_precision");
  options.dense_precision = "fp16";
  CHECK_OK(hotrow_packer_create(&options, &packer));

  enum { kSamples = 3 };
  const int32_t items[] = {7, 8, 9};
  const int64_t categories[] = {1, 2, 3, 4};
  const int32_t lengths[] = {2, 0, 2};
  const int64_t offsets[] = {0, 1, 2, 3};
  hotrow_bags bags[2] = {{.values = items,
                          .offsets = offsets,
                          .num_values = 3,
                          .values_type = HOTROW_INT32,
                          .bags_type = HOTROW_INT64},
                         {.values = categories,
                          .lengths = lengths,
                          .num_values = 4,
                          .values_type = HOTROW_INT64,
                          .bags_type = HOTROW_INT32}};
  const hotrow_batch batch = {
      .struct_size = sizeof(batch), .batch_size = kSamples, .bags = bags, .num_features = 2};
  float numbers[] = {0.5f, 1.5f, 2.5f};
  float clicks[] = {1, 0, 0, 1, 1, 1};
  const hotrow_matrix dense = {numbers, kSamples, 1, 1, HOTROW_FLOAT32, 0};
  const hotrow_matrix targets = {clicks, kSamples, 2, 2, HOTROW_FLOAT32, 0};
  CHECK_FAILS(hotrow_packer_append(packer, "all", &batch, &dense, &targets),
              HOTROW_INVALID_ARGUMENT, "split");
  CHECK_FAILS(hotrow_packer_append(packer, "train", &batch, NULL, &targets),
              HOTROW_INVALID_ARGUMENT, "dense: is null");
  CHECK_FAILS(hotrow_packer_append(packer, "train", &batch, &dense, &dense),
              HOTROW_INVALID_ARGUMENT, "labels: is [3, 1], must be [3, 2]");
  CHECK_OK(hotrow_packer_append(packer, "train", &batch, &dense, &targets));
  CHECK_OK(hotrow_packer_append(packer, "train", &batch, &dense, &targets));
  CHECK_OK(hotrow_packer_append(packer, "test", &batch, &dense, &targets));
  CHECK_OK(hotrow_packer_finish(packer));
  CHECK_FAILS(hotrow_packer_finish(packer), HOTROW_FAILED_PRECONDITION, "has finished");
  hotrow_packer_destroy(packer);
  CHECK_FAILS(hotrow_packer_create(&options, &packer), HOTROW_FAILED_PRECONDITION, path);

  char spec[600];
  snprintf(spec, sizeof(spec), "packed:%s", path);
  hotrow_data_options reading;
  hotrow_data_options_default(&reading, sizeof(reading));
  CHECK(reading.shuffle_bytes > 0 && reading.rank == 0 && reading.world_size == 1);
  hotrow_data* data = NULL;
  reading.rank = 2;
  reading.world_size = 2;
  CHECK_FAILS(hotrow_data_open_with(spec, &reading, &data), HOTROW_INVALID_ARGUMENT, "rank: is 2");
  reading.shuffle_bytes = 0; /* in order */
  for (reading.rank = 0; reading.rank < 2; ++reading.rank) {
    hotrow_reader* reader = NULL;
    hotrow_samples* samples = NULL;
    CHECK_OK(hotrow_data_open_with(spec, &reading, &data));
    CHECK_OK(hotrow_reader_open(data, "train", 0, 0, &reader));
    CHECK_OK(hotrow_samples_create(&samples));
    hotrow_samples_view view = {.struct_size = sizeof(view)};
    CHECK_OK(hotrow_reader_next(reader, 4, samples, &view));
    CHECK(view.batch_size == 2 && view.global_batch_size == 4);
    CHECK(view.values[0] == (reading.rank == 0 ? 7 : 9));
    CHECK(view.labels[1] == (reading.rank == 0 ? 0 : 1));
    CHECK(view.dense[0] == (reading.rank == 0 ? 0.5f : 2.5f));
    CHECK(view.num_values == (reading.rank == 0 ? 4 : 6));
    CHECK_OK(hotrow_reader_next(reader, 4, samples, &view));
    CHECK(view.batch_size == 1 && view.global_batch_size == 2);
    CHECK_OK(hotrow_reader_next(reader, 4, samples, &view));
    CHECK(view.global_batch_size == 0);
    hotrow_samples_destroy(samples);
    hotrow_reader_destroy(reader);
    hotrow_data_destroy(data);
  }

  /* What cannot be packed ends it, and nothing is left. */
  snprintf(path, sizeof(path), "%s/half", dir);
  CHECK_OK(hotrow_packer_create(&options, &packer));
  clicks[0] = 0.5f;
  CHECK_FAILS(hotrow_packer_append(packer, "train", &batch, &dense, &targets),
              HOTROW_INVALID_ARGUMENT, "label 0.5");
  CHECK_FAILS(hotrow_packer_append(packer, "train", &batch, &dense, &targets),
              HOTROW_FAILED_PRECONDITION, "begin again");
  hotrow_packer_destroy(packer);
  snprintf(spec, sizeof(spec), "packed:%s", path);
  CHECK_FAILS(hotrow_data_open(spec, 1, &data), HOTROW_NOT_FOUND, path);
}

/* Each thread has its own message. */
static void* FailOnce(void* unused) {
  (void)unused;
  CHECK(strcmp(hotrow_error_message(), "") == 0);
  CHECK_FAILS(hotrow_flush(NULL), HOTROW_INVALID_ARGUMENT, "collection");
  return NULL;
}

static void TestMessages(void) {
  CHECK_FAILS(hotrow_context_create(NULL, NULL), HOTROW_INVALID_ARGUMENT, "context");
  pthread_t thread;
  if (pthread_create(&thread, NULL, FailOnce, NULL) == 0) pthread_join(thread, NULL);
  CHECK(strstr(hotrow_error_message(), "context") != NULL);
  CHECK(strcmp(hotrow_status_name(HOTROW_DATA_LOSS), "DATA_LOSS") == 0);
  CHECK(strlen(hotrow_version()) > 0);
  char found[4096];
  CHECK_OK(hotrow_environment(found, sizeof(found), NULL));
  CHECK(strstr(found, hotrow_version()) != NULL);
}

int main(void) {
  char dir[] = "/tmp/hotrow_capi_XXXXXX";
  if (mkdtemp(dir) == NULL) return 1;
  TestMessages();
  TestTraining();
  TestInPlace();
  TestRows();
  TestScores();
  TestRefusals();
  char checkpoints[64];
  snprintf(checkpoints, sizeof(checkpoints), "%s/checkpoints", dir);
  TestCheckpoints(checkpoints);
  TestFrozen();
  TestPortable(dir);
  TestOnnx(dir);
  snprintf(checkpoints, sizeof(checkpoints), "%s/decaying", dir);
  TestDecay(checkpoints);
  TestData();
  TestPacking(dir);
  char remove[96];
  snprintf(remove, sizeof(remove), "rm -rf '%s'", dir);
  if (system(remove) != 0) ++failures;
  printf(failures == 0 ? "all passed\n" : "%d failed\n", failures);
  return failures == 0 ? 0 : 1;
}
