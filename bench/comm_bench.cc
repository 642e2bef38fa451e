// Collective calls between the ranks of a job, beside the raw calls of MPI or NCCL of the same
// sizes.
//
//   mpirun -n 4 build/bin/comm_bench                   MPI
//   mpirun -n 4 build/bin/comm_bench --backends=nccl   NCCL, one GPU a rank
//   build/bin/comm_bench --threads=4                   ranks that are threads
//
// What bounds it: the raw calls, which are made in the same run, in turns with ours. Ours do more:
// they look at the clock, notice dead ranks, and sum in the order of ranks.
//
// Sizes and bandwidths are those of nccl-tests: `bytes` is what a rank gives to all-to-all and
// broadcast, what it gets from all-gather, and the vector of all-reduce. algbw = bytes / time;
// busbw = algbw times the share of the bytes that must pass a rank's link: (n-1)/n for all-to-all
// and all-gather, 2 (n-1)/n for all-reduce, 1 for broadcast. GB/s are 10^9 bytes a second.
//
// Time: one repeat is a barrier, then --calls calls of one kind; a repeat takes as long as its
// slowest rank. Medians over repeats; `ratio` is the median over repeats of raw time by our time of
// one repeat, so 1.05 means that we are 5 % faster. `best` is the raw calls' shortest repeat by our
// shortest one, which suffers less from what else the machine does.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/buffer.h"
#include "base/flag_set.h"
#include "base/run_main.h"
#include "base/status_macros.h"
#include "comm/create_communicator.h"
#include "comm/mpi_communicator.h"
#include "comm/nccl_communicator.h"
#include "comm/thread_communicator.h"
#include "nlohmann/json.hpp"

#ifdef HOTROW_BENCH_MPI
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#endif
#ifdef HOTROW_BENCH_NCCL
#include <cuda_runtime_api.h>
#include <nccl.h>

#include "base/cuda_handles.h"
#include "base/cuda_status.h"
#include "base/device_memory.h"
#include "comm/rank_environment.h"
#endif

namespace hotrow::bench {
namespace {

struct Flags {
  std::string collectives = "alltoall,allreduce,allgather,broadcast,barrier";
  std::string backends = "auto";
  int64_t threads = 0;
  int64_t min_bytes = int64_t{16} << 10;
  int64_t max_bytes = int64_t{16} << 20;
  int64_t factor = 4;
  int64_t calls = 0;
  int64_t repeats = 21;
  int64_t warmup = 3;
  double timeout_seconds = 30;
  std::string report;
};

void AddFlags(Flags& flags, FlagSet& set) {
  set.Group("What");
  set.AddString("backends", "LIST", &flags.backends,
                "of mpi, nccl, threads, joined by commas; auto: mpi under mpirun, else threads");
  set.AddInt("threads", 0, 1024, &flags.threads, "ranks of the backend threads");
  set.DescribeDefault("2");
  set.AddString("collectives", "LIST", &flags.collectives, "joined by commas");
  set.AddBytes("min_bytes", &flags.min_bytes, "smallest size");
  set.AddBytes("max_bytes", &flags.max_bytes, "largest size");
  set.AddInt("factor", 2, 1024, &flags.factor, "from one size to the next");
  set.Group("How");
  set.AddInt("calls", 0, 1'000'000, &flags.calls, "in a row, in each repeat");
  set.DescribeDefault("4 MiB by the size, 1 to 100");
  set.AddInt("repeats", 1, 1'000'000, &flags.repeats, "that are measured");
  set.AddInt("warmup", 0, 1'000'000, &flags.warmup, "repeats before those");
  set.AddReal("timeout_seconds", 0.001, 86400, &flags.timeout_seconds, "of a call");
  set.AddString("report", "FILE", &flags.report, "a JSON object goes there, from rank 0");
}

// One kind of call and its raw counterpart.
struct Contest {
  std::function<absl::Status()> ours;
  std::function<absl::Status()> raw;  // null: there is none
};

struct Row {
  std::string backend;
  std::string collective;
  int ranks = 0;
  int64_t bytes = 0;
  double us = 0;
  double raw_us = 0;
  double ratio = 0;
  double best_ratio = 0;
  double bus_share = 0;  // busbw = bus_share * algbw

