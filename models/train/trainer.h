#ifndef HOTROW_MODELS_TRAIN_TRAINER_H_
#define HOTROW_MODELS_TRAIN_TRAINER_H_

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "base/exec_context.h"
#include "models/data/data_source.h"
#include "models/train/report.h"
#include "models/train/trainer_options.h"
#include "models/zoo/ctr_model.h"

namespace hotrow {

using ModelFactory =
    std::function<absl::StatusOr<std::unique_ptr<CtrModel>>(const DataSchema& schema)>;

// Trains the factory's model on the train split, with the tables of the schema, and evaluates it on
// validation and test data. Up to prefetch_depth steps are prefetched; batches are read ahead on
// one more thread if ctx.pool has more than one.
//
// Early stopping: test data is evaluated whenever validation improves. The report's metrics are
//     those of the best validation, though training went on from there: nothing is rolled back.
//     Without schedule.early_stop_patience they are those of the end.
// Windows: with window_seconds the training samples, which `data` gives in the order of the files
//     and of time, are cut into windows (models/data/windowed_source.h). Each is judged as it
//     comes, but for the first of new parameters, and then trained; a checkpoint stands behind
//     each. Validation data are not looked at. A run that resumes needs the windows that it has
//     begun as they were; others may have come behind them. With follow_seconds it waits for those.
// init_from: starts from the rows, optimizer state and dense parameters of a saved model, and from
//     the dense optimizer's state if its kind is the same. The step number of optimizers and
//     dropout goes on; schedule and epochs start again. New keys get rows by options.seed. Saving
//     and starting from the model gives the bits of an uninterrupted run.
// checkpoint_dir: checkpoints hold the whole run: tables, dense parameters, the state of both
//     optimizers, the position in the data, the state of validation. One is taken every
//     checkpoint_every steps while training goes on, at the end, and on a stop_signal; the last two
//     are waited for. If the rows that only checkpoints hold take much of a store's disk budget,
//     checkpoints are taken early and fewer are kept.
// resume: continues from the newest checkpoint. The run ends with the bits of one that was never
//     interrupted, however the process ended. Settings that decide bits must be those of the
//     checkpoint (FailedPrecondition, which names each difference); tiers, threads,
//     checkpoint_every and the number of epochs may differ. Another kind of processor, whose matrix
//     products have other bits, is only a warning in `notices`. Without resume, a checkpoint_dir
//     with checkpoints and a store_path with rows are errors.
// Bits: depend on data, model and options, but not on cache_bytes, cache_policy, store,
//     prefetch_depth, the size of ctx.pool, or the frequency of validation, unless the schedule
//     acts on it.
// Ranks: every rank calls it and returns the same metrics. Counts and bytes of the report are those
//     of all ranks together, peak_rss_bytes is the largest, times and stages are the rank's own.
//     Dense gradients are summed in rank order; dense parameters are the same on all ranks. For a
//     fixed number of ranks a run repeats bit for bit on any tiers. All ranks must see the
//     directories; store_path may be local. A checkpoint resumes on any number of ranks. With
//     exchange_feedback_bytes it holds each rank's residuals, which start at zero on another number
//     of ranks, with another budget, and after init_from. An error of one rank ends all ranks and
//     names it. A store without room is such an error too, though one rank alone would make room.
//
// Uses ctx.trace for stages; leaves `flags` of the report empty. Errors: InvalidArgument (options,
// malformed data), ResourceExhausted (a budget too small for one step), OutOfRange (the loss is not
// finite), FailedPrecondition and DataLoss (a saved model that does not fit or is damaged; see
// models/saving/saved_model.h), and those of data source and store.
absl::StatusOr<TrainReport> RunTraining(const TrainerOptions& options, DataSource& data,
                                        const ModelFactory& factory, const ExecContext& ctx);

}  // namespace hotrow

#endif  // HOTROW_MODELS_TRAIN_TRAINER_H_
