#include <charconv>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "tools/plan/hardware.h"
#include "tools/plan/spec_text.h"

namespace hotrow {
namespace {

constexpr char kFormat[] = "hotrow hardware 1";

// One line of the file.
struct Line {
  std::string name;
  double* value;
  const char* meaning;  // unit first
};

void AddCost(const char* name, EngineCost* cost, const char* of, std::vector<Line>* lines) {
  lines->push_back({absl::StrCat(name, "_seconds"), &cost->seconds, of});
  lines->push_back(
      {absl::StrCat(name, "_seconds_per_byte"), &cost->seconds_per_byte, "s a byte; the same"});
}

void AddDenseRates(const char* batch, HardwareProfile::DenseRates* rates,
                   std::vector<Line>* lines) {
  const auto add = [&](const char* name, double* rate) {
    lines->push_back({absl::StrCat(name, "_", batch), rate, "FLOP/s; at that many samples"});
  };
  add("dense_flops_narrow", &rates->narrow);
  add("dense_flops_middle", &rates->middle);
  add("dense_flops_wide", &rates->wide);
  add("dot_flops_short", &rates->dot_short);
  add("dot_flops_long", &rates->dot_long);
}

std::vector<Line> LinesOf(HardwareProfile* p) {
  EngineCosts* const e = &p->engine;
  std::vector<Line> lines = {
      {"hbm_bytes", &p->hbm_bytes, "bytes; memory of a GPU, which trains the rows"},
      {"hbm_bytes_per_second", &p->hbm_bytes_per_second, "bytes/s; copies in it, both sides"},
      {"host_link_bytes_per_second", &p->host_link_bytes_per_second,
       "bytes/s; page-locked host memory to it and back, the slower"},
      {"activation_bytes", &p->activation_bytes,
       "bytes; that a layer moves there for each number it puts out, beside its products"},
      {"step_seconds", &p->step_seconds, "s a step; to start its kernels"},
      {"dram_bytes", &p->dram_bytes, "bytes; memory that a process may use"},
      {"dram_bytes_per_second", &p->dram_bytes_per_second, "bytes/s; reading memory in order"},
      {"node_link_bytes_per_second", &p->gpu_link_bytes_per_second,
       "bytes/s; copying within memory, what ranks of one machine have between them"},
      {"network_bytes_per_second", &p->network_bytes_per_second, "bytes/s; to other machines"},
      {"gather_rows_per_second", &p->gather_rows_per_second,
       "rows/s; rows of 512 bytes by random key from a store in memory"},
      {"cpu_seconds_per_key", &p->cpu_seconds_per_key, "s a row; the same the other way round"},
      {"dense_flops", &p->dense_flops, "FLOP/s; layers of a click model, forward and backward"},
      {"dense_flops_16", &p->dense_flops_16, "FLOP/s; the same with products of bf16"},
      {"dense_flops_narrow", &p->dense_flops_narrow, "FLOP/s; layers 64 wide, 2048 samples"},
      {"dense_flops_middle", &p->dense_flops_middle, "FLOP/s; layers 256 wide"},
      {"dense_flops_wide", &p->dense_flops_wide, "FLOP/s; layers 1024 wide"},
      {"dot_flops_short", &p->dot_flops_short, "FLOP/s; dot interaction of dim 16"},
      {"dot_flops_long", &p->dot_flops_long, "FLOP/s; dot interaction of dim 128"},
      {"ssd_bytes", &p->ssd_bytes, "bytes; that files may take on the disk"},
      {"ssd_read_ios_per_second", &p->ssd_read_ios_per_second,
       "reads/s; random 4 KiB, 128 in flight"},
      {"ssd_read_bytes_per_second", &p->ssd_read_bytes_per_second, "bytes/s; of those reads"},
      {"ssd_write_bytes_per_second", &p->ssd_write_bytes_per_second,
       "bytes/s; in order, 1 MiB each, synced"},
      {"ssd_endurance_bytes", &p->ssd_endurance_bytes, "bytes; that may be written over its life"},
      {"unique_seconds_per_lookup", &e->unique_seconds_per_lookup,
       "s a lookup; finding distinct keys and sorting by them"},
  };
  AddCost("in_place", &e->in_place, "s a distinct key; finding its row without a cache", &lines);
  AddCost("hit", &e->hit, "s a distinct key; whose row is in the cache", &lines);
  AddCost("miss", &e->miss, "s a distinct key; whose row is read from host memory", &lines);
  AddCost("evict", &e->evict, "s a row; written back to host memory", &lines);
  AddCost("ssd_miss", &e->ssd_miss, "s a row; read from a disk and written back, without waiting",
          &lines);
  AddCost("pool", &e->pool, "s a lookup; bytes are those of the weights", &lines);
  AddCost("sum", &e->sum, "s a lookup; its gradient; bytes are those of the weights", &lines);
  AddCost("update", &e->update, "s a distinct key; its optimizer step", &lines);
  AddCost("new_in_place", &e->new_in_place,
          "s a row that is new; in the store, without a cache, beside the others", &lines);
  AddCost("new_row", &e->new_row, "s a row that is new; in the cache, beside the others", &lines);
  lines.push_back({"unique_busy", &e->unique_busy,
                   "share of the threads that find distinct keys; 1 is all of them"});
  lines.push_back({"hit_busy", &e->hit_busy, "the same where rows are found in the cache"});
  lines.push_back({"miss_busy", &e->miss_busy, "the same of misses and evictions, over memory"});
  lines.push_back({"ssd_miss_busy", &e->ssd_miss_busy, "the same over a disk"});
  AddDenseRates("64", &p->dense_small, &lines);
  AddDenseRates("256", &p->dense_middle, &lines);
  lines.push_back({"step_beside", &e->step_beside,
                   "s a step takes longer for each second that all processors work beside it"});
  lines.push_back({"disk_beside", &e->disk_beside,
                   "the same of what places rows and reads them from a disk, beside a step"});
  AddCost("ssd_wait", &e->ssd_wait,
          "s a row; waited for by the thread that reads from a disk, beside its work and the reads",
          &lines);
  return lines;
}

absl::Status ErrorAt(std::string_view name, const SpecNode& node, const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(name), ":", node.line, ":", node.column + 1, ": ", what));
}

}  // namespace

