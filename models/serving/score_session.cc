#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "models/serving/score_session_impl.h"

namespace hotrow::internal {
namespace {

template <typename Span>
size_t SizeOf(const Span& span) {
  return std::visit([](const auto& s) { return s.size(); }, span);
}

// As keys of 64 bits: where the ids lie, or behind those in *own, which has room for them.
std::span<const uint64_t> AsKeys(const IdSpan& ids, std::vector<uint64_t>* own) {
  if (const auto* const same = std::get_if<std::span<const uint64_t>>(&ids)) return *same;
  if (const auto* const same = std::get_if<std::span<const int64_t>>(&ids)) {
    // A type and its unsigned one may be read as each other.
    return {reinterpret_cast<const uint64_t*>(same->data()), same->size()};
  }
  const size_t begin = own->size();
  for (const int32_t id : std::get<std::span<const int32_t>>(ids)) {
    own->push_back(static_cast<uint64_t>(id));  // none is negative
  }
  return std::span<const uint64_t>(*own).subspan(begin);
}

// The same as offsets of 64 bits, of bags that were found to be good.
std::span<const int64_t> AsOffsets(const BagSpan& offsets, const BagSpan& lengths, size_t bags,
                                   std::vector<int64_t>* own) {
  const auto* const same = std::get_if<std::span<const int64_t>>(&offsets);
  if (same != nullptr && !same->empty()) return *same;
  const size_t begin = own->size();
  own->push_back(0);
  if (SizeOf(offsets) > 0) {
    std::visit([&](const auto& from) { own->insert(own->end(), from.begin() + 1, from.end()); },
               offsets);
  } else {
    std::visit(
        [&](const auto& from) {
          for (const auto length : from) own->push_back(own->back() + length);
        },
        lengths);
  }
  return std::span<const int64_t>(*own).subspan(begin, bags + 1);
}

// Rows of a pass of a feature that is not pooled.
constexpr int64_t kRowsOfSample = 64;  // in the mean, where the model names no most of them
constexpr int64_t kRowsMin = int64_t{1} << 16;
int64_t RowsMax(const ServingFeature& feature, int64_t max_batch_size) {
  return feature.max_hotness > 0 ? max_batch_size * feature.max_hotness
                                 : std::max(max_batch_size * kRowsOfSample, kRowsMin);
}

// Copies of what a caller gives that are worth keeping for the next call.
constexpr size_t kKeptBytes = size_t{1} << 20;
template <typename T>
void TrimVector(std::vector<T>* vector) {
  if (vector->capacity() * sizeof(T) > kKeptBytes) std::vector<T>().swap(*vector);
}

absl::Status CheckTime(ScoreDeadline deadline, int64_t done, int64_t samples) {
  if (deadline == kNoDeadline || std::chrono::steady_clock::now() < deadline) {
    return absl::OkStatus();
  }
  return absl::DeadlineExceededError(
      absl::StrCat("the call's time was over when ", done, " of ", samples, " were scored"));
}

absl::Status CheckLogits(int64_t samples, int32_t num_tasks, std::span<const float> logits) {
  if (std::ssize(logits) == samples * num_tasks) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("logits: room for ", logits.size(),
                                                 " numbers, expected ", samples, " samples x ",
                                                 num_tasks, " tasks"));
}

absl::Status CheckDense(std::string_view name, int64_t samples, int64_t columns,
                        std::span<const float> dense) {
  if (std::ssize(dense) == samples * columns) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(std::string(name), ": ", dense.size(),
                                                 " numbers, expected ", samples, " x ", columns));
}