  double algbw() const { return 1e-3 * static_cast<double>(bytes) / us; }
  double raw_algbw() const { return 1e-3 * static_cast<double>(bytes) / raw_us; }
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double BusShare(const std::string& collective, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  if (collective == "allreduce") return 2 * others;
  if (collective == "broadcast") return 1;
  return others;
}

// Buffers and counts of one size, for any backend. `bytes` is rounded so that all ranks get the
// same whole number of floats.
struct Shape {
  Shape(const std::string& kind, int64_t bytes_wanted, int n) : collective(kind) {
    block = kind == "barrier" ? 0 : std::max<int64_t>(bytes_wanted / n / 4, 1) * 4;
    bytes = block * n;
    counts.assign(static_cast<size_t>(n), block);
    for (int64_t p = 0; p < n; ++p) offsets.push_back(p * block);
  }
  std::string collective;
  int64_t block = 0;
  int64_t bytes = 0;
  std::vector<int64_t> counts;
  std::vector<int64_t> offsets;
};

std::function<absl::Status()> HostCall(Communicator& c, const Shape& shape, std::byte* send,
                                       std::byte* recv) {
  const auto size = static_cast<size_t>(shape.bytes);
  if (shape.collective == "alltoall") {
    return [&c, &shape, send, recv] {
      return c.AllToAllV({send, shape.counts, shape.offsets, recv, shape.counts, shape.offsets});
    };
  }
  if (shape.collective == "allreduce") {
    return [&c, size, recv] {
      return c.AllReduceSum(std::span(reinterpret_cast<float*>(recv), size / 4));
    };
  }
  if (shape.collective == "allgather") {
    return [&c, &shape, size, send, recv] {
      return c.AllGather({send, static_cast<size_t>(shape.block)}, {recv, size});
    };
  }
  if (shape.collective == "broadcast") {
    return [&c, size, recv] { return c.Broadcast({recv, size}, 0); };
  }
  return [&c] { return c.Barrier(); };
}

#ifdef HOTROW_BENCH_MPI
absl::Status FromMpi(int error) {
  return error == MPI_SUCCESS ? absl::OkStatus() : absl::InternalError("a raw call of MPI failed");
}

std::function<absl::Status()> RawMpiCall(const Shape& shape, std::byte* send, std::byte* recv) {
  const int size = static_cast<int>(shape.bytes);
  const int block = static_cast<int>(shape.block);
  if (shape.collective == "alltoall") {
    return [counts = std::vector<int>(shape.counts.begin(), shape.counts.end()),
            offsets = std::vector<int>(shape.offsets.begin(), shape.offsets.end()), send, recv] {
      return FromMpi(MPI_Alltoallv(send, counts.data(), offsets.data(), MPI_BYTE, recv,
                                   counts.data(), offsets.data(), MPI_BYTE, MPI_COMM_WORLD));
    };
  }
  if (shape.collective == "allreduce") {
    return [size, recv] {
      return FromMpi(
          MPI_Allreduce(MPI_IN_PLACE, recv, size / 4, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD));
    };
  }
  if (shape.collective == "allgather") {
    return [block, send, recv] {
      return FromMpi(MPI_Allgather(send, block, MPI_BYTE, recv, block, MPI_BYTE, MPI_COMM_WORLD));
    };
  }
  if (shape.collective == "broadcast") {
    return [size, recv] { return FromMpi(MPI_Bcast(recv, size, MPI_BYTE, 0, MPI_COMM_WORLD)); };
  }
  return [] { return FromMpi(MPI_Barrier(MPI_COMM_WORLD)); };
}
#endif

#ifdef HOTROW_BENCH_NCCL
absl::Status FromNccl(ncclResult_t result) {
  return result == ncclSuccess
             ? absl::OkStatus()
             : absl::InternalError(absl::StrCat("raw NCCL: ", ncclGetErrorString(result)));
}

// Both our communicator and a raw one of NCCL's, on this rank's GPU.
class NcclSide {
 public:
  static absl::StatusOr<std::unique_ptr<NcclSide>> Create(Communicator& host) {
    HOTROW_ASSIGN_OR_RETURN(const RankEnvironment environment, DetectRankEnvironment());
    HOTROW_CUDA_RETURN_IF_ERROR(cudaSetDevice(environment.local_rank));
    auto side = std::make_unique<NcclSide>();
    HOTROW_ASSIGN_OR_RETURN(side->ours_, NcclCommunicator::Create(host));
    HOTROW_ASSIGN_OR_RETURN(side->stream_, CreateStream());
    ncclUniqueId id = {};
    if (host.rank() == 0) HOTROW_RETURN_IF_ERROR(FromNccl(ncclGetUniqueId(&id)));
    HOTROW_RETURN_IF_ERROR(host.Broadcast(std::as_writable_bytes(std::span(&id, 1)), 0));
    HOTROW_RETURN_IF_ERROR(
        FromNccl(ncclCommInitRank(&side->raw_, host.world_size(), id, host.rank())));
    return side;
  }
  ~NcclSide() {
    if (raw_ != nullptr) ncclCommDestroy(raw_);
  }

