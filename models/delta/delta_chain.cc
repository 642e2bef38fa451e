#include "models/delta/delta_chain.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "models/delta/delta_damage_impl.h"
#include "models/saving/blob_files.h"
#include "models/saving/checkpoint.h"
#include "models/saving/partial_dir_impl.h"
#include "models/saving/portable_model.h"
#include "models/saving/store_paths_impl.h"

namespace hotrow {
namespace {

constexpr char kDenseName[] = "dense.safetensors";
constexpr char kDeltaPrefix[] = "delta-";
// How often a chain is read again that is compacted while it is read.
constexpr int kAgainMax = 10;

bool IsUnfinished(const std::string& name) {
  return absl::EndsWith(name, ".hotrow-partial") || absl::EndsWith(name, ".old");
}

std::optional<uint32_t> VocabularyCrc(const SavedModel& model) {
  if (!model.vocabulary.has_value()) return std::nullopt;
  return model.vocabulary->crc;
}

// What differs between the tables of the base and those of a model behind it; empty: nothing. The
// base of a chain without state may have lost its optimizers.
std::string TableDifference(const DeltaChain& chain, const SavedModel& model) {
  const SavedModel& base = chain.base.model;
  if (base.tables.size() != model.tables.size()) {
    return absl::StrCat("it has ", model.tables.size(), " tables, the base has ",
                        base.tables.size());
  }
  const auto same_optimizer = [&](const SavedModel::Table& a, const SavedModel::Table& b) {
    return a.optimizer == b.optimizer ||
           (!chain.manifest.form.state &&
            a.optimizer == SparseOptimizerName(SparseOptimizerKind::kSgd));
  };
  for (size_t i = 0; i < base.tables.size(); ++i) {
    const SavedModel::Table& a = base.tables[i];
    const SavedModel::Table& b = model.tables[i];
    if (a.name == b.name && a.dim == b.dim && same_optimizer(a, b) &&
        a.weights_precision == b.weights_precision && a.score == b.score) {
      continue;
    }
    const auto text = [](const SavedModel::Table& table) {
      return absl::StrCat("\"", table.name, "\" (", table.dim, " columns, ", table.optimizer, ", ",
                          std::string(WeightsPrecisionName(table.weights_precision)),
                          table.score == ScoreRule::kNone
                              ? ""
                              : absl::StrCat(", score ", std::string(ScoreRuleName(table.score))),
                          ")");
    };
    return absl::StrCat("table ", i, " is ", text(b), ", the base has ", text(a));
  }
  if (base.features != model.features) return "its features are not the base's";
  if (base.model != model.model || base.shape != model.shape) {
    return "it is of another model than the base";
  }
  return "";
}

}  // namespace

ChainLink DeltaChain::head() const {
  if (deltas.empty()) {
    return {.sequence = manifest.base_sequence,
            .step = manifest.base_step,
            .digest = manifest.base_link,
            .source = manifest.base_source};
  }
  const DeltaManifest& last = deltas.back();
  return {.sequence = last.sequence,
          .step = last.model.step,
          .digest = last.digest,
          .source = last.source};
}

absl::StatusOr<bool> IsChain(Env& env, const std::string& dir) {
  return env.Exists(absl::StrCat(WithoutEndingSlashes(dir), "/", kChainManifestName));
}

namespace {

// *manifest: what it has read, as far as it came.
absl::StatusOr<DeltaChain> ReadChainOnce(Env& env, const std::string& dir,
                                         ChainManifest* manifest) {
  DeltaChain out;
  out.dir = WithoutEndingSlashes(dir);
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(out.dir));
  if (!exists) {
    return absl::NotFoundError(absl::StrCat(
        out.dir, ": there is no such directory; give a chain of `hotrow export --since`"));
  }
  HOTROW_ASSIGN_OR_RETURN(out.manifest, ReadChainManifest(env, out.dir));
  *manifest = out.manifest;
  const std::string base_manifest = ManifestPath(out.base_dir());
  HOTROW_ASSIGN_OR_RETURN(const bool has_base, env.Exists(base_manifest));
  if (!has_base) return DeltaDamaged(base_manifest, "there is no such file: the base is missing");
  HOTROW_ASSIGN_OR_RETURN(const std::string text,
                          ReadWholeFile(env, base_manifest, kManifestBytesMax));
  if (!(LinkDigest(text) == out.manifest.base_digest)) {
    return DeltaDamaged(base_manifest,
                        absl::StrCat("its digest is ", LinkDigest(text).ToHex(), ", ",
                                     kChainManifestName, " says ", out.manifest.base_digest.ToHex(),
                                     ": the base was changed, or is another one"));
  }
  HOTROW_ASSIGN_OR_RETURN(out.base, ReadPortableManifest(env, out.base_dir(), /*edited=*/false));
  HOTROW_RETURN_IF_ERROR(CheckHasWeights(out.base_dir(), out.base));
  if (out.base.model.step != out.manifest.base_step) {
    return DeltaDamaged(
        base_manifest, absl::StrCat("it is of step ", out.base.model.step, ", ", kChainManifestName,
                                    " says step ", out.manifest.base_step));
  }
  HOTROW_ASSIGN_OR_RETURN(const std::vector<int64_t> sequences,
                          ListDeltas(env, out.dir, out.manifest.base_sequence));
  for (const int64_t sequence : sequences) {
    HOTROW_ASSIGN_OR_RETURN(DeltaManifest delta, ReadDeltaManifest(env, out.delta_dir(sequence)));
    HOTROW_RETURN_IF_ERROR(CheckNextLink(out, out.head(), delta));
    out.deltas.push_back(std::move(delta));
  }
  return out;
}

}  // namespace