// The end of a line is no part of it: LF, CR, or both.
std::string_view WithoutLineEnd(std::string_view line) {
  if (line.ends_with('\n')) line.remove_suffix(1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

absl::Status HeaderRefused() {
  return absl::InvalidArgumentError(
      "it has the names of the columns, as the header of a file; leave it out");
}

// Line breaks within a record stand in quotes, where the schema has them.
absl::Status CheckOneRecord(std::string_view line, const TableSchema& schema) {
  bool open = false;
  for (size_t begin = 0;;) {
    const size_t at = line.find('\n', begin);
    if (at == std::string_view::npos) return absl::OkStatus();
    open = schema.quotes == Quotes::kOn &&
           SyntaxOf(schema).OpenAfter(line.substr(begin, at - begin), open);
    if (!open) {
      return absl::InvalidArgumentError(
          absl::StrCat("a line break at byte ", at, "; give each line as one text"));
    }
    begin = at + 1;
  }
}

// Positions below `end` that ascend.
absl::Status CheckPositions(std::string_view name, std::span<const int32_t> positions,
                            int64_t end) {
  int64_t before = -1;
  for (const int32_t position : positions) {
    if (position <= before || position >= end) {
      return absl::InvalidArgumentError(
          absl::StrCat(std::string(name), ": ", position, " behind ", before,
                       "; expected positions that ascend, below ", end));
    }
    before = position;
  }
  return absl::OkStatus();
}

}  // namespace

int64_t ScoreSession::BytesOf(const ScorerOptions& options, const ServingModel& model) {
  int64_t floats = options.max_batch_size * (model.pooled_dim + model.recipe.num_dense);
  for (const ServingFeature& feature : model.features) {
    if (feature.unpooled_index < 0) continue;
    floats += RowsMax(feature, options.max_batch_size) * feature.dim + 2 * options.max_batch_size;
  }
  return floats * static_cast<int64_t>(sizeof(float));
}

absl::StatusOr<std::unique_ptr<ScoreSession>> ScoreSession::Create(const ScorerOptions& options,
                                                                   const ServingModel& model) {
  std::unique_ptr<ScoreSession> out(new ScoreSession(options, model));
  HOTROW_ASSIGN_OR_RETURN(out->dense_, NewDensePart(options, model));
  out->all_features_.resize(model.features.size());
  std::iota(out->all_features_.begin(), out->all_features_.end(), 0);
  // No feature may be pooled.
  out->embeddings_.resize(
      static_cast<size_t>(std::max<int64_t>(options.max_batch_size * model.pooled_dim, 1)));
  out->sequences_.resize(static_cast<size_t>(model.num_unpooled));
  out->sequence_views_.resize(out->sequences_.size());
  if (model.parser.has_value()) out->parser_.emplace(*model.parser);
  if (model.line_columns.size() > 1) {  // the name of one column may be a value as well
    out->header_ = absl::StrJoin(model.line_columns, model.schema->delimiter);
  }
  HOTROW_RETURN_IF_ERROR(model.tables->Prepare(&out->scratch_));
  if (options.create_model != nullptr || model.onnx != nullptr ||
      model.recipe.precision == DensePrecision::kFp32) {
    return out;
  }
  // Codes of the parameters and code of the products are made now, not by the first call.
  for (Sequence& sequence : out->sequences_) {
    sequence.rows.resize(1);
    sequence.offsets.assign(2, 0);
  }
  const std::vector<float> dense(static_cast<size_t>(model.recipe.num_dense) + 1);
  std::vector<float> logits(static_cast<size_t>(out->dense_->num_tasks()));
  HOTROW_RETURN_IF_ERROR(out->Forward(1, dense.data(), logits.data()));
  return out;
}

void ScoreSession::Use(const ModelVersion& version) {
  rows_ = version.rows;
  if (version.dense_number == dense_number_) return;
  std::copy(version.parameters->begin(), version.parameters->end(), dense_->parameters().begin());
  dense_number_ = version.dense_number;
}

absl::Status ScoreSession::Take(const JaggedBatch& batch, std::span<const FeatureBags> bags,
                                std::span<const std::string> names,
                                std::span<const int32_t> features, Keys* keys) const {
  const auto samples = static_cast<size_t>(batch.batch_size);
  keys->own_values.clear();
  keys->own_offsets.clear();
  keys->features.resize(names.size());
  if (!bags.empty()) {
    const FeatureBatch apart = {.batch_size = batch.batch_size, .features = bags};
    HOTROW_RETURN_IF_ERROR(apart.Validate(names));
    // No array moves while others are added.
    size_t lookups = 0;
    for (const FeatureBags& own : bags) lookups += SizeOf(own.values);
    keys->own_values.reserve(lookups);
    keys->own_offsets.reserve(bags.size() * (samples + 1));  // <= offsets that are there
    for (size_t f = 0; f < bags.size(); ++f) {
      keys->features[f] = {
          .values = AsKeys(bags[f].values, &keys->own_values),
          .offsets = AsOffsets(bags[f].offsets, bags[f].lengths, samples, &keys->own_offsets),
          .weights = bags[f].weights};
    }
  } else {
    HOTROW_RETURN_IF_ERROR(batch.Validate(names));
    keys->own_values.reserve(SizeOf(batch.values));
    keys->own_offsets.reserve(names.size() * samples + 1);  // <= offsets that are there
    const std::span<const uint64_t> values = AsKeys(batch.values, &keys->own_values);
    const std::span<const int64_t> offsets =
        AsOffsets(batch.offsets, batch.lengths, names.size() * samples, &keys->own_offsets);
    for (size_t f = 0; f < names.size(); ++f) {
      keys->features[f] = {.values = values,
                           .offsets = offsets.subspan(f * samples, samples + 1),
                           .weights = batch.weights};
    }
  }
  keys->known.resize(names.size());
  for (size_t f = 0; f < features.size(); ++f) {
    HOTROW_RETURN_IF_ERROR(CheckKeys(model_.features[static_cast<size_t>(features[f])],
                                     &keys->features[f], &keys->known[f]));
  }
  return absl::OkStatus();
}

absl::Status ScoreSession::CheckKeys(const ServingFeature& feature, Keys::Feature* keys,
                                     std::vector<uint64_t>* known) const {
  const std::span<const int64_t> offsets = keys->offsets;
  for (size_t b = 0; feature.max_hotness > 0 && b + 1 < offsets.size(); ++b) {
    const int64_t length = offsets[b + 1] - offsets[b];
    if (length <= feature.max_hotness) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "feature \"", feature.name, "\", sample ", b, ": ", length, " values, at most ",
        feature.max_hotness, " (max_hotness in training); leave the others out"));
  }
  if (feature.num_embeddings == 0 && feature.kept == nullptr) return absl::OkStatus();
  const std::span<const uint64_t> values = keys->values.subspan(
      static_cast<size_t>(offsets.front()), static_cast<size_t>(offsets.back() - offsets.front()));
  const auto end = static_cast<uint64_t>(feature.num_embeddings);
  bool all_kept = true;
  for (size_t i = 0; i < values.size(); ++i) {
    const uint64_t key = values[i];
    if (feature.num_embeddings > 0 && key >= end) {
      const auto sample = std::upper_bound(offsets.begin(), offsets.end() - 1,
                                           offsets.front() + static_cast<int64_t>(i)) -
                          offsets.begin() - 1;
      return absl::InvalidArgumentError(absl::StrCat(
          "feature \"", feature.name, "\", sample ", sample, ": key ", key, " is not in [0, ",
          feature.num_embeddings, ") (num_embeddings of its table in training)"));
    }
    all_kept = all_kept && (feature.kept == nullptr || feature.kept->Contains(key));
  }
  if (all_kept) return absl::OkStatus();
  known->assign(values.begin(), values.end());
  for (uint64_t& key : *known) {
    if (!feature.kept->Contains(key)) key = feature.kept->unknown_key();
  }
  keys->values = *known;
  keys->first = offsets.front();
  return absl::OkStatus();
}

