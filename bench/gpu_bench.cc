// What one GPU does with hotrow's cache and ops, beside what the GPU could do.
//
//   gpu_bench [--quick] [--only=find,insert] [--dims=64] [--device_bytes=20GiB] [--report=FILE]
//
// What bounds it is measured first, in the same run: copies within the device, reads of random rows
// (copied side by side, which is what a find does without the search), the bus in both directions,
// and random rows read by a kernel over the bus. Each figure stands beside the limit of its kind:
//
//   find           rows found and copied out, against the gather of as many rows of that width
//   find in place  addresses only, against the gather of the sectors a find must read
//   insert         FindOrInsert, against the same sectors or, where rows are evicted, against
//                  the gather of the evicted rows, which are all dirty and thus copied out;
//                  a caller's filling of the new rows is not part of it
//   ops            the bytes that must pass the device's memory (bench/gpu_bench_plan.h), against
//                  a copy; rows that stay in the L2 can make it more than 100 %
//   dense          networks, forward and backward, against a large square product in the same
//                  precision; interactions, and layers without products, against a copy
//   tiers          Prefetch + Lookup (and Update) of an EmbeddingCollection behind a cache on the
//                  device, over host memory and over an SSD: the bytes that crossed the bus,
//                  against a page-locked copy. By the wall clock, see bench/gpu_bench_tiers.h
//
// Time: CUDA events around one call, on an idle stream kept busy until all of the call is enqueued,
// so that launches leave no gaps; medians over repeats. Data is random, batches rotate so that the
// L2 does not hold what is read next, and results are checked: a wrong one ends the run.

#include "bench/gpu_bench.h"

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/cuda_device.h"
#include "base/cuda_status.h"
#include "base/env.h"
#include "base/flag_set.h"
#include "base/run_main.h"
#include "base/status_macros.h"
#include "bench/gpu_bench_kernels.h"