bool WasCompacted(Env& env, const std::string& dir, const ChainManifest& manifest) {
  const absl::StatusOr<ChainManifest> now = ReadChainManifest(env, WithoutEndingSlashes(dir));
  return now.ok() && !(now->base_id == manifest.base_id && now->base_dir == manifest.base_dir &&
                       now->base_digest == manifest.base_digest);
}

absl::Status UseChain(Env& env, const std::string& dir,
                      absl::FunctionRef<absl::Status(DeltaChain chain)> use) {
  for (int again = kAgainMax;; --again) {
    ChainManifest manifest;
    absl::StatusOr<DeltaChain> chain = ReadChainOnce(env, dir, &manifest);
    const absl::Status status = chain.ok() ? use(*std::move(chain)) : chain.status();
    if (status.ok() || again == 0 || !WasCompacted(env, dir, manifest)) return status;
  }
}

absl::StatusOr<DeltaChain> ReadChain(Env& env, const std::string& dir) {
  DeltaChain out;
  HOTROW_RETURN_IF_ERROR(UseChain(env, dir, [&](DeltaChain chain) {
    out = std::move(chain);
    return absl::OkStatus();
  }));
  return out;
}

absl::Status CheckNextLink(const DeltaChain& chain, const ChainLink& before,
                           const DeltaManifest& delta) {
  const std::string path = ManifestPath(delta.model.dir);
  const int64_t expected = before.sequence + 1;
  if (!(delta.base_id == chain.manifest.base_id)) {
    return DeltaOfAnotherChain(
        path, absl::StrCat("it is of the chain ", delta.base_id.ToHex(), ", this one is ",
                           chain.manifest.base_id.ToHex()));
  }
  if (delta.sequence != expected) {
    return DeltaDamaged(
        path, absl::StrCat("it is delta ", delta.sequence, " in the place of delta ", expected,
                           ": a delta was copied or renamed"));
  }
  if (!(delta.parent == before.digest)) {
    return DeltaDamaged(path, absl::StrCat("it follows a link of digest ", delta.parent.ToHex(),
                                           ", the one before, ",
                                           before.sequence == chain.manifest.base_sequence
                                               ? chain.base_dir()
                                               : chain.delta_dir(before.sequence),
                                           ", has ", before.digest.ToHex()));
  }
  if (delta.parent_step != before.step || delta.model.step < before.step) {
    return DeltaDamaged(
        path, absl::StrCat("it leads from step ", delta.parent_step, " to step ", delta.model.step,
                           ", the link before is of step ", before.step));
  }
  if (!(delta.form == chain.manifest.form)) {
    return DeltaOfAnotherChain(path,
                               "it has rows of another precision, or state where the chain "
                               "has none");
  }
  if (const std::string wrong = TableDifference(chain, delta.model); !wrong.empty()) {
    return DeltaOfAnotherChain(path, wrong);
  }
  if (delta.vocabulary_crc != VocabularyCrc(chain.base.model)) {
    return DeltaOfAnotherChain(path, "its vocabulary is not the base's");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int64_t>> ListDeltas(Env& env, const std::string& dir,
                                                int64_t sequence) {
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names, env.ListDir(dir));
  std::vector<int64_t> out;
  for (const std::string& name : names) {
    if (!absl::StartsWith(name, kDeltaPrefix) || IsUnfinished(name)) continue;
    const std::optional<int64_t> found = ParseDeltaDirName(name);
    if (!found.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat(dir, "/", name, ": is no name of a delta, such as ", DeltaDirName(1),
                       "; remove it, or give it its name back"));
    }
    if (*found > sequence) out.push_back(*found);
  }
  std::sort(out.begin(), out.end());
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t expected = sequence + 1 + static_cast<int64_t>(i);
    if (out[i] == expected) continue;
    return DeltaDamaged(
        absl::StrCat(dir, "/", DeltaDirName(expected)),
        absl::StrCat("there is no such delta, and the next is ", DeltaDirName(out[i])));
  }
  return out;
}