std::string HardwareProfileText(const HardwareProfile& profile) {
  std::string machine;
  for (const char c : profile.machine) {
    // What would end the quoted text or the line.
    machine += c == '"' || c == '\\' || static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  std::string out = absl::StrCat(
      "# What programs reach on this machine, measured by `hotrow calibrate`. `hotrow plan` reads "
      "it:\n# hardware: FILE in a spec, or --hardware=FILE. Times are of all threads together.\n",
      "format: ", kFormat, "\nmachine: \"", machine, "\"\nthreads: ", profile.threads, "\n");
  HardwareProfile copy = profile;
  for (const Line& line : LinesOf(&copy)) {
    if (*line.value == 0) continue;
    absl::StrAppendFormat(&out, "%-40s  # %s\n",
                          absl::StrCat(line.name, ": ", absl::StrFormat("%.4g", *line.value)),
                          line.meaning);
  }
  return out;
}

absl::StatusOr<HardwareProfile> ParseHardwareProfile(std::string_view text, std::string_view name) {
  HOTROW_ASSIGN_OR_RETURN(const SpecNode root, ParseSpecText(text, name));
  const SpecNode* const format = root.Find("format");
  if (root.kind != SpecNode::Kind::kMap || format == nullptr || format->text != kFormat) {
    return ErrorAt(name, format == nullptr ? root : *format,
                   absl::StrCat("is no hardware profile of this version (format: ", kFormat,
                                "); make one with: hotrow calibrate --output=FILE"));
  }
  HardwareProfile profile = *FindAccelerator("cpu");
  profile.name = std::string(name);
  const std::vector<Line> lines = LinesOf(&profile);
  double drives = 1;
  for (const auto& [field, node] : root.fields) {
    if (field == "format") continue;
    if (field == "machine") {
      profile.machine = node.text;
      continue;
    }
    double value = 0;
    const char* const end = node.text.data() + node.text.size();
    const auto [stop, error] = std::from_chars(node.text.data(), end, value);
    if (node.kind != SpecNode::Kind::kScalar || error != std::errc() || stop != end ||
        !std::isfinite(value) || value <= 0) {
      return ErrorAt(name, node, absl::StrCat(field, ": must be a number above 0"));
    }
    if (field == "threads") {
      profile.threads = static_cast<int>(std::min(value, 1e6));
      continue;
    }
    if (field == "drives") {
      if (value > kDrivesMax || value != std::floor(value)) {
        return ErrorAt(name, node,
                       absl::StrCat("drives: must be a whole number in [1, ", kDrivesMax, "]"));
      }
      drives = value;
      continue;
    }
    const Line* found = nullptr;
    for (const Line& line : lines) found = line.name == field ? &line : found;
    if (found == nullptr) {
      return ErrorAt(name, node, absl::StrCat(field, ": a hardware profile has no such field"));
    }
    *found->value = value;
  }
  profile.MultiplyDisk(drives);
  return profile;
}

}  // namespace hotrow
