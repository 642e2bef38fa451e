#include "tests/support/mem_env.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/errno_status.h"
#include "base/math.h"
#include "base/philox.h"
#include "base/status_macros.h"

namespace hotrow::test {

struct MemEnv::Node {
  using Entries = std::map<std::string, std::shared_ptr<Node>>;

  explicit Node(bool directory) : is_directory(directory) {}

  const bool is_directory;
  // What a directory has.
  Entries live_entries;
  Entries durable_entries;
  // What a file has. dirty[p] is set when page p of the live bytes may differ from the durable ones
  // and a Sync would copy it.
  std::vector<std::byte> live;
  std::vector<std::byte> durable;
  std::vector<bool> dirty;
  // Page p takes room on the disk, and how many do.
  std::vector<bool> backed;
  int64_t backed_pages = 0;

  void MarkDirty(int64_t begin, int64_t end) {
    if (begin >= end) return;
    const auto last_page = static_cast<size_t>((end - 1) / kPageBytes);
    if (dirty.size() <= last_page) dirty.resize(last_page + 1);
    for (auto page = static_cast<size_t>(begin / kPageBytes); page <= last_page; ++page) {
      dirty[page] = true;
    }
  }

  void ResizeLive(int64_t size) {
    const auto old_size = static_cast<int64_t>(live.size());
    live.resize(static_cast<size_t>(size));
    TrimBacked();
    // Both a grown and a cut file differ from what is durable between the two sizes.
    MarkDirty(std::min(old_size, size), std::max(old_size, size));
  }

  void CopyPageToDurable(size_t page) {
    const size_t begin = page * static_cast<size_t>(kPageBytes);
    const size_t end =
        std::min({begin + static_cast<size_t>(kPageBytes), live.size(), durable.size()});
    if (begin < end) std::memcpy(durable.data() + begin, live.data() + begin, end - begin);
  }

  void SyncBytes() {
    durable.resize(live.size());
    for (size_t page = 0; page < dirty.size(); ++page) {
      if (dirty[page]) CopyPageToDurable(page);
    }
    dirty.clear();
  }

  void RevertBytes() {
    live = durable;
    dirty.clear();
    backed.assign(static_cast<size_t>(CeilDiv(std::ssize(live), kPageBytes)), true);
    backed_pages = std::ssize(backed);
  }

  // Gives room to the pages of [begin, end), `room` new ones at most; returns where it ran out, or
  // end. Calls for the room only when a page needs it.
  template <typename Room>
  int64_t Back(int64_t begin, int64_t end, const Room& get_room) {
    int64_t room = -1;
    for (int64_t at = begin; at < end; at = (at / kPageBytes + 1) * kPageBytes) {
      const auto page = static_cast<size_t>(at / kPageBytes);
      if (page < backed.size() && backed[page]) continue;
      if (room < 0) room = get_room();
      if (room == 0) return at;
      --room;
      if (backed.size() <= page) backed.resize(page + 1);
      backed[page] = true;
      ++backed_pages;
    }
    return end;
  }

  // Pages behind the end give their room back.
  void TrimBacked() {
    const auto pages = static_cast<size_t>(CeilDiv(std::ssize(live), kPageBytes));
    for (size_t page = pages; page < backed.size(); ++page) backed_pages -= backed[page] ? 1 : 0;
    if (pages < backed.size()) backed.resize(pages);
  }

  // A page that survives brings the file's end with it, if it was written behind the durable one.
  void SyncSomeBytes(RandomStream& random) {
    if (live.size() < durable.size() && random.Below(2) == 0) durable.resize(live.size());
    for (size_t page = 0; page < dirty.size(); ++page) {
      if (!dirty[page] || random.Below(2) == 0) continue;
      const size_t end = std::min((page + 1) * static_cast<size_t>(kPageBytes), live.size());
      if (durable.size() < end) durable.resize(end);
      CopyPageToDurable(page);
    }
    RevertBytes();
  }
};

// All members and methods under `mutex`, which the callers hold.
struct MemEnv::State {
  std::mutex mutex;
  std::shared_ptr<Node> root = std::make_shared<Node>(true);
  int64_t capacity_bytes = INT64_MAX;
  int64_t direct_block_bytes = 512;
  int64_t boots = 0;  // power losses so far; a file opened in an earlier life is dead

