// Any damage to any file of a run at rest: a trial draws a file or directory of a store and its
// checkpoints and a kind of damage, and then verifies the checkpoints and resumes training. What
// must hold of each program, with any damage:
//
//   - it ends by itself, with a status below 100 and, unless that is 0, a message;
//   - a status of 0 goes with the hashes of the undamaged run;
//   - `hotrow verify` does not say good of what cannot be resumed.
//
// HOTROW_SLOW_TESTS=1 runs 2,000 trials a store. HOTROW_DAMAGE_TRIALS=N runs N of them, and =A-B
// those with these numbers: with HOTROW_TEST_SEED, which a failure names too, one can be replayed.
// Files have random identities and RocksDB numbers its own as it likes, so the damage is replayed
// as far as the same files are there. HOTROW_DAMAGE_KEEP=DIR keeps a copy of what each trial that
// failed had damaged.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/env.h"
#include "base/philox.h"
#include "gtest/gtest.h"
#include "tests/support/run_program.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"
#ifdef HOTROW_MPIEXEC
#include "tests/support/mpirun.h"
#endif

namespace hotrow {
namespace {

namespace fs = std::filesystem;

using test::ProgramResult;
using test::RunProgram;

constexpr int64_t kHugeBytes = int64_t{200} << 30;
// A program that needs more has believed a damaged number.
constexpr int64_t kAddressSpaceBytes = int64_t{6} << 30;
// By the clock: more where thousands of trials run beside other work.
const double kSecondsMax = test::ForSanitizer(20.0, 120.0) * (test::RunsSlowTests() ? 10 : 1);
// One trial in so many also asks the programs that only read.
constexpr uint64_t kOtherProgramsEvery = 8;

struct Kind {
  std::string store;
  int ranks = 1;
};

// --- The files of a run ---

struct Entry {
  std::string path;  // below the directory of the run
  bool is_dir = false;
  int64_t bytes = 0;
};

std::vector<Entry> EntriesOf(const std::string& dir) {
  std::vector<Entry> out;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(dir)) {
    out.push_back({.path = fs::relative(entry.path(), dir).string(),
                   .is_dir = entry.is_directory(),
                   .bytes = entry.is_regular_file() ? static_cast<int64_t>(entry.file_size()) : 0});
  }
  std::sort(out.begin(), out.end(), [](const Entry& a, const Entry& b) { return a.path < b.path; });
  return out;
}

// Holes stay holes.
void CopyFile(const std::string& from, const std::string& to) {
  const int in = ::open(from.c_str(), O_RDONLY | O_CLOEXEC);
  const int out = ::open(to.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  ASSERT_GE(in, 0) << from;
  ASSERT_GE(out, 0) << to;
  const off_t end = ::lseek(in, 0, SEEK_END);
  off_t at = 0;
  while (at < end && (at = ::lseek(in, at, SEEK_DATA)) >= 0) {
    off_t hole = ::lseek(in, at, SEEK_HOLE);
    while (at < hole) {
      off_t written_at = at;
      const ssize_t n =
          ::copy_file_range(in, &at, out, &written_at, static_cast<size_t>(hole - written_at), 0);
      ASSERT_GT(n, 0) << from << " to " << to;
    }
  }
  ASSERT_EQ(::ftruncate(out, end), 0);
  ::close(in);
  ::close(out);
}

void CopyTree(const std::string& from, const std::string& to) {
  fs::create_directories(to);
  for (const fs::directory_entry& entry : fs::directory_iterator(from)) {
    const std::string target = to + "/" + entry.path().filename().string();
    if (entry.is_directory()) {
      CopyTree(entry.path().string(), target);
    } else {
      CopyFile(entry.path().string(), target);
    }
  }
}

std::string BytesOf(const std::string& path) {
  return ReadFileToString(PosixEnv(), path).value_or("");
}

bool SameBytes(const std::string& a, const std::string& b) {
  return fs::file_size(a) == fs::file_size(b) && BytesOf(a) == BytesOf(b);
}

// --- Damage ---

class Damager {
 public:
  // dir: the run that is damaged. older, other: the same run at an earlier time, and one with other
  // rows, undamaged.
  Damager(std::string dir, std::string older, std::string other, RandomStream* random)
      : dir_(std::move(dir)),
        older_(std::move(older)),
        other_(std::move(other)),
        random_(*random),
        entries_(EntriesOf(dir_)) {}

  // Does some damage and says what; nullopt: what was drawn damages nothing.
  std::optional<std::string> Damage() {
    const Entry& entry = entries_[random_.Below(entries_.size())];
    // A directory is drawn as often as a file, and there are many.
    if (entry.is_dir) return random_.Below(2) == 0 ? DamageDirectory(entry) : std::nullopt;
    return DamageFile(entry);
  }

 private:
  std::string Path(const std::string& name) const { return absl::StrCat(dir_, "/", name); }

  std::optional<std::string> DamageFile(const Entry& entry) {
    const std::string path = Path(entry.path);
    const auto said = [&](const auto&... what) {
      return absl::StrCat(entry.path, " of ", entry.bytes, " bytes: ", what...);
    };
    switch (random_.Below(17)) {
      case 0:
      case 1:
        return ChangeByte(entry, static_cast<uint8_t>(1 << random_.Below(8)), "flip a bit");
      case 2:
      case 3:
        return ChangeByte(entry, static_cast<uint8_t>(1 + random_.Below(255)), "change a byte");
      case 4: {
        if (entry.bytes == 0) return std::nullopt;
        const auto size = static_cast<int64_t>(random_.Below(static_cast<uint64_t>(entry.bytes)));
        fs::resize_file(path, static_cast<uintmax_t>(size));
        return said("cut to ", size);
      }
      case 5: {
        const auto more =
            static_cast<int64_t>(1 + random_.Below(random_.Below(2) == 0 ? 16 : uint64_t{1} << 20));
        fs::resize_file(path, static_cast<uintmax_t>(entry.bytes + more));
        return said(more, " zero bytes longer");
      }
      case 6:
        if (entry.bytes == 0) return std::nullopt;
        fs::resize_file(path, 0);
        return said("emptied");
      case 7:
        fs::remove(path);
        return said("removed");
      case 8: {
        const Entry* const second = Other(entry);
        if (second == nullptr || SameBytes(path, Path(second->path))) return std::nullopt;
        Swap(path, Path(second->path));
        return said("exchanged with ", second->path);
      }
      case 9:
        return Replace(entry, other_, "that of another run");
      case 10:
        return Replace(entry, older_, "an older version of itself");
      case 11:
        fs::remove(path);
        fs::create_directory(path);
        return said("a directory instead");
      case 12:
        fs::remove(path);
        EXPECT_EQ(::mkfifo(path.c_str(), 0644), 0);
        return said("a FIFO instead");
      case 13:
        fs::remove(path);
        fs::create_symlink("/dev/zero", path);
        return said("a link to /dev/zero instead");
      case 14: {
        // One file twice, or once more under a new name.
        const Entry* const second = Other(entry);
        const bool over = random_.Below(2) == 0;
        if (over && (second == nullptr || SameBytes(path, Path(second->path)))) return std::nullopt;
        const std::string to =
            over ? second->path : absl::StrCat(entry.path, random_.Below(2) == 0 ? ".tmp" : "1");
        CopyFile(path, Path(to));
        return said("copied to ", to);
      }
      case 15:
        fs::resize_file(path, kHugeBytes);
        return said("200 GiB long");
      default: {
        if (entry.bytes == 0) return std::nullopt;
        // A block of the disk is lost.
        constexpr int64_t kBlock = 4096;
        const auto blocks = static_cast<uint64_t>((entry.bytes + kBlock - 1) / kBlock);
        const int64_t at = static_cast<int64_t>(random_.Below(blocks)) * kBlock;
        std::string bytes = BytesOf(path);
        const std::string zeros(static_cast<size_t>(std::min(kBlock, entry.bytes - at)), '\0');
        if (bytes.compare(static_cast<size_t>(at), zeros.size(), zeros) == 0) return std::nullopt;
        bytes.replace(static_cast<size_t>(at), zeros.size(), zeros);
        Write(path, bytes);
        return said("zeros from byte ", at);
      }
    }
  }

  std::optional<std::string> DamageDirectory(const Entry& entry) {
    const std::string path = Path(entry.path);
    const auto said = [&](const auto&... what) { return absl::StrCat(entry.path, "/: ", what...); };
    switch (random_.Below(6)) {
      case 0:
        fs::remove_all(path);
        return said("removed");
      case 1:
        fs::remove_all(path);
        fs::create_directory(path);
        return said("emptied");
      case 2:
      case 3: {
        const bool older = random_.Below(2) == 0;
        const std::string from = absl::StrCat(older ? older_ : other_, "/", entry.path);
        // All of a run is a run.
        if (!fs::exists(from) || IsAllOfIt(entry.path)) return std::nullopt;
        fs::remove_all(path);
        CopyTree(from, path);
        return said(older ? "an older version of itself" : "that of another run");
      }
      case 4: {
        const Entry* const second = Other(entry);
        if (second == nullptr || Contains(entry.path, second->path) ||
            Contains(second->path, entry.path)) {
          return std::nullopt;
        }
        Swap(path, Path(second->path));
        return said("exchanged with ", second->path);
      }
      default: {
        const Entry* const second = Other(entry);
        if (second == nullptr || Contains(entry.path, second->path) ||
            Contains(second->path, entry.path)) {
          return std::nullopt;
        }
        fs::remove_all(Path(second->path));
        CopyTree(path, Path(second->path));
        return said("copied to ", second->path);
      }
    }
  }

  // Whether everything lies there that the run is made of: it may be replaced.
  bool IsAllOfIt(const std::string& path) const {
    return std::all_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
      return entry.is_dir || Contains(path, entry.path);
    });
  }
  static bool Contains(const std::string& dir, const std::string& path) {
    return absl::StartsWith(path, dir + "/");
  }