  absl::StatusOr<Contest> Make(const Shape& shape) {
    HOTROW_ASSIGN_OR_RETURN(send_, DeviceBuffer<std::byte>::Create(shape.bytes + 4, stream_.get()));
    HOTROW_ASSIGN_OR_RETURN(recv_, DeviceBuffer<std::byte>::Create(shape.bytes + 4, stream_.get()));
    Contest contest;
    contest.ours = [this, &shape] {
      HOTROW_RETURN_IF_ERROR(EnqueueOurs(shape));
      return ours_->Wait(stream_.get());
    };
    contest.raw = [this, &shape] {
      HOTROW_RETURN_IF_ERROR(FromNccl(EnqueueRaw(shape)));
      return CudaToStatus(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize");
    };
    return contest;
  }

 private:
  absl::Status EnqueueOurs(const Shape& shape) {
    if (shape.collective == "alltoall") {
      return ours_->AllToAllV(
          {send_.data(), shape.counts, shape.offsets, recv_.data(), shape.counts, shape.offsets},
          stream_.get());
    }
    if (shape.collective == "allreduce") {
      return ours_->AllReduceSum(reinterpret_cast<float*>(recv_.data()), shape.bytes / 4,
                                 stream_.get());
    }
    if (shape.collective == "allgather") {
      return ours_->AllGather(send_.data(), shape.block, recv_.data(), stream_.get());
    }
    return ours_->Broadcast(recv_.data(), shape.bytes, 0, stream_.get());
  }
  ncclResult_t EnqueueRaw(const Shape& shape) {
    const auto size = static_cast<size_t>(shape.bytes);
    const auto block = static_cast<size_t>(shape.block);
    if (shape.collective == "allreduce") {
      return ncclAllReduce(recv_.data(), recv_.data(), size / 4, ncclFloat32, ncclSum, raw_,
                           stream_.get());
    }
    if (shape.collective == "allgather") {
      return ncclAllGather(send_.data(), recv_.data(), block, ncclInt8, raw_, stream_.get());
    }
    if (shape.collective == "broadcast") {
      return ncclBroadcast(recv_.data(), recv_.data(), size, ncclInt8, 0, raw_, stream_.get());
    }
    ncclGroupStart();
    for (size_t p = 0; p < shape.counts.size(); ++p) {
      ncclSend(send_.data() + shape.offsets[p], block, ncclInt8, static_cast<int>(p), raw_,
               stream_.get());
      ncclRecv(recv_.data() + shape.offsets[p], block, ncclInt8, static_cast<int>(p), raw_,
               stream_.get());
    }
    return ncclGroupEnd();
  }

  std::unique_ptr<NcclCommunicator> ours_;
  StreamHandle stream_;
  DeviceBuffer<std::byte> send_;  // after the stream: freed on it
  DeviceBuffer<std::byte> recv_;
  ncclComm_t raw_ = nullptr;
};
#endif

// Seconds of the slowest rank.
absl::StatusOr<double> TimeOf(Communicator& c, int64_t calls,
                              const std::function<absl::Status()>& call) {
  HOTROW_RETURN_IF_ERROR(c.Barrier());
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < calls; ++i) HOTROW_RETURN_IF_ERROR(call());
  const auto took = std::chrono::steady_clock::now() - begin;
  HOTROW_ASSIGN_OR_RETURN(
      const std::vector<int64_t> all,
      c.AllGatherSizes(std::chrono::duration_cast<std::chrono::nanoseconds>(took).count()));
  return 1e-9 * static_cast<double>(*std::max_element(all.begin(), all.end()));
}

absl::StatusOr<Row> Measure(Communicator& c, const Flags& flags, const std::string& backend,
                            const Shape& shape, const Contest& contest) {
  const int64_t calls =
      flags.calls > 0
          ? flags.calls
          : std::clamp<int64_t>((int64_t{4} << 20) / std::max<int64_t>(shape.bytes, 1), 1, 100);
  std::vector<double> ours;
  std::vector<double> raw;
  std::vector<double> ratios;
  for (int64_t repeat = -flags.warmup; repeat < flags.repeats; ++repeat) {
    double seconds[2] = {0, 0};
    // In turns, each first in every other repeat.
    for (int turn = 0; turn < 2; ++turn) {
      const int which = (turn + static_cast<int>(repeat & 1)) % 2;
      const auto& call = which == 0 ? contest.ours : contest.raw;
      if (call == nullptr) continue;
      HOTROW_ASSIGN_OR_RETURN(seconds[which], TimeOf(c, calls, call));
    }
    if (repeat < 0) continue;
    ours.push_back(1e6 * seconds[0] / static_cast<double>(calls));
    raw.push_back(1e6 * seconds[1] / static_cast<double>(calls));
    ratios.push_back(seconds[1] / seconds[0]);
  }
  Row row;
  row.backend = backend;
  row.collective = shape.collective;
  row.ranks = c.world_size();
  row.bytes = shape.bytes;
  row.us = Median(ours);
  row.raw_us = Median(raw);
  row.ratio = Median(ratios);
  row.best_ratio =
      *std::min_element(raw.begin(), raw.end()) / *std::min_element(ours.begin(), ours.end());
  row.bus_share = BusShare(shape.collective, c.world_size());
  return row;
}

// All sizes of all collectives, on one rank.
absl::StatusOr<std::vector<Row>> RunRank(Communicator& c, const Flags& flags,
                                         const std::string& backend) {
  std::vector<Row> rows;
#ifdef HOTROW_BENCH_NCCL
  std::unique_ptr<NcclSide> nccl;
  if (backend == "nccl") {
    HOTROW_ASSIGN_OR_RETURN(nccl, NcclSide::Create(c));
  }
#endif
  for (const std::string& collective :
       std::vector<std::string>(absl::StrSplit(flags.collectives, ','))) {
    for (int64_t bytes = flags.min_bytes; bytes <= flags.max_bytes; bytes *= flags.factor) {
      const Shape shape(collective, bytes, c.world_size());
      Contest contest;
      HostBuffer<std::byte> send;
      HostBuffer<std::byte> recv;
      if (backend == "nccl") {
        if (collective == "barrier") break;
#ifdef HOTROW_BENCH_NCCL
        HOTROW_ASSIGN_OR_RETURN(contest, nccl->Make(shape));
#endif
      } else {
        HOTROW_ASSIGN_OR_RETURN(send, HostBuffer<std::byte>::Create(shape.bytes + 4));
        HOTROW_ASSIGN_OR_RETURN(recv, HostBuffer<std::byte>::Create(shape.bytes + 4));
        contest.ours = HostCall(c, shape, send.data(), recv.data());
#ifdef HOTROW_BENCH_MPI
        if (backend == "mpi" && shape.bytes <= INT32_MAX) {
          contest.raw = RawMpiCall(shape, send.data(), recv.data());
        }
#endif
      }
      HOTROW_ASSIGN_OR_RETURN(Row row, Measure(c, flags, backend, shape, contest));
      rows.push_back(std::move(row));
      if (collective == "barrier") break;
    }
  }
  return rows;
}

void Print(const std::vector<Row>& rows) {
  std::printf("%-8s %-10s %5s %11s %12s %9s %9s %12s %9s %6s %6s\n", "backend", "collective",
              "ranks", "bytes", "us", "algbw", "busbw", "raw us", "raw busbw", "ratio", "best");
  for (const Row& row : rows) {
    std::string line = absl::StrFormat("%-8s %-10s %5d %11d %12.1f", row.backend, row.collective,
                                       row.ranks, row.bytes, row.us);
    const bool has_bytes = row.bytes > 0;
    absl::StrAppend(
        &line, has_bytes ? absl::StrFormat(" %9.3f %9.3f", row.algbw(), row.bus_share * row.algbw())
                         : absl::StrFormat(" %9s %9s", "-", "-"));
    if (row.raw_us > 0) {
      absl::StrAppend(&line, absl::StrFormat(" %12.1f ", row.raw_us),
                      has_bytes ? absl::StrFormat("%9.3f", row.bus_share * row.raw_algbw())
                                : absl::StrFormat("%9s", "-"),
                      absl::StrFormat(" %6.3f %6.3f", row.ratio, row.best_ratio));
    }
    std::printf("%s\n", line.c_str());
  }
}

absl::Status WriteReport(const Flags& flags, const std::vector<Row>& rows) {
  nlohmann::ordered_json report;
  report["bench"] = "comm_bench";
  report["repeats"] = flags.repeats;
  report["rows"] = nlohmann::ordered_json::array();
  for (const Row& row : rows) {
    nlohmann::ordered_json json = {{"backend", row.backend},
                                   {"collective", row.collective},
                                   {"ranks", row.ranks},
                                   {"bytes", row.bytes},
                                   {"us", row.us}};
    if (row.bytes > 0) {
      json["algbw_gb_s"] = row.algbw();
      json["busbw_gb_s"] = row.bus_share * row.algbw();
    }
    if (row.raw_us > 0) {
      json["raw_us"] = row.raw_us;
      if (row.bytes > 0) {
        json["raw_algbw_gb_s"] = row.raw_algbw();
        json["raw_busbw_gb_s"] = row.bus_share * row.raw_algbw();
      }
      json["ratio"] = row.ratio;
      json["best_ratio"] = row.best_ratio;
    }
    report["rows"].push_back(json);
  }
  std::ofstream file(flags.report);
  file << report.dump(2) << '\n';
  file.close();
  return file.good() ? absl::OkStatus()
                     : absl::UnavailableError(
                           absl::StrCat("--report=", flags.report, ": cannot be written"));
}

absl::Status Check(const Flags& flags) {
  for (const std::string& collective :
       std::vector<std::string>(absl::StrSplit(flags.collectives, ','))) {
    if (collective != "alltoall" && collective != "allreduce" && collective != "allgather" &&
        collective != "broadcast" && collective != "barrier") {
      return absl::InvalidArgumentError(
          absl::StrCat("--collectives: no such collective: \"", collective,
                       "\"; takes alltoall, allreduce, allgather, broadcast, barrier"));
    }
  }
  if (flags.min_bytes < 1 || flags.max_bytes < flags.min_bytes) {
    return absl::InvalidArgumentError("--min_bytes must be 1 at least, and at most --max_bytes");
  }
  return absl::OkStatus();
}

absl::Status Run(Flags flags) {
  HOTROW_RETURN_IF_ERROR(Check(flags));
  HOTROW_ASSIGN_OR_RETURN(const RankEnvironment environment, DetectRankEnvironment());
  const CommunicatorOptions options{.timeout_seconds = flags.timeout_seconds};
  if (flags.backends == "auto") {
    const bool mpi = environment.launcher == Launcher::kMpi && HaveMpi() && flags.threads == 0;
    flags.backends = mpi ? "mpi" : "threads";
  }
  std::vector<Row> rows;
  std::unique_ptr<Communicator> processes;  // of mpirun
  for (const std::string& backend : std::vector<std::string>(absl::StrSplit(flags.backends, ','))) {
    std::vector<Row> more;
    if (backend == "threads") {
      if (environment.world_size > 1) {
        return absl::InvalidArgumentError("--backends=threads: is for one process, without mpirun");
      }
      const int ranks = flags.threads > 0 ? static_cast<int>(flags.threads) : 2;
      const auto statuses = RunOnThreads(ranks, options, [&](Communicator& c) -> absl::Status {
        HOTROW_ASSIGN_OR_RETURN(std::vector<Row> mine, RunRank(c, flags, backend));
        if (c.rank() == 0) more = std::move(mine);
        return absl::OkStatus();
      });
      for (const absl::Status& status : statuses) HOTROW_RETURN_IF_ERROR(status);
    } else if (backend == "mpi" || backend == "nccl") {
      if (backend == "nccl" && !HaveNccl()) {
        return absl::UnimplementedError("--backends=nccl: this build has no NCCL");
      }
      if (processes == nullptr) {
        const bool alone = environment.launcher == Launcher::kNone && backend == "nccl";
        HOTROW_ASSIGN_OR_RETURN(
            processes, CreateCommunicator(alone ? CommKind::kSingle : CommKind::kMpi, options));
      }
      HOTROW_ASSIGN_OR_RETURN(more, RunRank(*processes, flags, backend));
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("--backends: no such backend: \"", backend, "\"; takes mpi, nccl, threads"));
    }
    rows.insert(rows.end(), more.begin(), more.end());
  }
  if (environment.rank != 0) return absl::OkStatus();
  Print(rows);
  return flags.report.empty() ? absl::OkStatus() : WriteReport(flags, rows);
}

int Main(int argc, char** argv) {
  Flags flags;
  FlagSet set("comm_bench");
  AddFlags(flags, set);
  absl::Status status = set.Parse(argc, argv);
  if (status.ok() && set.help_requested()) {
    std::fputs(set.Help().c_str(), stdout);
    return 0;
  }
  if (status.ok()) status = Run(flags);
  if (status.ok()) return 0;
  std::fprintf(stderr, "comm_bench: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace
}  // namespace hotrow::bench

int main(int argc, char** argv) {
  return hotrow::RunMain("comm_bench", [&] { return hotrow::bench::Main(argc, argv); });
}