absl::Status ScoreSession::AddLookup(const Keys& keys, size_t f, const ServingFeature& feature,
                                     int64_t begin, int64_t end) {
  const Keys::Feature& own = keys.features[f];
  const std::span<const int64_t> offsets =
      own.offsets.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin + 1));
  const auto first = static_cast<size_t>(offsets.front());
  const auto lookups = static_cast<size_t>(offsets.back()) - first;
  ServingLookup lookup = {
      .table = feature.table,
      .pooling = feature.pooling,
      .batch_size = end - begin,
      .keys = own.values.subspan(first - static_cast<size_t>(own.first), lookups),
      .offsets = offsets,
      .weights = own.weights.empty() ? own.weights : own.weights.subspan(first, lookups)};
  if (feature.unpooled_index < 0) {
    lookup.output = {embeddings_.data() + feature.pooled_offset, end - begin, feature.dim,
                     model_.pooled_dim};
  } else {
    const auto most = static_cast<size_t>(RowsMax(feature, max_batch_size_));
    if (lookups > most) {
      return absl::InvalidArgumentError(absl::StrCat(
          "feature \"", feature.name, "\": ", lookups, " values of samples ", begin, " to ",
          end - 1, ", which are scored together; at most ", most, ", send fewer at once"));
    }
    Sequence& sequence = sequences_[static_cast<size_t>(feature.unpooled_index)];
    // One number at least, so that there is an address.
    const auto columns = static_cast<size_t>(feature.dim);
    sequence.rows.resize(std::max<size_t>(lookups * columns, 1));  // <= RowsMax
    sequence.offsets.assign(offsets.begin(), offsets.end());
    sequence.shared = false;
    lookup.output = {sequence.rows.data(), static_cast<int64_t>(lookups), feature.dim};
  }
  lookups_.push_back(lookup);
  return absl::OkStatus();
}