  std::optional<std::string> ChangeByte(const Entry& entry, uint8_t mask, const char* what) {
    if (entry.bytes == 0) return std::nullopt;
    const std::string path = Path(entry.path);
    const auto at = static_cast<int64_t>(random_.Below(static_cast<uint64_t>(entry.bytes)));
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    uint8_t byte = 0;
    EXPECT_EQ(::pread(fd, &byte, 1, at), 1) << path;
    byte ^= mask;
    EXPECT_EQ(::pwrite(fd, &byte, 1, at), 1) << path;
    ::close(fd);
    return absl::StrCat(entry.path, " of ", entry.bytes, " bytes: ", what, " at ", at, ", xor ",
                        static_cast<int>(mask));
  }

  // Another entry of the same sort, most often one whose name differs in digits alone; null: there
  // is none. Those at the top stay: with a store in the place of the checkpoints, `hotrow verify`
  // is right to look at a store.
  const Entry* Other(const Entry& entry) {
    const bool alike = random_.Below(4) != 0;
    std::vector<const Entry*> all;
    for (const Entry& candidate : entries_) {
      if (candidate.path == entry.path || candidate.is_dir != entry.is_dir) continue;
      if (candidate.path.find('/') == std::string::npos) continue;
      if (alike && !Alike(candidate.path, entry.path)) continue;
      all.push_back(&candidate);
    }
    const bool stays = entry.path.find('/') == std::string::npos;
    return all.empty() || stays ? nullptr : all[random_.Below(all.size())];
  }
  // Names that differ in their digits alone.
  static bool Alike(const std::string& a, const std::string& b) {
    const auto shape = [](const std::string& path) {
      std::string out;
      for (const char c : fs::path(path).filename().string()) {
        const bool digit = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
        if (!digit) out += c;
      }
      return out;
    };
    return shape(a) == shape(b);
  }

