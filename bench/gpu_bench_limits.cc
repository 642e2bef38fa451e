// What the device, the bus and the host's memory can do.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/buffer.h"
#include "base/cuda_status.h"
#include "base/device_memory.h"
#include "base/hash.h"
#include "base/host_registration.h"
#include "base/status_macros.h"
#include "bench/gpu_bench.h"
#include "bench/gpu_bench_kernels.h"
#include "ops/rows/gather.h"

namespace hotrow::bench {
namespace {

constexpr int64_t kBytesOfFloat = 4;

absl::Status Copy(GpuBench& bench, void* to, const void* from, int64_t bytes) {
  HOTROW_CUDA_RETURN_IF_ERROR(
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, bench.stream()));
  return absl::OkStatus();
}

// Rows of the host that kernels and the copy engine reach, filled with random words.
struct HostRows {
  static absl::StatusOr<HostRows> Create(GpuBench& bench) {
    HostRows rows;
    const int64_t bytes = bench.sizes().host_bytes;
    HOTROW_ASSIGN_OR_RETURN(rows.data, HostBuffer<std::byte>::Create(bytes, HugePages::kTry));
    auto* const words = reinterpret_cast<uint64_t*>(rows.data.data());
    const auto seed = static_cast<uint64_t>(bench.flags().seed);
    ParallelFor(bench.Host().pool, bytes / 8, int64_t{1} << 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) words[i] = Mix64(seed + static_cast<uint64_t>(i) + 1);
    });
    HOTROW_ASSIGN_OR_RETURN(rows.registration,
                            HostRegistration::Create(Device::kCuda, rows.data.data(), bytes));
    return rows;
  }
  HostBuffer<std::byte> data;  // outlives its registration
  HostRegistration registration;
};

// Random rows of one table, gathered side by side: everything but the table.
struct Gather {
  static absl::StatusOr<Gather> Create(GpuBench& bench, int dim, const std::byte* table,
                                       int64_t table_bytes, int64_t output_bytes) {
    Gather gather;
    const int64_t row_bytes = kBytesOfFloat * dim;
    const int64_t table_rows = table_bytes / row_bytes;
    const int64_t n = GatherRowsOfLaunch(row_bytes, table_rows, bench.l2_bytes(), output_bytes);
    HOTROW_ASSIGN_OR_RETURN(gather.index, DeviceBuffer<uint32_t>::Create(n, bench.stream()));
    HOTROW_ASSIGN_OR_RETURN(gather.out,
                            DeviceBuffer<std::byte>::Create(n * row_bytes, bench.stream()));
    HOTROW_ASSIGN_OR_RETURN(gather.wrong, PinnedBuffer<int64_t>::Create(1));
    HOTROW_RETURN_IF_ERROR(MakeIndex(bench.stream(), gather.index.data(), n, table_rows,
                                     static_cast<uint64_t>(bench.flags().seed)));
    gather.args = {.table = table,
                   .row_bytes = row_bytes,
                   .index = gather.index.data(),
                   .n = n,
                   .out = gather.out.data()};
    return gather;
  }
  absl::Status Check(GpuBench& bench) {
    wrong[0] = 0;
    HOTROW_RETURN_IF_ERROR(CountWrongWords(bench.stream(), args, wrong.data()));
    HOTROW_RETURN_IF_ERROR(bench.Wait());
    if (wrong[0] == 0) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrCat(wrong[0], " words of ", args.n, " gathered rows are not those of the table"));
  }
  // The quickest of a few shapes of the kernel: a limit should be one.
  absl::StatusOr<Times> MeasureBest(GpuBench& bench) {
    Times best;
    for (const int in_flight : {2, 4, 8}) {
      GatherByKernelArgs now = args;
      now.in_flight = in_flight;
      HOTROW_ASSIGN_OR_RETURN(const Times times, bench.Measure([&](int64_t) {
        return GatherByKernel(bench.stream(), now);
      }));
      HOTROW_RETURN_IF_ERROR(Check(bench));
      if (best.median == 0 || times.median < best.median) {
        best = times;
        best_in_flight = in_flight;
      }
    }
    return best;
  }

  DeviceBuffer<uint32_t> index;
  DeviceBuffer<std::byte> out;
  PinnedBuffer<int64_t> wrong;
  GatherByKernelArgs args;
  int best_in_flight = 0;
};

}  // namespace