  static std::vector<std::string> Split(const std::string& path) {
    std::vector<std::string> names;
    for (size_t begin = 0; begin <= path.size();) {
      const size_t end = std::min(path.find('/', begin), path.size());
      const std::string name = path.substr(begin, end - begin);
      if (name == "..") {
        if (!names.empty()) names.pop_back();
      } else if (!name.empty() && name != ".") {
        names.push_back(name);
      }
      begin = end + 1;
    }
    return names;
  }

  // The node of the first `count` names; null with `error_number` set when there is none.
  std::shared_ptr<Node> Walk(const std::vector<std::string>& names, size_t count,
                             int& error_number) const {
    std::shared_ptr<Node> node = root;
    for (size_t i = 0; i < count; ++i) {
      error_number = ENOTDIR;
      if (!node->is_directory) return nullptr;
      error_number = ENOENT;
      const auto it = node->live_entries.find(names[i]);
      if (it == node->live_entries.end()) return nullptr;
      node = it->second;
    }
    error_number = 0;
    return node;
  }

  // The directory that holds the last name, and that name.
  struct Place {
    std::shared_ptr<Node> parent;
    std::string name;
    std::shared_ptr<Node> node;  // null when the name is free
  };
  absl::StatusOr<Place> Find(const std::string& path, const std::string& what) const {
    const std::vector<std::string> names = Split(path);
    if (path.empty()) return ErrnoToStatus(ENOENT, what);
    if (names.empty()) return ErrnoToStatus(EBUSY, what);  // the root has no place
    int error_number = 0;
    Place place{Walk(names, names.size() - 1, error_number), names.back(), nullptr};
    if (place.parent == nullptr) return ErrnoToStatus(error_number, what);
    if (!place.parent->is_directory) return ErrnoToStatus(ENOTDIR, what);
    const auto it = place.parent->live_entries.find(place.name);
    if (it != place.parent->live_entries.end()) place.node = it->second;
    return place;
  }

  absl::StatusOr<std::shared_ptr<Node>> FindDirectory(const std::string& path,
                                                      const std::string& what) const {
    const std::vector<std::string> names = Split(path);
    int error_number = path.empty() ? ENOENT : 0;
    const std::shared_ptr<Node> node =
        path.empty() ? nullptr : Walk(names, names.size(), error_number);
    if (node == nullptr) return ErrnoToStatus(error_number, what);
    if (!node->is_directory) return ErrnoToStatus(ENOTDIR, what);
    return node;
  }

  // Calls for every node that is reachable through live entries, directories before their contents.
  static void ForEach(const std::shared_ptr<Node>& node, const std::function<void(Node&)>& visit) {
    visit(*node);
    for (const auto& [name, child] : node->live_entries) ForEach(child, visit);
  }

  int64_t FreePages() const {
    if (capacity_bytes == INT64_MAX) return INT64_MAX / kPageBytes;
    int64_t taken = 0;
    ForEach(root, [&](Node& node) { taken += node.backed_pages; });
    return std::max<int64_t>(capacity_bytes / kPageBytes - taken, 0);
  }
};

class MemEnv::MemFile : public File {
 public:
  MemFile(std::shared_ptr<State> state, std::shared_ptr<Node> node, std::string path, bool writable,
          bool direct)
      : state_(std::move(state)),
        node_(std::move(node)),
        path_(std::move(path)),
        writable_(writable),
        block_bytes_(direct ? state_->direct_block_bytes : 1),
        boot_(state_->boots) {}

