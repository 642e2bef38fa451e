#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/plan/stages.h"

namespace hotrow {
namespace {

constexpr double kBlockBytes = 4096;
// embedding/embedding_collection.cc: with fewer threads than this, what runs ahead has one.
constexpr double kThreadsForPipeline = 4;
// A row that travels between ranks of a machine is packed, and copied into shared memory and out of
// it.
constexpr double kCopies = 3;

// A step is several chains of work that run beside each other on their own threads: the step
// itself; with prefetching, finding and placing the rows of a later step, and reading what is
// missing; reading the data, where a rank has two threads or more; the disk. A step takes as long
// as the longest chain, or as all their work takes the processors that the rank has. Chains that
// share processors hold each other up, by what was measured; the longest with that counts.
class MeasuredStep {
 public:
  MeasuredStep(const Workload& workload, const TierChoice& tiers, const Traffic& traffic)
      : workload_(workload), tiers_(tiers), traffic_(traffic) {}

  StepTime Time() {
    AddStages();
    MergeReadingIntoPlacing();
    Finish();
    return out_;
  }

 private:
  enum Chain { kStep, kPlace, kRead, kData, kDisk, kChains };

  void AddStages();
  void AddCacheStages();
  void AddSsdReads(double miss_seconds);
  // Rows of a step are read while those of the next are placed, if two may be in flight.
  bool reads_while_placing() const { return spec_.prefetch_depth >= 2; }
  void MergeReadingIntoPlacing();
  void Finish();

  Chain ChainFor(Chain chain) const {
    return !ahead_ && (chain == kPlace || chain == kRead) ? kStep : chain;
  }
  void Add(const char* name, double seconds, const char* bound_by, Chain chain) {
    if (seconds <= 0) return;
    chain = ChainFor(chain);
    seconds_[chain] += seconds;
    out_.stages.push_back({name, seconds, bound_by, chain != kStep});
    chain_of_.push_back(chain);
  }
  // Work that takes `seconds` with all threads of the machine, of which the share `busy` works.
  void Work(const char* name, double seconds, double busy, Chain chain) {
    const double processor_seconds =
        seconds * std::clamp(busy * machine_threads_, 1.0, machine_threads_);
    work_[ChainFor(chain)] += processor_seconds / threads_;
    double used = std::clamp(busy * machine_threads_, 1.0, std::max(1.0, threads_));
    const bool apart = chain == kData || (ahead_ && (chain == kPlace || chain == kRead));
    if (apart && (chain == kData || threads_ < kThreadsForPipeline)) used = 1;
    // Fewer processors than ranks: those share them.
    Add(name, processor_seconds / std::min(used, threads_), "cpu", chain);
  }
  // Work at a rate of the rank's share.
  void Move(const char* name, double seconds, const char* bound_by, Chain chain) {
    work_[ChainFor(chain)] += seconds;
    Add(name, seconds, bound_by, chain);
  }
  void Exchange(const char* name, double bytes, Chain chain) {
    if (workload_.peers() <= 0) return;
    Move(name,
         kCopies * SecondsAt(workload_.BytesToNode(bytes), hardware_.gpu_link_bytes_per_second),
         "dram", chain);
    Add(name, SecondsAt(workload_.BytesToNetwork(bytes), hardware_.network_bytes_per_second),
        "network", chain);
  }

  const Workload& workload_;
  const TierChoice& tiers_;
  const Traffic& traffic_;
  const PlanSpec& spec_ = workload_.spec;
  const HardwareProfile& hardware_ = workload_.hardware;
  const EngineCosts& engine_ = hardware_.engine;
  const bool ahead_ = spec_.prefetch_depth > 0;
  const double machine_threads_ = std::max(1, hardware_.threads);
  const double threads_ = machine_threads_ / std::min(spec_.ranks_per_node, spec_.ranks);