absl::Status MeasureCopy(GpuBench& bench) {
  const int64_t bytes = bench.sizes().copy_bytes;
  HOTROW_ASSIGN_OR_RETURN(auto from, DeviceBuffer<std::byte>::Create(bytes, bench.stream()));
  HOTROW_ASSIGN_OR_RETURN(auto to, DeviceBuffer<std::byte>::Create(bytes, bench.stream()));
  HOTROW_RETURN_IF_ERROR(
      FillWords(bench.stream(), from.data(), bytes, static_cast<uint64_t>(bench.flags().seed)));
  HOTROW_ASSIGN_OR_RETURN(const Times by_driver, bench.Measure([&](int64_t) {
    return Copy(bench, to.data(), from.data(), bytes);
  }));
  HOTROW_ASSIGN_OR_RETURN(const Times by_kernel, bench.Measure([&](int64_t) {
    return CopyByKernel(bench.stream(), from.data(), to.data(), bytes);
  }));
  // Bytes read and written.
  const auto both = static_cast<double>(2 * bytes);
  bench.Add({"copy", "device copy, by the driver", by_driver, both, "bytes"});
  bench.Add({"copy", "device copy, by a kernel", by_kernel, both, "bytes"});
  bench.SetLimit("copy", both / std::min(by_driver.median, by_kernel.median));
  return absl::OkStatus();
}

absl::Status MeasureGather(GpuBench& bench) {
  const int64_t table_bytes = bench.sizes().table_bytes;
  HOTROW_ASSIGN_OR_RETURN(auto table, DeviceBuffer<std::byte>::Create(table_bytes, bench.stream()));
  HOTROW_RETURN_IF_ERROR(FillWords(bench.stream(), table.data(), table_bytes,
                                   static_cast<uint64_t>(bench.flags().seed)));
  std::set<int> dims(bench.points().dims.begin(), bench.points().dims.end());
  dims.insert(kSectorDim);  // for the limit of a probe
  for (const int dim : dims) {
    HOTROW_ASSIGN_OR_RETURN(Gather gather, Gather::Create(bench, dim, table.data(), table_bytes,
                                                          bench.sizes().copy_bytes));
    HOTROW_ASSIGN_OR_RETURN(const Times times, gather.MeasureBest(bench));
    const auto rows = static_cast<double>(gather.args.n);
    const double bytes_of_row =
        static_cast<double>(GatherBytes(gather.args.n, gather.args.row_bytes)) / rows;
    bench.Add({"gather",
               absl::StrCat("random rows, dim ", dim),
               times,
               rows,
               "rows",
               "copy",
               bench.limit("copy") / bytes_of_row,
               {{"dim", dim},
                {"rows", gather.args.n},
                {"table_bytes", table_bytes},
                {"in_flight", gather.best_in_flight},
                {"row_bytes_per_second",
                 rows * static_cast<double>(gather.args.row_bytes) / times.median}}});
    bench.SetLimit(GatherLimit(dim), rows / times.median);
  }
  return absl::OkStatus();
}

absl::Status MeasureBus(GpuBench& bench) {
  const int64_t bytes = bench.sizes().bus_bytes;
  const auto amount = static_cast<double>(bytes);
  HOTROW_ASSIGN_OR_RETURN(auto host_in, PinnedBuffer<std::byte>::Create(bytes));
  HOTROW_ASSIGN_OR_RETURN(auto host_out, PinnedBuffer<std::byte>::Create(bytes));
  HOTROW_ASSIGN_OR_RETURN(auto device_in, DeviceBuffer<std::byte>::Create(bytes, bench.stream()));
  HOTROW_ASSIGN_OR_RETURN(auto device_out, DeviceBuffer<std::byte>::Create(bytes, bench.stream()));
  HOTROW_RETURN_IF_ERROR(FillWords(bench.stream(), device_out.data(), bytes,
                                   static_cast<uint64_t>(bench.flags().seed)));
  HOTROW_RETURN_IF_ERROR(Copy(bench, host_in.data(), device_out.data(), bytes));

  HOTROW_ASSIGN_OR_RETURN(const Times to_device, bench.Measure([&](int64_t) {
    return Copy(bench, device_in.data(), host_in.data(), bytes);
  }));
  bench.Add({"bus", "host to device, page-locked", to_device, amount, "bytes"});
  bench.SetLimit("h2d", amount / to_device.median);
  HOTROW_ASSIGN_OR_RETURN(const Times to_host, bench.Measure([&](int64_t) {
    return Copy(bench, host_out.data(), device_out.data(), bytes);
  }));
  bench.Add({"bus", "device to host, page-locked", to_host, amount, "bytes"});
  bench.SetLimit("d2h", amount / to_host.median);

  // The second direction runs on its own stream, from the moment the first begins.
  HOTROW_ASSIGN_OR_RETURN(const StreamHandle other, CreateStream());
  HOTROW_ASSIGN_OR_RETURN(const EventHandle begun, CreateEvent());
  HOTROW_ASSIGN_OR_RETURN(const EventHandle done, CreateEvent());
  HOTROW_ASSIGN_OR_RETURN(const Times both, bench.Measure([&](int64_t) -> absl::Status {
    HOTROW_CUDA_RETURN_IF_ERROR(cudaEventRecord(begun.get(), bench.stream()));
    HOTROW_CUDA_RETURN_IF_ERROR(cudaStreamWaitEvent(other.get(), begun.get(), 0));
    HOTROW_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(host_out.data(), device_out.data(),
                                                static_cast<size_t>(bytes), cudaMemcpyDefault,
                                                other.get()));
    HOTROW_CUDA_RETURN_IF_ERROR(cudaEventRecord(done.get(), other.get()));
    HOTROW_RETURN_IF_ERROR(Copy(bench, device_in.data(), host_in.data(), bytes));
    HOTROW_CUDA_RETURN_IF_ERROR(cudaStreamWaitEvent(bench.stream(), done.get(), 0));
    return absl::OkStatus();
  }));
  bench.Add({"bus", "both directions at once", both, 2 * amount, "bytes", "the two alone, together",
             bench.limit("h2d") + bench.limit("d2h")});
  return absl::OkStatus();
}