  std::optional<std::string> Replace(const Entry& entry, const std::string& run, const char* what) {
    std::string from = absl::StrCat(run, "/", entry.path);
    if (!fs::is_regular_file(from)) {
      // It has another name there; one like it.
      std::vector<std::string> alike;
      for (const Entry& candidate : EntriesOf(run)) {
        if (!candidate.is_dir && Alike(candidate.path, entry.path)) alike.push_back(candidate.path);
      }
      if (alike.empty()) return std::nullopt;
      from = absl::StrCat(run, "/", alike[random_.Below(alike.size())]);
    }
    if (SameBytes(from, Path(entry.path))) return std::nullopt;
    CopyFile(from, Path(entry.path));
    return absl::StrCat(entry.path, ": ", what, ", ", fs::relative(from, run).string());
  }

  void Swap(const std::string& a, const std::string& b) {
    const std::string aside = dir_ + "/aside";
    fs::rename(a, aside);
    fs::rename(b, a);
    fs::rename(aside, b);
  }
  static void Write(const std::string& path, const std::string& bytes) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC);
    EXPECT_EQ(::write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size())) << path;
    ::close(fd);
  }

  const std::string dir_;
  const std::string older_;
  const std::string other_;
  RandomStream& random_;
  const std::vector<Entry> entries_;
};

// --- Programs ---

class Trials {
 public:
  explicit Trials(Kind kind) : kind_(std::move(kind)), top_(test::TempDir()), run_(top_ + "/run") {}