  absl::StatusOr<int64_t> ReadAt(int64_t offset, std::span<std::byte> bytes) override {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    HOTROW_RETURN_IF_ERROR(Usable("read"));
    HOTROW_RETURN_IF_ERROR(CheckPlace("read", offset, bytes));
    const auto size = static_cast<int64_t>(node_->live.size());
    const int64_t count = std::clamp<int64_t>(size - offset, 0, std::ssize(bytes));
    if (count > 0) std::memcpy(bytes.data(), node_->live.data() + offset, AsSize(count));
    return count;
  }

  absl::StatusOr<int64_t> WriteAt(int64_t offset, std::span<const std::byte> bytes) override {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    HOTROW_RETURN_IF_ERROR(Usable("write"));
    if (!writable_) return ErrnoToStatus(EBADF, At("write", offset));
    HOTROW_RETURN_IF_ERROR(CheckPlace("write", offset, bytes));
    if (bytes.empty()) return 0;
    const int64_t end =
        node_->Back(offset, offset + std::ssize(bytes), [this] { return state_->FreePages(); });
    if (end == offset) return ErrnoToStatus(ENOSPC, At("write", offset));
    if (end > std::ssize(node_->live)) node_->ResizeLive(end);
    std::memcpy(node_->live.data() + offset, bytes.data(), AsSize(end - offset));
    node_->MarkDirty(offset, end);
    return end - offset;
  }

  absl::Status Sync() override {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    HOTROW_RETURN_IF_ERROR(Usable("fdatasync"));
    node_->SyncBytes();
    return absl::OkStatus();
  }

  absl::StatusOr<int64_t> Size() override {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    HOTROW_RETURN_IF_ERROR(Usable("fstat"));
    return std::ssize(node_->live);
  }

  absl::Status Truncate(int64_t size) override {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    HOTROW_RETURN_IF_ERROR(Usable("ftruncate"));
    if (!writable_ || size < 0) return ErrnoToStatus(EINVAL, absl::StrCat("ftruncate ", path_));
    node_->ResizeLive(size);
    return absl::OkStatus();
  }

  absl::Status Allocate(int64_t bytes) override {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    HOTROW_RETURN_IF_ERROR(Usable("allocate"));
    const std::string what = absl::StrCat("allocate ", bytes, " bytes of ", path_);
    if (!writable_) return ErrnoToStatus(EBADF, what);
    if (bytes < 0) return ErrnoToStatus(EINVAL, what);
    const int64_t pages = CeilDiv(bytes, kPageBytes);
    const auto known = node_->backed.begin() + std::min(pages, std::ssize(node_->backed));
    const int64_t missing = pages - std::count(node_->backed.begin(), known, true);
    if (missing > state_->FreePages()) return ErrnoToStatus(ENOSPC, what);
    node_->Back(0, bytes, [missing] { return missing; });
    if (bytes > std::ssize(node_->live)) node_->ResizeLive(bytes);
    return absl::OkStatus();
  }

  absl::Status Close() override {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    HOTROW_RETURN_IF_ERROR(Usable("close"));
    closed_ = true;
    return absl::OkStatus();
  }

  const std::string& path() const override { return path_; }
  int64_t block_bytes() const override { return block_bytes_; }

  void ForgetDirtyPages() {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    node_->dirty.clear();
  }

 private:
  static size_t AsSize(int64_t n) { return static_cast<size_t>(n); }

  std::string At(const char* call, int64_t offset) const {
    return absl::StrCat(call, " ", path_, " at offset ", offset);
  }

  absl::Status CheckPlace(const char* call, int64_t offset,
                          std::span<const std::byte> bytes) const {
    const uint64_t bits =
        static_cast<uint64_t>(offset) | bytes.size() | reinterpret_cast<uintptr_t>(bytes.data());
    if (offset >= 0 && bits % static_cast<uint64_t>(block_bytes_) == 0) return absl::OkStatus();
    return ErrnoToStatus(EINVAL, At(call, offset));
  }

