#include "tools/plan/traffic.h"

#include <algorithm>
#include <cmath>

namespace hotrow {
namespace {

constexpr double kFillMost = 0.99;  // of a log that still has room to clean in
// The rest of a disk is for snapshots and for all else that lies there.
constexpr double kDiskShareOfStore = 0.7;

// As embedding/collection_plan.cc: what one step needs first, the rest by the bytes of the classes.
std::vector<double> SplitCache(const Workload& workload, double cache_bytes) {
  double weights = 0;
  for (const WidthClass& width : workload.classes) {
    weights += width.rows * static_cast<double>(width.row_bytes);
  }
  const double rest = cache_bytes - workload.min_cache_bytes;
  std::vector<double> parts;
  for (const WidthClass& width : workload.classes) {
    const double weight = width.rows * static_cast<double>(width.row_bytes) / weights;
    parts.push_back(rest >= 0 ? width.min_cache_bytes + rest * weight : cache_bytes * weight);
  }
  return parts;
}

// A row that misses was evicted when the cache's time since its last use was over, and lies as far
// back in the log as has been written since. Rows that come back soon lie near its end, close to
// each other, and are read together more often than if they lay anywhere.
// What a host cache keeps for host_stay steps is not read.
double ReadsOfClass(const Workload& workload, const WidthClass& width, double all_ways,
                    double host_stay, double written_bytes, double log_bytes) {
  // A chunk that is being filled is read in memory; it is half full on average.
  const double unwritten_bytes = SsdChunkBytes(workload.spec.run_store_bytes) / 2;
  constexpr double kWidth = 0.05;
  const double run_steps = workload.spec.run_steps;
  const auto record = static_cast<double>(SsdBytesPerRow(width.row_bytes));
  const double stay = width.model->StayOf(all_ways);
  const double horizon = std::max(1.0, log_bytes / written_bytes);
  // Steps since the eviction, from here; of a run, those that it has.
  const double most = run_steps > 0 ? run_steps - stay : horizon;
  double reads = 0;
  for (double since = std::max(unwritten_bytes / written_bytes, host_stay);
       since < std::min(most, horizon);) {
    const double steps = std::min(std::min(most, horizon) - since, std::max(0.25, since * kWidth));
    const double rows = (width.model->KeysUsedWithin(stay + since + steps) -
                         width.model->KeysUsedWithin(stay + since)) /
                        workload.ranks();
    // So many of a run's steps have others so far back.
    const double share =
        run_steps > 0 ? std::max(0.0, 1 - (stay + since + steps / 2) / run_steps) : 1;
    reads += share * SsdReads(rows, record, steps * written_bytes);
    since += steps;
  }
  if (run_steps > 0 && most <= horizon) return reads;
  // The cleaner has moved the others, wherever.
  const double known =
      run_steps > 0 ? width.model->KeysUsedWithin(stay + most) : width.model->unique_keys();
  const double seen = stay + std::max(horizon, host_stay);
  const double others = std::max(0.0, known - width.model->KeysUsedWithin(seen)) / workload.ranks();
  const double share =
      run_steps > 0 ? std::max(0.0, 1 - (stay + (most + horizon) / 2) / run_steps) : 1;
  return reads + share * SsdReads(others, record, log_bytes);
}

}  // namespace

TierChoice::TierChoice(const Workload& workload, StoreKind store_kind, double budget_bytes,
                       double host_budget_bytes)
    : store(store_kind), cache_bytes(budget_bytes) {
  if (!has_cache()) return;
  const std::vector<double> parts = SplitCache(workload, cache_bytes);
  for (size_t c = 0; c < parts.size(); ++c) {
    const WidthClass& width = workload.classes[c];
    caches.push_back(SizeOfCache(static_cast<int64_t>(parts[c]), width.row_bytes));
    if (host_budget_bytes <= 0) continue;
    const double share =
        width.rows * static_cast<double>(width.row_bytes) / std::max(1.0, workload.row_bytes);
    host_caches.push_back(
        SizeOfHostCache(static_cast<int64_t>(host_budget_bytes * share), width.row_bytes));
  }
}

Traffic CountTraffic(const Workload& workload, const TierChoice& tiers) {
  const PlanSpec& spec = workload.spec;
  const double ranks = workload.ranks();
  Traffic traffic;
  double lookups = 0;
  double lookup_hits = 0;
  double bound_hits = 0;
  for (size_t c = 0; c < workload.classes.size(); ++c) {
    const WidthClass& width = workload.classes[c];
    const auto row_bytes = static_cast<double>(width.row_bytes);
    const double unique = width.model->unique_keys() / ranks;
    const double class_lookups = width.model->lookups();
    lookups += class_lookups;
    traffic.unique_keys += unique;
    if (!tiers.has_cache()) {
      if (spec.run_steps > 0) {
        const double fresh =
            std::min(unique, width.model->RowsAfter(spec.run_steps) / ranks / spec.run_steps);
        traffic.new_rows += fresh;
        traffic.new_bytes += fresh * row_bytes;
      }
      lookup_hits += class_lookups;
      bound_hits += unique;
      continue;
    }
    const auto ways = static_cast<double>(tiers.caches[c].ways);
    const double all_ways = ways * ranks;
    const CacheHitRates lru = spec.run_steps > 0
                                  ? width.model->LruFromEmpty(all_ways, spec.run_steps)
                                  : width.model->Lru(all_ways);
    const CacheHitRates bound = width.model->Hottest(all_ways);
    if (spec.run_steps > 0) {
      traffic.store_shares.resize(spec.tables.size());
      for (size_t i = 0; i < width.tables.size(); ++i) {
        traffic.store_shares[width.tables[i]] =
            width.model->LeftShareOfClient(i, all_ways, spec.run_steps);
      }
    }
    const double misses = unique * (1 - lru.unique_keys);
    // Some of a run's misses find nothing in the store, and the rows that are in the cache at its
    // end have not left it.
    double fresh = 0;
    double stay = 0;
    if (spec.run_steps > 0) {
      fresh = std::min(misses, width.model->RowsAfter(spec.run_steps) / ranks / spec.run_steps);
      stay = std::min<double>(fresh, ways / spec.run_steps);
    }
    const double evicted = misses - stay;
    double host_hits = 0;
    if (!tiers.host_caches.empty()) {
      const CacheModel::Below below =
          width.model->FoundBelow(all_ways, static_cast<double>(tiers.host_caches[c].ways) * ranks);
      host_hits = std::min(below.keys / ranks, misses - fresh);
      traffic.host_hits += host_hits;
      traffic.host_stays.push_back(below.stay);
    }
    const double stored = misses - fresh - host_hits;
    traffic.misses += misses;
    traffic.miss_bytes += misses * row_bytes;
    traffic.new_rows += fresh;
    traffic.new_bytes += fresh * row_bytes;
    traffic.evicted += evicted;
    traffic.evicted_bytes += evicted * row_bytes;
    traffic.ssd_reads += stored;
    traffic.ssd_read_bytes += stored * SsdReadBytesPerRow(width.row_bytes);
    traffic.ssd_record_bytes += evicted * static_cast<double>(SsdBytesPerRow(width.row_bytes));
    lookup_hits += class_lookups * lru.lookups;
    bound_hits += unique * bound.unique_keys;
  }
  if (lookups > 0) traffic.hit_rate = lookup_hits / lookups;
  if (traffic.unique_keys > 0) {
    traffic.unique_hit_rate = 1 - traffic.misses / traffic.unique_keys;
    traffic.hit_rate_bound = bound_hits / traffic.unique_keys;
  }
  if (workload.has_gpu()) {
    traffic.link_bytes_down = traffic.miss_bytes;
    traffic.link_bytes_up = traffic.evicted_bytes;
  }
  return traffic;
}

SsdStoreBytes SsdStoreSize(const Workload& workload) {
  const PlanSpec& spec = workload.spec;
  std::vector<TierRows> tables;
  for (size_t t = 0; t < spec.tables.size(); ++t) {
    tables.push_back(
        {workload.RowsOf(spec.tables[t]) / workload.ranks(), workload.layouts[t].row_bytes});
  }
  SsdStoreBytes size = SizeOfSsdStore(tables, kDiskShareOfStore * workload.ssd_limit());
  if (spec.run_disk_bytes > 0) size.disk_bytes = std::max(spec.run_disk_bytes, size.live_bytes);
  return size;
}

void CountDisk(const Workload& workload, const TierChoice& tiers, double log_bytes,
               Traffic* traffic) {
  if (!FactsOf(tiers.store).on_disk) return;
  const double run_steps = workload.spec.run_steps;
  // A cleaner that empties segments filled to u writes 1 / (1 - u) bytes for each new one
  // (Rosenblum, Ousterhout, "The design and implementation of a log-structured file system", TOCS
  // 1992); the mean fill of the log stands for that of the segments it picks, which are emptier.
  const SsdStoreBytes size = SsdStoreSize(workload);
  const double fill = std::min(size.live_bytes / size.disk_bytes, kFillMost);
  traffic->write_amplification = 1 / (1 - fill);
  if (traffic->ssd_record_bytes <= 0) return;
  for (size_t c = 0; traffic->ssd_reads > 0 && c < workload.classes.size(); ++c) {
    traffic->ssd_ios_read += ReadsOfClass(
        workload, workload.classes[c], static_cast<double>(tiers.caches[c].ways) * workload.ranks(),
        traffic->host_stays.empty() ? 0 : traffic->host_stays[c], traffic->ssd_record_bytes,
        log_bytes);
  }
  traffic->ssd_bytes_read = traffic->ssd_read_bytes;
  // The cleaner has nothing to do before the log is full.
  double cleaned = 1;
  if (run_steps > 0) {
    cleaned = std::max(0.0, 1 - log_bytes / (traffic->ssd_record_bytes * run_steps));
  }
  traffic->write_amplification = 1 + cleaned * (traffic->write_amplification - 1);
  traffic->ssd_bytes_written = traffic->ssd_record_bytes * traffic->write_amplification;
}

ExchangeBytes CountExchange(const Workload& workload) {
  ExchangeBytes out;
  if (workload.spec.ranks == 1) return out;
  constexpr double kCountBytes = 4;  // how many keys of a table follow
  const double ranks = workload.ranks();
  const double others = workload.peers();
  const double ids = workload.unique_keys * kKeyBytes +
                     static_cast<double>(workload.spec.tables.size()) * kCountBytes * ranks;
  // 1/R of the keys, which are dealt out by hash, are its own.
  out.ids = ids * others / ranks;
  out.forward = workload.forward_wire_bytes * others / ranks;
  out.backward = workload.backward_wire_bytes * others / ranks;
  const double sum = ids + workload.forward_wire_bytes + workload.backward_wire_bytes;
  out.total = sum * others / ranks;
  out.node = workload.BytesToNode(sum);
  out.network = workload.BytesToNetwork(sum);
  // Within each node first; what crosses the network is then shared by the ranks of a node.
  const double node = workload.node_peers();
  const double nodes = std::ceil(ranks / (node + 1));
  out.allreduce = (2 * node / (node + 1) + 2 * (nodes - 1) / nodes / (node + 1)) *
                  workload.dense_parameters * kFloatBytes;
  return out;
}

}  // namespace hotrow
