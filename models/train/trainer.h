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

// Trains the model that the factory makes on the train split, with the tables that the schema
// names, and evaluates it on validation and test data. Steps are prefetched up to prefetch_depth
// ahead; batches are read ahead on one more thread when ctx.pool has more than one.
//
// With schedule.early_stop_patience, test data is evaluated whenever validation improves, and the
// report's metrics are those of the best validation, although training went on from there: nothing
// need be rolled back. Otherwise they are those of the end.
//
// init_from starts from a saved model: its rows and their optimizer state, dense parameters and, if
// the dense optimizer is of the same kind, its state; the step number of optimizers and dropout
// goes on, the schedule and the epochs of the new data start anew. Keys that the model does not
// have join as new rows do, by options.seed. Saving and going on gives the bits of a run that went
// on without a stop.
//
// checkpoint_dir keeps checkpoints of the whole run: tables, dense parameters, the state of both
// optimizers, where the data stand, what validation has shown so far. One is taken every
// checkpoint_every steps while training goes on, at the end, and on a stop_signal; that one is
// waited for. resume goes on from the newest one: parameters, rows and metrics then end with the
// bits of a run that was never interrupted, whatever batch was prefetched and however the process
// ended. Settings that change bits must be those of the checkpoint (FailedPrecondition, naming
// each); on a processor of another kind, whose matrix products have other bits, it goes on and says
// so in `notices`; tiers, threads, checkpoint_every and the number of epochs may be others. Without
// resume a checkpoint_dir that holds checkpoints is refused, as is a store_path that holds rows. Of
// a store with a disk budget checkpoints are taken early, and fewer are kept, when the rows that
// only they hold take much of it.
//
// The bits of parameters and rows depend on data, model and options, but not on cache_bytes,
// cache_policy, store, prefetch_depth or the size of ctx.pool, nor on how often validation runs
// unless the schedule acts on it.
//
// With several ranks every rank calls it and returns the same metrics; the counts and bytes of the
// report are those of all ranks together, peak_rss_bytes the largest, times and stages the rank's
// own. Dense parameters are the same on all ranks; dense gradients are summed in the order of
// ranks. For a fixed number of ranks a run repeats bit for bit, whatever the tiers. Directories are
// on a file system that all ranks see, store_path may be local. A checkpoint may be resumed on any
// number of ranks. With exchange_feedback_bytes it holds what each rank's gradients had lost; on
// another number of ranks, with another budget and from init_from that begins at zero. The first
// rank that fails ends the others with an error that names it; so does a store that has no room,
// where one rank alone would make some.
//
// Uses ctx.trace for stages; `flags` of the report is left empty. Errors: InvalidArgument
// (options, malformed data), ResourceExhausted (a budget too small for one step), OutOfRange (the
// loss is no longer a finite number), FailedPrecondition and DataLoss (a saved model that does not
// fit or is damaged; see models/saving/saved_model.h), and what data source and store say.
absl::StatusOr<TrainReport> RunTraining(const TrainerOptions& options, DataSource& data,
                                        const ModelFactory& factory, const ExecContext& ctx);

}  // namespace hotrow

#endif  // HOTROW_MODELS_TRAIN_TRAINER_H_