absl::Status ScoreSession::PoolAll() { return model_.tables->Pool(*rows_, lookups_, &scratch_); }

absl::Status ScoreSession::Forward(int64_t batch_size, const float* dense, float* logits) {
  for (size_t s = 0; s < sequences_.size(); ++s) {
    sequence_views_[s] = {.rows = sequences_[s].rows.data(),
                          .offsets = sequences_[s].offsets.data(),
                          .shared = sequences_[s].shared};
  }
  return dense_->Forward({},
                         {.batch_size = batch_size,
                          .dense = dense,
                          .embeddings = embeddings_.data(),
                          .sequences = sequence_views_,
                          .parameters_number = dense_number_ + 1},
                         {logits, static_cast<size_t>(batch_size * dense_->num_tasks())});
}

absl::Status ScoreSession::Score(const ScoreBatch& batch, std::span<float> logits,
                                 ScoreDeadline deadline) {
  const int64_t samples = batch.sparse.batch_size;
  const int64_t num_dense = model_.recipe.num_dense;
  HOTROW_RETURN_IF_ERROR(CheckLogits(samples, dense_->num_tasks(), logits));
  HOTROW_RETURN_IF_ERROR(CheckDense("dense", samples, num_dense, batch.dense));
  HOTROW_RETURN_IF_ERROR(
      Take(batch.sparse, batch.features, model_.feature_names, all_features_, &keys_));
  for (int64_t begin = 0; begin < samples; begin += max_batch_size_) {
    HOTROW_RETURN_IF_ERROR(CheckTime(deadline, begin, samples));
    const int64_t end = std::min(samples, begin + max_batch_size_);
    lookups_.clear();
    for (size_t f = 0; f < model_.features.size(); ++f) {
      HOTROW_RETURN_IF_ERROR(AddLookup(keys_, f, model_.features[f], begin, end));
    }
    HOTROW_RETURN_IF_ERROR(PoolAll());
    HOTROW_RETURN_IF_ERROR(Forward(end - begin, batch.dense.data() + begin * num_dense,
                                   logits.data() + begin * dense_->num_tasks()));
  }
  return absl::OkStatus();
}

absl::Status ScoreSession::AddCandidates(int64_t begin, int64_t end) {
  for (size_t c = 0; c < candidate_features_.size(); ++c) {
    const ServingFeature& feature = model_.features[static_cast<size_t>(candidate_features_[c])];
    HOTROW_RETURN_IF_ERROR(AddLookup(keys_, c, feature, begin, end));
  }
  return absl::OkStatus();
}