absl::Status MeasureHostGather(GpuBench& bench) {
  HOTROW_ASSIGN_OR_RETURN(HostRows rows, HostRows::Create(bench));
  for (const int dim : bench.points().dims) {
    HOTROW_ASSIGN_OR_RETURN(
        Gather gather,
        Gather::Create(bench, dim, rows.data.data(), rows.data.bytes(), bench.sizes().bus_bytes));
    HOTROW_ASSIGN_OR_RETURN(const Times times, gather.MeasureBest(bench));
    const auto n = static_cast<double>(gather.args.n);
    bench.Add({"host_gather",
               absl::StrCat("kernel reads page-locked rows, dim ", dim),
               times,
               n,
               "rows",
               "host to device",
               bench.limit("h2d") / static_cast<double>(gather.args.row_bytes),
               {{"dim", dim},
                {"rows", gather.args.n},
                {"table_bytes", rows.data.bytes()},
                {"in_flight", gather.best_in_flight}}});
    bench.SetLimit(absl::StrCat("host gather dim ", dim), n / times.median);
  }
  return absl::OkStatus();
}

absl::Status MeasureStaging(GpuBench& bench) {
  HOTROW_ASSIGN_OR_RETURN(HostRows rows, HostRows::Create(bench));
  // Pieces that are gathered while the one before is on its way.
  constexpr int64_t kPieceBytes = int64_t{4} << 20;
  constexpr int kPieces = 4;
  HOTROW_ASSIGN_OR_RETURN(auto staging, PinnedBuffer<std::byte>::Create(kPieces * kPieceBytes));
  EventHandle sent[kPieces];
  for (EventHandle& event : sent) {
    HOTROW_ASSIGN_OR_RETURN(event, CreateEvent());
  }
  for (const int dim : bench.points().dims) {
    HOTROW_ASSIGN_OR_RETURN(
        Gather gather,
        Gather::Create(bench, dim, rows.data.data(), rows.data.bytes(), bench.sizes().bus_bytes));
    const int64_t n = gather.args.n;
    const int64_t row_bytes = gather.args.row_bytes;
    std::vector<uint32_t> index(static_cast<size_t>(n));
    HOTROW_RETURN_IF_ERROR(Copy(bench, index.data(), gather.args.index, 4 * n));
    HOTROW_RETURN_IF_ERROR(bench.Wait());
    std::vector<const std::byte*> pointers;
    pointers.reserve(static_cast<size_t>(n));
    for (const uint32_t i : index) pointers.push_back(rows.data.data() + i * row_bytes);

    const int64_t piece_rows = kPieceBytes / row_bytes;
    const auto stage = [&](int64_t) -> absl::Status {
      for (int64_t begin = 0, piece = 0; begin < n; begin += piece_rows, ++piece) {
        const int64_t count = std::min(piece_rows, n - begin);
        const auto slot = static_cast<size_t>(piece % kPieces);
        std::byte* const buffer = staging.data() + static_cast<int64_t>(slot) * kPieceBytes;
        if (piece >= kPieces) HOTROW_CUDA_RETURN_IF_ERROR(cudaEventSynchronize(sent[slot].get()));
        HOTROW_RETURN_IF_ERROR(GatherRows(bench.Host(), {.rows = pointers.data() + begin,
                                                         .num_rows = count,
                                                         .row_bytes = row_bytes,
                                                         .output = buffer,
                                                         .output_stride = row_bytes}));
        HOTROW_RETURN_IF_ERROR(
            Copy(bench, gather.out.data() + begin * row_bytes, buffer, count * row_bytes));
        HOTROW_CUDA_RETURN_IF_ERROR(cudaEventRecord(sent[slot].get(), bench.stream()));
      }
      return absl::OkStatus();
    };
    HOTROW_ASSIGN_OR_RETURN(const Times times,
                            bench.Measure(stage, nullptr, GpuBench::Clock::kHostWorks));
    HOTROW_RETURN_IF_ERROR(gather.Check(bench));
    bench.Add({"staging",
               absl::StrCat("host gathers, then copies, dim ", dim),
               times,
               static_cast<double>(n),
               "rows",
               "host to device",
               bench.limit("h2d") / static_cast<double>(row_bytes),
               {{"dim", dim},
                {"rows", n},
                {"kernel_rows_per_second", bench.limit(absl::StrCat("host gather dim ", dim))}}});
  }
  return absl::OkStatus();
}

}  // namespace hotrow::bench