namespace hotrow::bench {
namespace {

// Longer than enqueuing a call takes.
constexpr int64_t kDelayMicroseconds = 200;

void AddFlags(GpuBenchFlags& flags, FlagSet& set) {
  set.Group("What");
  set.AddString(
      "only", "LIST", &flags.only,
      "parts, joined by commas: device, copy, gather, bus, host_gather, staging, gemm, plans, "
      "dense, find, insert, load, unique, partition, lookup, gradient_sum, update, tiers, step; "
      "the limits they are compared with are measured, too");
  set.AddString("dims", "LIST", &flags.dims,
                "powers of two from 4 to 128: floats of a row of gather (which measures 8 in any "
                "case), host_gather, staging, find, insert; tiers take the widest");
  set.AddString("loads", "LIST", &flags.loads, "loads of the caches of find, insert");
  set.AddString("hits", "LIST", &flags.hits, "hit rates of find, insert");
  set.AddString("shares", "LIST", &flags.shares,
                "shares of the rows that the device caches of tiers have room for");
  set.AddSwitch("quick", &flags.quick, "smaller tables and fewer repeats");
  set.AddSwitch("toy", &flags.toy, "tiny sizes for an emulated GPU; figures say nothing");
  set.AddInt("seed", 0, INT64_MAX, &flags.seed, "of all that is drawn");
  set.Group("How");
  set.AddBytes("device_bytes", &flags.device_bytes, "device memory to take at most");
  set.DescribeDefault("9/10 of what is free");
  set.AddBytes("host_bytes", &flags.host_bytes, "page-locked rows for the parts that read them");
  set.DescribeDefault("8GiB, 1GiB with --quick; a third of the memory at most");
  set.AddInt("repeats", 0, 1'000'000, &flags.repeats, "that are measured");
  set.DescribeDefault("51, of tiers 101; 11 with --quick, of tiers 21");
  set.AddInt("threads", 0, 1024, &flags.threads, "of the host's gather, and of its part of tiers");
  set.DescribeDefault("all processors");
  set.AddInt("l2_fetch", 0, 128, &flags.l2_fetch,
             "bytes that the L2 fetches at least: 32, 64 or 128, a hint to the device");
  set.DescribeDefault("as the driver has it");
  set.AddString("path", "DIR", &flags.path, "an SSD: tiers has its stores there, and removes them");
  set.DescribeDefault("where temporary files go");
  set.AddString("report", "FILE", &flags.report, "a JSON object goes there");
  set.AddString("ids", "FILE", &flags.ids,
                "the ids of the ops' batch go there, 8 bytes each, one feature after the other");
}

using Part = absl::Status (*)(GpuBench&);

Part PartOf(const std::string& name) {
  static const std::map<std::string, Part> parts = {
      {"copy", MeasureCopy},       {"gather", MeasureGather},
      {"bus", MeasureBus},         {"host_gather", MeasureHostGather},
      {"staging", MeasureStaging}, {"gemm", MeasureGemm},
      {"dense", MeasureDense},     {"find", MeasureFind},
      {"insert", MeasureInsert},   {"load", MeasureLoad},
      {"unique", MeasureUnique},   {"partition", MeasurePartition},
      {"lookup", MeasureLookup},   {"gradient_sum", MeasureGradientSum},
      {"update", MeasureUpdate},   {"tiers", MeasureTiers},
      {"step", MeasureStep},       {"plans", MeasurePlans},
  };
  const auto part = parts.find(name);
  return part == parts.end() ? nullptr : part->second;
}

}  // namespace

absl::StatusOr<std::unique_ptr<GpuBench>> GpuBench::Create(const GpuBenchFlags& flags) {
  std::unique_ptr<GpuBench> bench(new GpuBench());
  bench->flags_ = flags;
  HOTROW_ASSIGN_OR_RETURN(bench->points_, PointsToMeasure(flags));
  HOTROW_RETURN_IF_ERROR(CheckUsableGpu());
  if (flags.l2_fetch != 0) {
    HOTROW_CUDA_RETURN_IF_ERROR(
        cudaDeviceSetLimit(cudaLimitMaxL2FetchGranularity, static_cast<size_t>(flags.l2_fetch)));
  }
  int device = 0;
  HOTROW_CUDA_RETURN_IF_ERROR(cudaGetDevice(&device));
  cudaDeviceProp properties;
  HOTROW_CUDA_RETURN_IF_ERROR(cudaGetDeviceProperties(&properties, device));
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  HOTROW_CUDA_RETURN_IF_ERROR(cudaMemGetInfo(&free_bytes, &total_bytes));
  int driver = 0;
  HOTROW_CUDA_RETURN_IF_ERROR(cudaDriverGetVersion(&driver));
  auto bytes = static_cast<int64_t>(free_bytes / 10 * 9);
  if (flags.device_bytes != 0) bytes = std::min(bytes, flags.device_bytes);
  const int64_t host_available =
      static_cast<int64_t>(::sysconf(_SC_AVPHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  HOTROW_ASSIGN_OR_RETURN(bench->sizes_, SizesFor(flags, bytes, host_available));
  const auto threads = flags.threads != 0
                           ? flags.threads
                           : std::max<int64_t>(1, std::thread::hardware_concurrency());
  bench->pool_ = std::make_unique<ThreadPool>(static_cast<int>(threads));
  bench->l2_bytes_ = properties.l2CacheSize;
  bench->device_ = {{"name", properties.name},
                    {"compute_capability", absl::StrCat(properties.major, ".", properties.minor)},
                    {"multiprocessors", properties.multiProcessorCount},
                    {"l2_bytes", bench->l2_bytes_},
                    {"total_bytes", static_cast<int64_t>(total_bytes)},
                    {"free_bytes", static_cast<int64_t>(free_bytes)},
                    {"driver", driver},
                    {"host_threads", threads}};
  HOTROW_ASSIGN_OR_RETURN(bench->stream_, CreateStream());
  HOTROW_ASSIGN_OR_RETURN(bench->begin_, CreateEvent(EventTiming::kOn));
  HOTROW_ASSIGN_OR_RETURN(bench->end_, CreateEvent(EventTiming::kOn));
  return bench;
}

absl::StatusOr<Times> GpuBench::Measure(const Step& timed, const Step& between, Clock clock) {
  std::vector<double> seconds;
  for (int64_t r = 0; r < sizes_.warmup + sizes_.repeats; ++r) {
    if (between != nullptr) HOTROW_RETURN_IF_ERROR(between(r));
    HOTROW_RETURN_IF_ERROR(Wait());
    if (clock == Clock::kEnqueued) HOTROW_RETURN_IF_ERROR(Delay(stream(), kDelayMicroseconds));
    HOTROW_CUDA_RETURN_IF_ERROR(cudaEventRecord(begin_.get(), stream()));
    HOTROW_RETURN_IF_ERROR(timed(r));
    HOTROW_CUDA_RETURN_IF_ERROR(cudaEventRecord(end_.get(), stream()));
    HOTROW_CUDA_RETURN_IF_ERROR(cudaEventSynchronize(end_.get()));
    float milliseconds = 0;
    HOTROW_CUDA_RETURN_IF_ERROR(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()));
    if (r >= sizes_.warmup) seconds.push_back(1e-3 * milliseconds);
  }
  return TimesOf(std::move(seconds));
}

absl::Status GpuBench::Wait() {
  HOTROW_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(stream()));
  return absl::OkStatus();
}

void GpuBench::Add(Figure figure) { AddNote(FigureJson(figure), FigureLine(figure)); }

void GpuBench::AddNote(nlohmann::ordered_json json, const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
  figures_.push_back(std::move(json));
}

double GpuBench::limit(const std::string& name) const {
  const auto found = limits_.find(name);
  return found == limits_.end() ? 0 : found->second;
}

std::string GatherLimit(int dim) { return absl::StrCat("gather dim ", dim); }

namespace {

absl::Status RunProgram(const GpuBenchFlags& flags, const FlagSet& set) {
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> parts, PartsToRun(flags));
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<GpuBench> bench, GpuBench::Create(flags));
  const nlohmann::ordered_json& device = bench->device();
  const GpuBenchSizes& sizes = bench->sizes();
  std::printf("%s, %d multiprocessors, %.1f GiB free of %.1f, L2 %d MiB\n",
              device["name"].get<std::string>().c_str(), device["multiprocessors"].get<int>(),
              device["free_bytes"].get<double>() * 0x1p-30,
              device["total_bytes"].get<double>() * 0x1p-30,
              static_cast<int>(bench->l2_bytes() >> 20));
  if (!flags.ids.empty()) {
    const std::vector<uint64_t> ids = LookupIds(kLookupTables, sizes.samples, sizes.rows_per_table,
                                                kLookupZipf, static_cast<uint64_t>(flags.seed));
    const std::string_view bytes(reinterpret_cast<const char*>(ids.data()), 8 * ids.size());
    HOTROW_RETURN_IF_ERROR(WriteFileAtomically(PosixEnv(), flags.ids, bytes));
  }
  nlohmann::ordered_json report;
  report["device"] = device;
  report["sizes"] = {{"table_bytes", sizes.table_bytes},
                     {"copy_bytes", sizes.copy_bytes},
                     {"bus_bytes", sizes.bus_bytes},
                     {"host_bytes", sizes.host_bytes},
                     {"batch", sizes.batch},
                     {"samples", sizes.samples},
                     {"rows_per_table", sizes.rows_per_table},
                     {"repeats", sizes.repeats},
                     {"warmup", sizes.warmup}};
  for (const auto& [name, value] : set.Values()) {
    std::visit([&](const auto& v) { report["flags"][name] = v; }, value);
  }
  // After each part, so that what takes too long or fails costs no figure but its own.
  const auto write_report = [&]() -> absl::Status {
    if (flags.report.empty()) return absl::OkStatus();
    report["figures"] = bench->figures();
    return WriteFileAtomically(PosixEnv(), flags.report, report.dump(2) + "\n");
  };
  for (const std::string& name : parts) {
    const Part part = PartOf(name);
    if (part == nullptr) continue;
    std::printf("%s\n", name.c_str());
    absl::Status status = part(*bench);
    if (status.ok()) status = bench->Wait();  // the memory it gave back is free from here on
    HOTROW_RETURN_IF_ERROR(write_report());
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat(name, ": ", std::string(status.message())));
    }
  }
  return write_report();
}

int Main(int argc, char** argv) {
  GpuBenchFlags flags;
  FlagSet set("gpu_bench");
  AddFlags(flags, set);
  const absl::Status parsed = set.Parse(argc, argv);
  if (parsed.ok() && set.help_requested()) {
    std::fputs(set.Help().c_str(), stdout);
    return 0;
  }
  const absl::Status status = parsed.ok() ? RunProgram(flags, set) : parsed;
  if (status.ok()) return 0;
  std::fprintf(stderr, "gpu_bench: %s\n", std::string(status.message()).c_str());
  return absl::IsInvalidArgument(status) ? 2 : 1;
}

}  // namespace
}  // namespace hotrow::bench

int main(int argc, char** argv) {
  return hotrow::RunMain("gpu_bench", [&] { return hotrow::bench::Main(argc, argv); });
}