  absl::Status Usable(const char* call) const {
    if (boot_ != state_->boots) {
      return absl::FailedPreconditionError(
          absl::StrCat(call, " ", path_, ": the power was lost while this file was open"));
    }
    if (closed_) return ErrnoToStatus(EBADF, absl::StrCat(call, " ", path_));
    return absl::OkStatus();
  }

  const std::shared_ptr<State> state_;
  const std::shared_ptr<Node> node_;
  const std::string path_;
  const bool writable_;
  const int64_t block_bytes_;
  const int64_t boot_;
  bool closed_ = false;
};

MemEnv::MemEnv() : state_(std::make_shared<State>()) {}
MemEnv::~MemEnv() = default;

absl::StatusOr<std::unique_ptr<File>> MemEnv::Open(const std::string& path, OpenMode mode) {
  return OpenWith(path, mode, false);
}
absl::StatusOr<std::unique_ptr<File>> MemEnv::OpenDirect(const std::string& path, OpenMode mode) {
  return OpenWith(path, mode, true);
}

absl::StatusOr<std::unique_ptr<File>> MemEnv::OpenWith(const std::string& path, OpenMode mode,
                                                       bool direct) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  const std::string what = absl::StrCat("open ", path);
  if (!path.empty() && State::Split(path).empty()) return ErrnoToStatus(EISDIR, what);
  HOTROW_ASSIGN_OR_RETURN(State::Place place, state_->Find(path, what));
  if (place.node == nullptr) {
    if (mode == OpenMode::kRead || mode == OpenMode::kReadWrite) return ErrnoToStatus(ENOENT, what);
    place.node = std::make_shared<Node>(false);
    place.parent->live_entries[place.name] = place.node;
  }
  if (place.node->is_directory) return ErrnoToStatus(EISDIR, what);
  if (mode == OpenMode::kTruncate) place.node->ResizeLive(0);
  return std::make_unique<MemFile>(state_, place.node, path, mode != OpenMode::kRead, direct);
}

absl::Status MemEnv::CreateDirs(const std::string& path) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  if (path.empty()) return ErrnoToStatus(ENOENT, "mkdir ");
  std::shared_ptr<Node> node = state_->root;
  for (const std::string& name : State::Split(path)) {
    std::shared_ptr<Node>& child = node->live_entries[name];
    if (child == nullptr) child = std::make_shared<Node>(true);
    if (!child->is_directory) return ErrnoToStatus(ENOTDIR, absl::StrCat("mkdir ", path));
    node = child;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> MemEnv::ListDir(const std::string& path) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  HOTROW_ASSIGN_OR_RETURN(const std::shared_ptr<Node> node,
                          state_->FindDirectory(path, absl::StrCat("opendir ", path)));
  std::vector<std::string> names;
  for (const auto& [name, child] : node->live_entries) names.push_back(name);
  return names;
}

absl::StatusOr<bool> MemEnv::Exists(const std::string& path) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  if (path.empty()) return false;
  const std::vector<std::string> names = State::Split(path);
  int error_number = 0;
  return state_->Walk(names, names.size(), error_number) != nullptr;
}

absl::Status MemEnv::Rename(const std::string& from, const std::string& to) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  const std::string what = absl::StrCat("rename ", from, " to ", to);
  HOTROW_ASSIGN_OR_RETURN(const State::Place source, state_->Find(from, what));
  HOTROW_ASSIGN_OR_RETURN(const State::Place target, state_->Find(to, what));
  if (source.node == nullptr) return ErrnoToStatus(ENOENT, what);
  if (source.node == target.node) return absl::OkStatus();
  if (source.node->is_directory) {
    bool inside = false;  // a directory cannot become its own child
    State::ForEach(source.node, [&](Node& node) { inside |= &node == target.parent.get(); });
    if (inside) return ErrnoToStatus(EINVAL, what);
  }
  if (target.node != nullptr) {
    if (target.node->is_directory && !source.node->is_directory) return ErrnoToStatus(EISDIR, what);
    if (!target.node->is_directory && source.node->is_directory) {
      return ErrnoToStatus(ENOTDIR, what);
    }
    if (!target.node->live_entries.empty()) return ErrnoToStatus(ENOTEMPTY, what);
  }
  source.parent->live_entries.erase(source.name);
  target.parent->live_entries[target.name] = source.node;
  return absl::OkStatus();
}