void ScoreSession::ShareUserRows(const ServingFeature& feature, int64_t candidates) {
  if (feature.unpooled_index < 0) {
    const float* const from = embeddings_.data() + feature.pooled_offset;
    for (int64_t c = 1; c < candidates; ++c) {
      std::copy_n(from, feature.dim,
                  embeddings_.data() + c * model_.pooled_dim + feature.pooled_offset);
    }
    return;
  }
  Sequence& sequence = sequences_[static_cast<size_t>(feature.unpooled_index)];
  const int64_t length = sequence.offsets[1] - sequence.offsets[0];
  sequence.offsets.resize(static_cast<size_t>(candidates) + 1);
  for (int64_t c = 0; c <= candidates; ++c) {
    sequence.offsets[static_cast<size_t>(c)] = c * length;
  }
  sequence.shared = dense_->reads_shared_rows();
  if (sequence.shared || length == 0) return;
  const int64_t floats = length * feature.dim;
  sequence.rows.resize(static_cast<size_t>(candidates * floats));  // <= RowsMax
  for (int64_t c = 1; c < candidates; ++c) {
    std::copy_n(sequence.rows.data(), floats, sequence.rows.data() + c * floats);
  }
}

absl::Status ScoreSession::ScoreCandidates(const CandidateBatch& batch, std::span<float> logits,
                                           ScoreDeadline deadline) {
  const int64_t candidates = batch.num_candidates;
  const int64_t num_dense = model_.recipe.num_dense;
  const auto num_features = static_cast<int64_t>(model_.features.size());
  HOTROW_RETURN_IF_ERROR(CheckPositions("user_features", batch.user_features, num_features));
  HOTROW_RETURN_IF_ERROR(CheckPositions("user_dense_columns", batch.user_dense_columns, num_dense));
  if (batch.user.batch_size != 1 || batch.candidates.batch_size != candidates) {
    return absl::InvalidArgumentError(
        absl::StrCat("a user of ", batch.user.batch_size, " samples and candidates of ",
                     batch.candidates.batch_size, "; expected 1 and num_candidates, ", candidates));
  }
  const auto user_columns = std::ssize(batch.user_dense_columns);
  HOTROW_RETURN_IF_ERROR(CheckLogits(candidates, dense_->num_tasks(), logits));
  HOTROW_RETURN_IF_ERROR(CheckDense("user_dense", 1, user_columns, batch.user_dense));
  HOTROW_RETURN_IF_ERROR(
      CheckDense("candidate_dense", candidates, num_dense - user_columns, batch.candidate_dense));
  user_names_.clear();
  candidate_names_.clear();
  candidate_features_.clear();
  for (int32_t f = 0; f < num_features; ++f) {
    const std::string& name = model_.feature_names[static_cast<size_t>(f)];
    if (std::ranges::binary_search(batch.user_features, f)) {
      user_names_.push_back(name);
    } else {
      candidate_names_.push_back(name);
      candidate_features_.push_back(f);
    }
  }
  HOTROW_RETURN_IF_ERROR(
      Take(batch.user, batch.user_bags, user_names_, batch.user_features, &user_keys_));
  HOTROW_RETURN_IF_ERROR(
      Take(batch.candidates, batch.candidate_bags, candidate_names_, candidate_features_, &keys_));
  if (candidates == 0) return absl::OkStatus();

  const int64_t rows = std::min(candidates, max_batch_size_);
  // The user's part, once, together with the first candidates: as that of the first, then of all.
  lookups_.clear();
  for (size_t u = 0; u < batch.user_features.size(); ++u) {
    const ServingFeature& feature = model_.features[static_cast<size_t>(batch.user_features[u])];
    HOTROW_RETURN_IF_ERROR(AddLookup(user_keys_, u, feature, 0, 1));
    const int64_t length = user_keys_.features[u].offsets[1] - user_keys_.features[u].offsets[0];
    if (feature.unpooled_index < 0 || dense_->reads_shared_rows() ||
        length * rows <= RowsMax(feature, max_batch_size_)) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("feature \"", feature.name, "\" of the user: ", length, " values for ", rows,
                     " candidates, which are scored together; send fewer at once"));
  }
  HOTROW_RETURN_IF_ERROR(AddCandidates(0, rows));
  HOTROW_RETURN_IF_ERROR(PoolAll());
  for (const int32_t f : batch.user_features) {
    ShareUserRows(model_.features[static_cast<size_t>(f)], rows);
  }
  dense_rows_.resize(static_cast<size_t>(rows * num_dense));  // <= max_batch_size_
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t u = 0; u < user_columns; ++u) {
      dense_rows_[static_cast<size_t>(r * num_dense +
                                      batch.user_dense_columns[static_cast<size_t>(u)])] =
          batch.user_dense[static_cast<size_t>(u)];
    }
  }

  const float* next_dense = batch.candidate_dense.data();
  for (int64_t begin = 0; begin < candidates; begin += max_batch_size_) {
    const int64_t end = std::min(candidates, begin + max_batch_size_);
    HOTROW_RETURN_IF_ERROR(CheckTime(deadline, begin, candidates));
    if (begin > 0) {
      lookups_.clear();
      HOTROW_RETURN_IF_ERROR(AddCandidates(begin, end));
      HOTROW_RETURN_IF_ERROR(PoolAll());
    }
    for (int64_t r = 0; r < end - begin && user_columns < num_dense; ++r) {
      float* const row = dense_rows_.data() + r * num_dense;
      size_t user = 0;
      for (int32_t column = 0; column < num_dense; ++column) {
        if (user < batch.user_dense_columns.size() && batch.user_dense_columns[user] == column) {
          ++user;
        } else {
          row[column] = *next_dense++;
        }
      }
    }
    HOTROW_RETURN_IF_ERROR(
        Forward(end - begin, dense_rows_.data(), logits.data() + begin * dense_->num_tasks()));
  }
  return absl::OkStatus();
}