  StepTime out_;
  std::vector<Chain> chain_of_;  // of each stage
  // By chain: seconds by itself, and seconds that all processors of the rank work for it.
  std::array<double, kChains> seconds_ = {};
  std::array<double, kChains> work_ = {};
};

void MeasuredStep::AddStages() {
  // Each rank reads all of a batch and keeps its part; with one thread, in between.
  Work("read and draw the data",
       static_cast<double>(spec_.batch_size) * spec_.data_seconds_per_sample, 1 / machine_threads_,
       threads_ >= 2 ? kData : kStep);
  Add("read the data from the disk",
      SecondsAt(workload_.data_bytes(), hardware_.ssd_read_bytes_per_second), "ssd read bytes",
      kDisk);
  const bool alone = workload_.peers() <= 0;
  double find = workload_.lookups * engine_.unique_seconds_per_lookup;
  // What all ranks ask of this one is made distinct once more.
  if (!alone) find += workload_.unique_keys * engine_.unique_seconds_per_lookup;
  Work("sort ids and find the distinct ones", find, engine_.unique_busy, kPlace);
  Exchange("exchange ids", workload_.unique_keys * kKeyBytes, kPlace);
  if (tiers_.has_cache()) {
    AddCacheStages();
  } else {
    Work("find rows in the store",
         engine_.in_place.Of(traffic_.unique_keys, workload_.owned_row_bytes), 1, kStep);
    Work("make new rows", engine_.new_in_place.Of(traffic_.new_rows, traffic_.new_bytes), 1, kStep);
  }
  Exchange("exchange rows", workload_.forward_wire_bytes, kStep);
  Work("pool", engine_.pool.Of(workload_.lookups, workload_.lookup_weight_bytes), 1, kStep);
  Move("dense layers", workload_.DenseSeconds(workload_.samples()), "flops", kStep);
  Work("sum gradients", engine_.sum.Of(workload_.lookups, workload_.lookup_gradient_bytes), 1,
       kStep);
  Exchange("exchange gradients", workload_.backward_wire_bytes, kStep);
  if (!alone) {
    Work("add gradients of the ranks",
         engine_.sum.Of(workload_.unique_keys, workload_.unique_gradient_bytes), 1, kStep);
  }
  Work("update rows", engine_.update.Of(traffic_.unique_keys, workload_.owned_row_bytes), 1, kStep);
  const double parameter_bytes = workload_.dense_parameters * kFloatBytes;
  // Each of N ranks sends 2 (N - 1) / N of the gradients.
  Exchange("all-reduce dense gradients", 2 * workload_.dense_parameters * kFloatBytes, kStep);
  const double states = spec_.model.dense_optimizer_states;
  Move("update dense parameters",
       SecondsAt(parameter_bytes * (3 + 2 * states), hardware_.dram_bytes_per_second), "dram",
       kStep);
}

void MeasuredStep::AddCacheStages() {
  Work("find rows in the cache",
       engine_.hit.Of(traffic_.unique_keys - traffic_.misses,
                      workload_.owned_row_bytes - traffic_.miss_bytes),
       engine_.hit_busy, kPlace);
  Work("make new rows", engine_.new_row.Of(traffic_.new_rows, traffic_.new_bytes),
       engine_.miss_busy, kRead);
  Work("write evicted rows", engine_.evict.Of(traffic_.evicted, traffic_.evicted_bytes),
       engine_.miss_busy, kPlace);
  const double miss = engine_.miss.Of(traffic_.misses, traffic_.miss_bytes);
  if (FactsOf(tiers_.store).on_disk) {
    AddSsdReads(miss);
  } else {
    Work("read misses", miss, engine_.miss_busy, kRead);
  }
}

void MeasuredStep::AddSsdReads(double miss_seconds) {
  // What a disk costs the processor beyond that: of a row that is there to be read, and of one that
  // is written; in the measurement they were as many.
  const double both = engine_.ssd_miss.Of(traffic_.misses, traffic_.miss_bytes) -
                      engine_.miss.Of(traffic_.misses, traffic_.miss_bytes) -
                      engine_.evict.Of(traffic_.misses, traffic_.miss_bytes);
  const double rows =
      std::min(1.0, (traffic_.ssd_reads + traffic_.evicted) / std::max(1e-30, 2 * traffic_.misses));
  double reads = SecondsAt(traffic_.ssd_ios_read, hardware_.ssd_read_ios_per_second);
  // Longer reads than the 4 KiB of the measurement are merged ones, few: reads count.
  if (traffic_.ssd_bytes_read > traffic_.ssd_ios_read * kBlockBytes) {
    reads =
        std::max(reads, SecondsAt(traffic_.ssd_bytes_read, hardware_.ssd_read_bytes_per_second));
  }
  const double read_row_bytes =
      traffic_.miss_bytes * traffic_.ssd_reads / std::max(1e-30, traffic_.misses);
  const double before = seconds_[ChainFor(kRead)];
  Work("read misses", miss_seconds + std::max(0.0, both) * rows, engine_.ssd_miss_busy, kRead);
  // One thread asks for rows, deals with them, and waits as it was measured to. Where that was not,
  // rows are dealt with while others come: only the longer of the two counts.
  const double dealt = seconds_[ChainFor(kRead)] - before;
  const double waited = engine_.ssd_wait_measured()
                            ? reads + engine_.ssd_wait.Of(traffic_.ssd_reads, read_row_bytes)
                            : std::max(0.0, reads - dealt);
  Add("wait for reads of the disk", waited, "ssd reads", kRead);
  Add("reads of the disk", reads, "ssd reads", kDisk);
  Add("writes of the disk",
      SecondsAt(traffic_.ssd_bytes_written, hardware_.ssd_write_bytes_per_second),
      "ssd written bytes", kDisk);
}

void MeasuredStep::MergeReadingIntoPlacing() {
  if (reads_while_placing()) return;
  seconds_[kPlace] += seconds_[kRead];
  work_[kPlace] += work_[kRead];
  seconds_[kRead] = work_[kRead] = 0;
  std::replace(chain_of_.begin(), chain_of_.end(), kRead, kPlace);
}

void MeasuredStep::Finish() {
  constexpr const char* kNames[kChains] = {"the step", "placing rows ahead", "reading rows ahead",
                                           "reading the data", "the disk"};
  double processors = 0;
  for (const double seconds : work_) processors += seconds;
  // The disk itself takes no processor, and what reads from memory in one thread has as many of
  // them as it can use.
  const bool reads_disk = tiers_.has_cache() && FactsOf(tiers_.store).on_disk;
  std::array<double, kChains> beside = {};
  beside[kStep] = engine_.step_beside;
  if (reads_disk && ahead_) beside[reads_while_placing() ? kRead : kPlace] = engine_.disk_beside;
  for (int c = 0; c < kChains; ++c) {
    const bool both = c == kPlace && !reads_while_placing();
    if (seconds_[c] <= 0) continue;
    const double held_up = beside[c] * (processors - work_[c]);
    out_.chains.push_back(
        {both ? "placing and reading rows ahead" : kNames[c], seconds_[c], held_up});
    seconds_[c] += held_up;
  }
  out_.chains.push_back({"all work on the processors", processors});
  const auto longest =
      static_cast<Chain>(std::max_element(seconds_.begin(), seconds_.end()) - seconds_.begin());
  out_.seconds = std::max(seconds_[longest], processors);
  double most = -1;
  for (size_t i = 0; i < out_.stages.size(); ++i) {
    const PlanStage& stage = out_.stages[i];
    const bool counts = seconds_[longest] >= processors ? chain_of_[i] == longest
                                                        : !absl::StartsWith(stage.bound_by, "ssd");
    if (!counts || stage.seconds <= most) continue;
    most = stage.seconds;
    out_.bottleneck = absl::StrCat(stage.name, " (", stage.bound_by, ")");
  }
}

}  // namespace

StepTime StepTimeFromMeasurement(const Workload& workload, const TierChoice& tiers,
                                 const Traffic& traffic) {
  return MeasuredStep(workload, tiers, traffic).Time();
}

}  // namespace hotrow