absl::Status MemEnv::Remove(const std::string& path) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  const std::string what = absl::StrCat("unlink ", path);
  HOTROW_ASSIGN_OR_RETURN(const State::Place place, state_->Find(path, what));
  if (place.node == nullptr) return ErrnoToStatus(ENOENT, what);
  if (place.node->is_directory) return ErrnoToStatus(EISDIR, what);
  place.parent->live_entries.erase(place.name);
  return absl::OkStatus();
}

absl::Status MemEnv::RemoveDir(const std::string& path) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  const std::string what = absl::StrCat("rmdir ", path);
  HOTROW_ASSIGN_OR_RETURN(const State::Place place, state_->Find(path, what));
  if (place.node == nullptr) return ErrnoToStatus(ENOENT, what);
  if (!place.node->is_directory) return ErrnoToStatus(ENOTDIR, what);
  if (!place.node->live_entries.empty()) return ErrnoToStatus(ENOTEMPTY, what);
  place.parent->live_entries.erase(place.name);
  return absl::OkStatus();
}

absl::Status MemEnv::SyncDir(const std::string& path) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  HOTROW_ASSIGN_OR_RETURN(const std::shared_ptr<Node> node,
                          state_->FindDirectory(path, absl::StrCat("open directory ", path)));
  node->durable_entries = node->live_entries;
  return absl::OkStatus();
}

absl::StatusOr<int64_t> MemEnv::FreeBytes(const std::string& path) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  const std::vector<std::string> names = State::Split(path);
  int error_number = ENOENT;
  if (path.empty() || state_->Walk(names, names.size(), error_number) == nullptr) {
    return ErrnoToStatus(error_number, absl::StrCat("statvfs ", path));
  }
  return state_->FreePages() * kPageBytes;
}

void MemEnv::SetCapacity(int64_t bytes) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->capacity_bytes = bytes;
}

void MemEnv::SetDirectBlockBytes(int64_t bytes) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->direct_block_bytes = bytes;
}

void MemEnv::DropUnsyncedData() {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  ++state_->boots;
  State::ForEach(state_->root, [](Node& node) {
    node.live_entries = node.durable_entries;
    node.RevertBytes();
  });
}

void MemEnv::LosePower(uint64_t seed) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  ++state_->boots;
  RandomStream random(seed, RandomPurpose::kTest);
  const bool keep_directories = random.Below(2) == 0;
  State::ForEach(state_->root, [&](Node& node) {
    if (keep_directories) node.durable_entries = node.live_entries;
    node.live_entries = node.durable_entries;
    node.SyncSomeBytes(random);
  });
}

void MemEnv::ForgetDirtyPages(File& file) { static_cast<MemFile&>(file).ForgetDirtyPages(); }

absl::Status MemEnv::FlipBit(const std::string& path, int64_t bit_offset) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  const std::string what = absl::StrCat("flip a bit of ", path);
  HOTROW_ASSIGN_OR_RETURN(const State::Place place, state_->Find(path, what));
  if (place.node == nullptr) return ErrnoToStatus(ENOENT, what);
  const auto byte = static_cast<size_t>(bit_offset / 8);
  const auto bit = static_cast<std::byte>(1 << (bit_offset % 8));
  if (bit_offset < 0 || byte >= place.node->live.size()) {
    return absl::OutOfRangeError(absl::StrCat(what, ": bit ", bit_offset, " of a file of ",
                                              place.node->live.size(), " bytes"));
  }
  place.node->live[byte] ^= bit;
  if (byte < place.node->durable.size()) place.node->durable[byte] ^= bit;
  return absl::OkStatus();
}

}  // namespace hotrow::test