std::vector<UniqueId> SourceOf(const SavedModel& checkpoint) {
  std::vector<UniqueId> out;
  for (const SavedModel::Part& part : checkpoint.parts) {
    if (!part.identity.known()) return {};
    out.push_back(part.identity);
  }
  return out;
}

absl::StatusOr<bool> MayBeginChain(Env& env, const std::string& dir) {
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(dir));
  if (!exists) return true;
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names, env.ListDir(dir));
  return std::ranges::all_of(names, [](const std::string& name) {
    return absl::StartsWith(name, BaseDirName(0)) || name == "lost+found";  // of a volume
  });
}

absl::StatusOr<DeltaChain> CreateChain(const CreateChainOptions& options) {
  Env& env = options.env != nullptr ? *options.env : PosixEnv();
  const std::string dir = WithoutEndingSlashes(options.dir);
  HOTROW_ASSIGN_OR_RETURN(const bool may_begin, MayBeginChain(env, dir));
  if (!may_begin) HOTROW_RETURN_IF_ERROR(CheckIsFree(env, dir));
  HOTROW_ASSIGN_OR_RETURN(const SavedModel saved, ReadCheckpoint(env, options.checkpoint));
  // A directory that is there, as a mounted volume is, stays; its first file makes it a chain.
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(dir));
  std::unique_ptr<PartialDir> partial;
  if (!exists) {
    HOTROW_ASSIGN_OR_RETURN(partial, PartialDir::Create(env, dir));
  }
  const std::string at = partial != nullptr ? partial->path() : dir;
  ChainManifest manifest;
  manifest.base_id = UniqueId::Random();
  manifest.form = options.form;
  manifest.base_dir = BaseDirName(0);
  manifest.base_step = saved.step;
  manifest.base_source = SourceOf(saved);
  const std::string base_dir = absl::StrCat(at, "/", manifest.base_dir);
  HOTROW_ASSIGN_OR_RETURN(const bool left_behind, env.Exists(base_dir));
  if (left_behind) HOTROW_RETURN_IF_ERROR(RemoveTree(env, base_dir));
  HOTROW_RETURN_IF_ERROR(ExportPortable({.checkpoint = options.checkpoint,
                                         .dir = base_dir,
                                         .shard_bytes = options.shard_bytes,
                                         .memory_bytes = options.memory_bytes,
                                         .store_bytes = options.store_bytes,
                                         .store_option = options.store_option,
                                         .env = &env})
                             .status());
  HOTROW_ASSIGN_OR_RETURN(const std::string text,
                          ReadWholeFile(env, ManifestPath(base_dir), kManifestBytesMax));
  manifest.base_digest = LinkDigest(text);
  manifest.base_link = manifest.base_digest;
  HOTROW_RETURN_IF_ERROR(WriteFileAtomically(env, absl::StrCat(at, "/", kChainManifestName),
                                             ChainManifestText(manifest)));
  if (partial != nullptr) HOTROW_RETURN_IF_ERROR(partial->Commit());
  partial.reset();
  return ReadChain(env, dir);
}