  // Makes the runs that trials begin with, and learns what they come to.
  void Prepare() {
    // Paths are part of a run, so all of them are made at one place.
    Make("other", 2, 2);
    Make("older", 1, 1);
    CopyTree(top_ + "/older", run_);
    ExpectGood(Train(1, 2, /*resume=*/true));
    Keep("base");
    if (testing::Test::HasFailure()) return;
    Begin();
    // From the newest checkpoint, and from the one before it, should that be lost.
    started_from_.insert(StartFrom(run_ + "/ck").hashes);
    exported_.insert(Export().tables);
    const ProgramResult verified = Hotrow({"verify", run_ + "/ck"});
    EXPECT_EQ(verified.exit_code, 0) << verified;
    std::vector<std::string> steps;
    for (const fs::directory_entry& entry : fs::directory_iterator(run_ + "/ck")) {
      if (absl::StartsWith(entry.path().filename().string(), "step-")) {
        steps.push_back(entry.path().string());
      }
    }
    std::sort(steps.begin(), steps.end());
    EXPECT_EQ(steps.size(), 2u);
    const Trained resumed = Train(1, 3, /*resume=*/true);
    ExpectGood(resumed);
    right_ = resumed.hashes;
    Begin();
    fs::remove_all(steps.back());
    started_from_.insert(StartFrom(run_ + "/ck").hashes);
    exported_.insert(Export().tables);
  }

  // What went wrong; empty: nothing. *damage: what was done.
  std::vector<std::string> Run(uint64_t seed, uint64_t trial, std::string* damage) {
    RandomStream random(seed, RandomPurpose::kTest, trial);
    std::optional<std::string> done;
    for (int i = 0; i < 100 && !done.has_value(); ++i) {
      Begin();
      done = Damager(run_, top_ + "/older", top_ + "/other", &random).Damage();
    }
    if (!done.has_value()) return {};
    *damage = *done;
    const char* const keep = std::getenv("HOTROW_DAMAGE_KEEP");
    if (keep != nullptr) {
      // Devices and pipes among it, so by a program that keeps them as they are.
      fs::remove_all(top_ + "/damaged");
      ExpectRan(RunLimited({.arguments = {"cp", "-a", run_, top_ + "/damaged"}}));
    }
    std::vector<std::string> wrong;
    // It must end by itself, as a program does that knows what it says.
    const auto check_clean = [&](const std::string& name, const ProgramResult& run) {
      const std::string end = LastLine(run.out);
      if (run.timed_out) {
        wrong.push_back(absl::StrCat(name, " does not end"));
      } else if (run.signal != 0) {
        wrong.push_back(absl::StrCat(name, " is ended by signal ", run.signal, ": ", end));
      } else if (run.exit_code >= 100) {
        wrong.push_back(absl::StrCat(name, " ends with ", run.exit_code, ": ", end));
      } else if (run.exit_code != 0 && end.empty()) {
        wrong.push_back(name + " fails without a message");
      }
    };
    // A trainer that is told to end because it takes too long says 0, too.
    const auto said_good = [](const ProgramResult& run) {
      return run.exit_code == 0 && !run.timed_out;
    };
    const ProgramResult verified = Hotrow({"verify", run_ + "/ck"});
    check_clean("verify", verified);
    if (random.Below(kOtherProgramsEvery) == 0) {
      check_clean("inspect", Hotrow({"inspect", run_ + "/ck"}));
      if (fs::exists(run_ + "/store")) {
        const std::string store =
            absl::StrCat(run_, "/store", kind_.ranks == 1 ? "" : "/rank-00000-of-00002");
        check_clean("inspect of the store", Hotrow({"inspect", store}));
        check_clean("verify of the store", Hotrow({"verify", store}));
      }
      const Exported exported = Export();
      check_clean("export", exported.run);
      if (said_good(exported.run) && !exported_.contains(exported.tables)) {
        wrong.push_back(
            absl::StrCat("export ends with 0 and other rows; verify says ", verified.exit_code));
      }
      const Trained started = StartFrom(run_ + "/ck");
      check_clean("--init_from", started.run);
      if (said_good(started.run) && !started_from_.contains(started.hashes)) {
        wrong.push_back(absl::StrCat("--init_from ends with 0 and other hashes; verify says ",
                                     verified.exit_code));
      }
    }
    const Trained resumed = Train(1, 3, /*resume=*/true);
    check_clean("--resume", resumed.run);
    if (said_good(resumed.run) && resumed.hashes != right_) {
      wrong.push_back(
          absl::StrCat("--resume ends with 0 and other hashes; verify says ", verified.exit_code));
    }
    if (verified.exit_code == 0 && resumed.run.exit_code != 0) {
      wrong.push_back(absl::StrCat("verify says good, --resume: ", LastLine(resumed.run.out)));
    }
    ++ends_[{verified.exit_code == 0, resumed.run.exit_code == 0}];
    if (!wrong.empty() && keep != nullptr) {
      const std::string to = absl::StrCat(keep, "/", kind_.store, kind_.ranks, "-", trial);
      fs::remove_all(to);
      ExpectRan(RunLimited({.arguments = {"cp", "-a", top_ + "/damaged", to}}));
    }
    return wrong;
  }