absl::Status ScoreSession::ScoreLines(std::span<const std::string_view> lines,
                                      std::span<float> logits, ScoreDeadline deadline) {
  if (!parser_.has_value()) {
    return absl::FailedPreconditionError(absl::StrCat(
        model_.saved.dir,
        ": it has no schema of lines: its data were no delimited text, or it was saved by a build "
        "that did not keep it; score batches of keys instead"));
  }
  const auto num_features = static_cast<int32_t>(model_.features.size());
  const int32_t num_labels = static_cast<int32_t>(model_.schema->labels.size());
  if (!block_.has_value()) block_.emplace(model_.recipe.num_dense, num_features, num_labels);
  block_->Clear();
  text_bytes_ = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    text_bytes_ += lines[i].size();
    const std::string_view line = WithoutLineEnd(lines[i]);
    bool dropped = false;
    const bool is_header = !header_.empty() && line == header_;
    absl::Status status = is_header ? HeaderRefused() : CheckOneRecord(line, *model_.schema);
    if (status.ok()) status = parser_->Parse(line, &sample_, &dropped);
    if (!status.ok()) {
      return {status.code(), absl::StrCat("line ", i + 1, ": ", std::string(status.message()))};
    }
    block_->Append(sample_);
  }
  refs_.resize(lines.size());
  for (size_t i = 0; i < refs_.size(); ++i) refs_[i] = {&*block_, static_cast<int64_t>(i)};
  GatherSamples(refs_, model_.recipe.num_dense, num_features, &lines_, num_labels);
  return Score({.sparse = lines_.sparse(), .dense = lines_.dense}, logits, deadline);
}

void ScoreSession::Trim() {
  for (Keys* const keys : {&keys_, &user_keys_}) {
    TrimVector(&keys->own_values);
    TrimVector(&keys->own_offsets);
    for (std::vector<uint64_t>& known : keys->known) TrimVector(&known);
  }
  if (text_bytes_ <= kKeptBytes) return;
  text_bytes_ = 0;
  block_.reset();
  sample_ = Sample();
  refs_ = {};
  lines_ = CtrBatch();
}

}  // namespace hotrow::internal