DeltaWriter::DeltaWriter(Env& env) : env_(env) {}
DeltaWriter::~DeltaWriter() = default;

absl::StatusOr<std::unique_ptr<DeltaWriter>> DeltaWriter::Create(Env& env, const DeltaChain& chain,
                                                                 const SavedModel& model) {
  std::unique_ptr<DeltaWriter> out(new DeltaWriter(env));
  const ChainLink head = chain.head();
  std::string wrong = TableDifference(chain, model);
  if (wrong.empty() && VocabularyCrc(model) != VocabularyCrc(chain.base.model)) {
    wrong = "its vocabulary is not the base's";
  }
  if (wrong.empty() && model.step < head.step) {
    wrong = absl::StrCat("it is of step ", model.step, ", the newest delta of step ", head.step);
  }
  if (!wrong.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(chain.dir, ": the model cannot follow: ", wrong, "; begin a new chain"));
  }
  DeltaManifest& manifest = out->manifest_;
  manifest.base_id = chain.manifest.base_id;
  manifest.form = chain.manifest.form;
  manifest.sequence = head.sequence + 1;
  manifest.parent = head.digest;
  manifest.parent_step = head.step;
  manifest.source = SourceOf(model);
  manifest.vocabulary_crc = VocabularyCrc(model);
  HOTROW_ASSIGN_OR_RETURN(out->tables_, DeltaTablesOf(model));
  const std::string path = chain.delta_dir(manifest.sequence);
  HOTROW_RETURN_IF_ERROR(CheckIsFree(env, path));
  HOTROW_ASSIGN_OR_RETURN(out->partial_, PartialDir::Create(env, path));
  return out;
}

const std::string& DeltaWriter::path() const { return partial_->path(); }

DeltaFileId DeltaWriter::file_id(int32_t part, int32_t num_parts) const {
  return {.base = manifest_.base_id,
          .sequence = manifest_.sequence,
          .part = part,
          .num_parts = num_parts};
}

absl::StatusOr<DeltaManifest> DeltaWriter::Commit(SavedModel model, std::vector<DeltaPart> parts,
                                                  const DenseArrays<const float>& dense) {
  const bool lossless = manifest_.form.lossless();
  manifest_.model = std::move(model);
  manifest_.parts = std::move(parts);
  manifest_.model.dir = path();
  if (!lossless) {
    for (SavedModel::Table& table : manifest_.model.tables) table.hash.clear();
  }
  HOTROW_RETURN_IF_ERROR(WriteSavedDense(env_, kDenseName, dense, &manifest_.model));
  HOTROW_RETURN_IF_ERROR(WriteSavedBlobs(env_, &manifest_.model));
  HOTROW_RETURN_IF_ERROR(
      WriteFileAtomically(env_, ManifestPath(path()), SealDeltaManifest(&manifest_)));
  HOTROW_RETURN_IF_ERROR(partial_->Commit());
  return std::move(manifest_);
}

}  // namespace hotrow