  // How often verify said good, and training went on.
  int64_t ended(bool good, bool resumed) const {
    const auto found = ends_.find({good, resumed});
    return found == ends_.end() ? 0 : found->second;
  }

 private:
  using Hashes = std::pair<std::string, std::string>;
  struct Trained {
    ProgramResult run;
    Hashes hashes;
  };
  struct Exported {
    ProgramResult run;
    std::string tables;
  };

  // A program that may crash, eat all memory or never end.
  static ProgramResult RunLimited(test::Program program) {
    program.joined = true;
    program.timeout_seconds = kSecondsMax;
    program.may_time_out = true;
    program.address_space_bytes = kAddressSpaceBytes;
    return RunProgram(program);
  }
  ProgramResult Hotrow(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), HOTROW_BINARY);
    return RunLimited({.arguments = arguments});
  }
  static void ExpectRan(const ProgramResult& run) { EXPECT_EQ(run.exit_code, 0) << run; }

  std::string report() const { return top_ + "/report.json"; }

  std::vector<std::string> Dlrm(int seed, int epochs) const {
    std::vector<std::string> out = {
        HOTROW_DLRM_BINARY,
        "--data=synthetic:tables=2,rows=300,dense=2,zipf=0.8,samples=1000,valid=60,test=60",
        "--embedding_dim=4",
        "--dense_arch_layer_sizes=8-4",
        "--over_arch_layer_sizes=8-1",
        "--batch_size=50",
        "--threads=1",
        absl::StrCat("--seed=", seed),
        absl::StrCat("--epochs=", epochs),
        "--report=" + report()};
    return out;
  }

  Trained RunDlrm(const std::vector<std::string>& command, int ranks) const {
    fs::remove(report());
    test::Program program = {.arguments = command};
#ifdef HOTROW_MPIEXEC
    if (ranks > 1) program = test::Mpirun(ranks, /*recovery=*/false, command);
#endif
    Trained out = {RunLimited(program), {}};
    if (out.run.exit_code != 0) return out;
    const nlohmann::json json = nlohmann::json::parse(BytesOf(report()), nullptr, false);
    if (json.is_object()) {
      out.hashes = {json.value("tables_hash", ""), json.value("dense_hash", "")};
    }
    return out;
  }

  Trained Train(int seed, int epochs, bool resume) const {
    std::vector<std::string> command = Dlrm(seed, epochs);
    if (kind_.store != "memory") {
      command.insert(command.end(),
                     {"--store=" + kind_.store, absl::StrCat("--store_path=", run_, "/store"),
                      "--store_bytes=16MiB",
                      absl::StrCat("--disk_bytes=", kind_.store == "ssd" ? "8MiB" : "64MiB")});
    }
    command.insert(command.end(),
                   {"--cache_bytes=min", absl::StrCat("--checkpoint_dir=", run_, "/ck"),
                    "--checkpoint_every=7"});
    if (resume) command.push_back("--resume");
    return RunDlrm(command, kind_.ranks);
  }

  // The first steps of a separate training run, in memory.
  Trained StartFrom(const std::string& checkpoint) const {
    std::vector<std::string> command = Dlrm(1, 1);
    command.insert(command.end(), {"--init_from=" + checkpoint, "--limit_train_batches=2"});
    return RunDlrm(command, 1);
  }

  Exported Export() const {
    const std::string to = top_ + "/export";
    fs::remove_all(to);
    Exported out = {Hotrow({"export", run_ + "/ck", to}), ""};
    if (out.run.exit_code != 0) return out;
    const nlohmann::json json =
        nlohmann::json::parse(BytesOf(to + "/manifest.json"), nullptr, false);
    if (!json.is_object()) return out;
    for (const auto& table : json["tables"]) {
      absl::StrAppend(&out.tables, table.value("rows", 0), " ", table.value("hash", ""), "\n");
    }
    absl::StrAppend(&out.tables, json["dense"].value("crc32c", ""));
    return out;
  }

  static void ExpectGood(const Trained& trained) {
    EXPECT_EQ(trained.run.exit_code, 0) << trained.run;
    EXPECT_NE(trained.hashes.first, "");
  }

  void Make(const std::string& name, int seed, int epochs) {
    fs::remove_all(run_);
    fs::create_directories(run_);
    ExpectGood(Train(seed, epochs, /*resume=*/false));
    Keep(name);
  }
  void Keep(const std::string& name) {
    fs::remove_all(top_ + "/" + name);
    fs::rename(run_, top_ + "/" + name);
  }
  void Begin() {
    fs::remove_all(run_);
    CopyTree(top_ + "/base", run_);
  }

  static std::string LastLine(const std::string& text) {
    const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipWhitespace());
    // mpirun says much itself after what a rank says.
    for (const std::string& line : lines) {
      if (absl::StartsWith(line, "dlrm:") || absl::StartsWith(line, "hotrow")) return line;
    }
    return lines.empty() ? "" : lines.back();
  }

  const Kind kind_;
  const std::string top_;
  const std::string run_;
  Hashes right_;
  std::set<Hashes> started_from_;
  std::set<std::string> exported_;
  std::map<std::pair<bool, bool>, int64_t> ends_;
};

// The numbers [first, last) of the trials to run.
std::pair<uint64_t, uint64_t> TrialsToRun(uint64_t trials) {
  const char* const text = std::getenv("HOTROW_DAMAGE_TRIALS");
  if (text == nullptr) return {0, trials};
  const std::vector<std::string> ends = absl::StrSplit(text, '-');
  uint64_t first = 0;
  uint64_t last = 0;
  EXPECT_TRUE(ends.size() <= 2 && absl::SimpleAtoi(ends.back(), &last) &&
              (ends.size() == 1 || absl::SimpleAtoi(ends.front(), &first)))
      << "HOTROW_DAMAGE_TRIALS=" << text << ": expected N or A-B";
  return {first, ends.size() == 1 ? last : last + 1};
}

void RunTrials(const Kind& kind, uint64_t few) {
  const auto [first, last] = TrialsToRun(static_cast<uint64_t>(
      test::SlowRuns(400, static_cast<int>(test::ForSanitizer(few, few / 4 + 1)))));
  Trials trials(kind);
  trials.Prepare();
  if (testing::Test::HasFailure()) return;
  for (const uint64_t seed : test::Seeds(1)) {
    int64_t failed = 0;
    for (uint64_t trial = first; trial < last; ++trial) {
      std::string damage;
      const std::vector<std::string> wrong = trials.Run(seed, trial, &damage);
      failed += !wrong.empty();
      for (const std::string& what : wrong) {
        ADD_FAILURE() << kind.store << ", " << kind.ranks << " ranks, HOTROW_TEST_SEED=" << seed
                      << " HOTROW_DAMAGE_TRIALS=" << trial << "-" << trial << ": " << damage << ": "
                      << what;
      }
    }
    std::printf(
        "%lld trials, %lld failed; verified and resumed %lld, damaged and resumed %lld, damaged "
        "and refused %lld\n",
        static_cast<long long>(last - first), static_cast<long long>(failed),
        static_cast<long long>(trials.ended(true, true)),
        static_cast<long long>(trials.ended(false, true)),
        static_cast<long long>(trials.ended(false, false)));
  }
}

TEST(DamageTrialsTest, InMemory) { RunTrials({"memory"}, 6); }
TEST(DamageTrialsTest, OnAnSsd) { RunTrials({"ssd"}, 6); }
TEST(DamageTrialsTest, OnRocksDb) {
#if HOTROW_HAVE_ROCKSDB
  RunTrials({"rocksdb"}, 4);
#else
  GTEST_SKIP() << "this build has no RocksDB";
#endif
}
#ifdef HOTROW_MPIEXEC
TEST(DamageTrialsTest, InMemoryOfTwoRanks) {
  if (!test::RunsSlowTests()) GTEST_SKIP() << "HOTROW_SLOW_TESTS is not set";
  RunTrials({"memory", 2}, 2);
}
TEST(DamageTrialsTest, OnSsdsOfTwoRanks) { RunTrials({"ssd", 2}, 2); }
#endif

}  // namespace
}  // namespace hotrow
