#include "tools/serve/score_request.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "models/data/table_schema_text.h"
#include "models/json/quote.h"

namespace hotrow {
namespace {

constexpr char kLengths[] = ":lengths";  // behind a feature's name
constexpr char kUser[] = ":user";        // behind the name of the dense tensor
constexpr char kUserColumns[] = ":user_columns";

template <typename... Parts>
absl::Status Wrong(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

bool IsInteger(TensorType type) {
  return type == TensorType::kInt32 || type == TensorType::kInt64 || type == TensorType::kUint64;
}

// Takes tensors by name, and remembers which were asked for.
class Tensors {
 public:
  explicit Tensors(std::vector<InputTensor>* tensors) {
    for (InputTensor& tensor : *tensors) by_name_[tensor.name] = &tensor;
  }
  // Null: there is none.
  InputTensor* Take(const std::string& name) {
    const auto at = by_name_.find(name);
    if (at == by_name_.end()) return nullptr;
    InputTensor* const tensor = at->second;
    by_name_.erase(at);
    return tensor;
  }
  // An error about what nobody took, in the order of the request.
  absl::Status CheckAllTaken(const std::vector<InputTensor>& tensors,
                             const ModelSignature& signature) const {
    for (const InputTensor& tensor : tensors) {
      if (!by_name_.contains(tensor.name)) continue;
      return Wrong("tensor ", QuoteForMessage(tensor.name),
                   ": the model has no such input; it has ",
                   signature.num_dense > 0 ? absl::StrCat(signature.dense_name, ", ") : "",
                   absl::StrJoin(signature.features.begin(),
                                 signature.features.begin() +
                                     std::min<std::ptrdiff_t>(std::ssize(signature.features), 20),
                                 ", "),
                   signature.features.size() > 20 ? ", ..." : "",
                   signature.texts.has_value() ? absl::StrCat(", or ", signature.lines_name) : "");
    }
    return absl::OkStatus();
  }

 private:
  std::unordered_map<std::string_view, InputTensor*> by_name_;
};

absl::Status CheckType(const InputTensor& tensor, bool fits, std::string_view expected) {
  if (fits) return absl::OkStatus();
  return Wrong("tensor ", QuoteForMessage(tensor.name), ": datatype ",
               std::string(TensorTypeName(tensor.type)), ", expected ", std::string(expected));
}

absl::Status CheckSamples(const InputTensor& tensor, int64_t samples, int64_t samples_max) {
  if (samples <= samples_max) return absl::OkStatus();
  return Wrong("tensor ", QuoteForMessage(tensor.name), ": shape ", ShapeText(tensor.shape),
               " has ", samples, " samples; this server takes at most ", samples_max,
               " in a request");
}

// A negative key of 32 bits is two keys (embedding/jagged_batch.h), so it is none.
absl::Status CheckNarrowKeys(const InputTensor& tensor) {
  if (tensor.type != TensorType::kInt32) return absl::OkStatus();
  const auto bad = std::ranges::find_if(tensor.integers,
                                        [](uint64_t key) { return static_cast<int64_t>(key) < 0; });
  if (bad == tensor.integers.end()) return absl::OkStatus();
  return Wrong("tensor ", QuoteForMessage(tensor.name), ", position ",
               PositionText(bad - tensor.integers.begin(), tensor.shape), ": ",
               static_cast<int64_t>(*bad),
               ": keys of INT32 must not be negative; give it as INT64, or where the model was "
               "trained on its 32 bits without sign (criteo-npy) as UINT64, ",
               static_cast<uint32_t>(*bad));
}

// A feature of the request: its values, and the lengths of its bags where they are not all equal.
struct Feature {
  InputTensor* values = nullptr;
  InputTensor* lengths = nullptr;
  int64_t batch_size = 0;
  int64_t hotness = 1;            // where there are no lengths
  std::vector<int64_t> of_texts;  // the lengths of bags that were texts, instead

  int64_t LengthOf(int64_t sample) const {
    return !of_texts.empty() ? of_texts[static_cast<size_t>(sample)]
           : lengths == nullptr
               ? hotness
               : static_cast<int64_t>(lengths->integers[static_cast<size_t>(sample)]);
  }
};

absl::StatusOr<Feature> TakeFeature(const std::string& name, bool takes_texts, Tensors* tensors,
                                    int64_t samples_max) {
  Feature out = {.values = tensors->Take(name), .lengths = tensors->Take(name + kLengths)};
  if (out.values == nullptr) {
    return Wrong("tensor ", QuoteForMessage(name), ": it is missing",
                 out.lengths == nullptr ? "; a request gives each feature of the model"
                                        : ", and only its lengths are there");
  }
  const std::vector<int64_t>& shape = out.values->shape;
  const bool texts = out.values->type == TensorType::kBytes && takes_texts;
  HOTROW_RETURN_IF_ERROR(CheckType(
      *out.values, IsInteger(out.values->type) || texts,
      takes_texts ? "INT64, UINT64, INT32 or BYTES"
                  : "INT64, UINT64 or INT32; the model has no schema, which makes keys of texts"));
  HOTROW_RETURN_IF_ERROR(CheckNarrowKeys(*out.values));
  if (out.lengths == nullptr) {
    if (shape.size() > 2) {
      return Wrong("tensor ", QuoteForMessage(name), ": shape ", ShapeText(shape),
                   ", expected [samples], [samples, keys of each], or [keys] beside ",
                   QuoteForMessage(name + kLengths));
    }
    out.batch_size = shape[0];
    out.hotness = shape.size() == 2 ? shape[1] : 1;
    HOTROW_RETURN_IF_ERROR(CheckSamples(*out.values, out.batch_size, samples_max));
    return out;
  }
  const InputTensor& lengths = *out.lengths;
  HOTROW_RETURN_IF_ERROR(CheckType(lengths, IsInteger(lengths.type), "INT64, UINT64 or INT32"));
  if (lengths.shape.size() != 1) {
    return Wrong("tensor ", QuoteForMessage(lengths.name), ": shape ", ShapeText(lengths.shape),
                 ", expected [samples]");
  }
  if (shape.size() != 1) {
    return Wrong("tensor ", QuoteForMessage(name), ": shape ", ShapeText(shape), " beside ",
                 QuoteForMessage(lengths.name), ", expected [keys]");
  }
  out.batch_size = lengths.shape[0];
  HOTROW_RETURN_IF_ERROR(CheckSamples(lengths, out.batch_size, samples_max));
  const auto keys = static_cast<uint64_t>(shape[0]);
  uint64_t sum = 0;
  for (size_t i = 0; i < lengths.integers.size(); ++i) {
    // One that is larger than what is left, negative ones included, ends it; so nothing overflows.
    if (lengths.integers[i] > keys - sum) {
      return Wrong("tensor ", QuoteForMessage(lengths.name), ", position [", i, "]: ",
                   lengths.type == TensorType::kUint64
                       ? absl::StrCat(lengths.integers[i])
                       : absl::StrCat(static_cast<int64_t>(lengths.integers[i])),
                   ", but ", keys - sum, " keys are left of ", QuoteForMessage(name));
    }
    sum += lengths.integers[i];
  }
  if (sum != keys) {
    return Wrong("tensor ", QuoteForMessage(lengths.name), ": lengths with the sum ", sum, ", but ",
                 QuoteForMessage(name), " has ", keys, " keys");
  }
  return out;
}

// Puts keys in the place of the texts of the signature's f-th feature.
absl::Status ReadTexts(const RowParser& parser, size_t f, Feature* feature) {
  InputTensor& tensor = *feature->values;
  std::span<const std::string> rest(tensor.texts);
  std::vector<int64_t> lengths;
  for (int64_t sample = 0; sample < feature->batch_size; ++sample) {
    const auto fields = rest.first(static_cast<size_t>(feature->LengthOf(sample)));
    const size_t begin = tensor.integers.size();
    size_t read = 0;
    const absl::Status status =
        parser.ParseKeys(static_cast<int32_t>(f), fields, &tensor.integers, &read);
    if (!status.ok()) {
      const auto position = static_cast<int64_t>(tensor.texts.size() - rest.size() + read);
      return Wrong("tensor ", QuoteForMessage(tensor.name), ", position ",
                   PositionText(position, tensor.shape), ": ", std::string(status.message()));
    }
    lengths.push_back(static_cast<int64_t>(tensor.integers.size() - begin));
    rest = rest.subspan(fields.size());
  }
  feature->of_texts = std::move(lengths);
  return absl::OkStatus();
}

void AppendBags(const Feature& feature, KeyBags* bags) {
  bags->keys.insert(bags->keys.end(), feature.values->integers.begin(),
                    feature.values->integers.end());
  int64_t end = bags->offsets.back();
  for (int64_t sample = 0; sample < feature.batch_size; ++sample) {
    end += feature.LengthOf(sample);
    bags->offsets.push_back(end);
  }
}

absl::StatusOr<ScoreRequest> LinesRequest(InputTensor* lines, const ModelSignature& signature,
                                          int64_t samples_max) {
  if (!signature.texts.has_value()) {
    return Wrong("tensor ", QuoteForMessage(lines->name),
                 ": the model has no schema of lines; give its features as keys");
  }
  HOTROW_RETURN_IF_ERROR(CheckType(*lines, lines->type == TensorType::kBytes, "BYTES"));
  const std::vector<int64_t>& shape = lines->shape;
  if (shape.size() > 2 || (shape.size() == 2 && shape[1] != 1)) {
    return Wrong("tensor ", QuoteForMessage(lines->name), ": shape ", ShapeText(shape),
                 ", expected [lines] or [lines, 1]");
  }
  HOTROW_RETURN_IF_ERROR(CheckSamples(*lines, shape[0], samples_max));
  return ScoreRequest{
      .kind = ScoreKind::kLines, .num_samples = shape[0], .lines = std::move(lines->texts)};
}

// The dense features of a request, as far as they are there.
struct Dense {
  InputTensor* all = nullptr;   // [samples, columns]
  InputTensor* user = nullptr;  // [1, columns of the user]
  std::vector<int32_t> user_columns;
};

absl::Status CheckDenseShape(const InputTensor& tensor, int64_t columns) {
  const bool floats = tensor.type == TensorType::kFp32 || tensor.type == TensorType::kFp16;
  HOTROW_RETURN_IF_ERROR(CheckType(tensor, floats, "FP32 or FP16"));
  if (tensor.shape.size() == 2 && tensor.shape[1] == columns) return absl::OkStatus();
  return Wrong("tensor ", QuoteForMessage(tensor.name), ": shape ", ShapeText(tensor.shape),
               ", expected [samples, ", columns, "]");
}

absl::StatusOr<Dense> TakeDense(const ModelSignature& signature, Tensors* tensors,
                                int64_t samples_max) {
  Dense out = {.all = tensors->Take(signature.dense_name),
               .user = tensors->Take(signature.dense_name + kUser)};
  InputTensor* const columns = tensors->Take(signature.dense_name + kUserColumns);
  if ((out.user == nullptr) != (columns == nullptr)) {
    return Wrong("tensors ", QuoteForMessage(signature.dense_name + kUser), " and ",
                 QuoteForMessage(signature.dense_name + kUserColumns),
                 ": one is there without the other");
  }
  if (columns != nullptr) {
    HOTROW_RETURN_IF_ERROR(CheckType(*columns, IsInteger(columns->type), "INT64, UINT64 or INT32"));
    if (columns->shape.size() != 1) {
      return Wrong("tensor ", QuoteForMessage(columns->name), ": shape ", ShapeText(columns->shape),
                   ", expected [columns]");
    }
    int64_t before = -1;
    for (size_t i = 0; i < columns->integers.size(); ++i) {
      const auto column = static_cast<int64_t>(columns->integers[i]);
      if (column <= before || column >= signature.num_dense) {
        return Wrong("tensor ", QuoteForMessage(columns->name), ", position [", i, "]: ", column,
                     ", expected columns that ascend, below ", signature.num_dense);
      }
      before = column;
      out.user_columns.push_back(static_cast<int32_t>(column));
    }
    HOTROW_RETURN_IF_ERROR(CheckDenseShape(*out.user, std::ssize(out.user_columns)));
    if (out.user->shape[0] != 1) {
      return Wrong("tensor ", QuoteForMessage(out.user->name), ": shape ",
                   ShapeText(out.user->shape), ", expected one sample");
    }
  }
  const int64_t left = signature.num_dense - std::ssize(out.user_columns);
  if (out.all != nullptr) {
    HOTROW_RETURN_IF_ERROR(CheckDenseShape(*out.all, left));
    HOTROW_RETURN_IF_ERROR(CheckSamples(*out.all, out.all->shape[0], samples_max));
  } else if (left > 0) {
    return Wrong("tensor ", QuoteForMessage(signature.dense_name),
                 ": it is missing; expected FP32 or FP16 of shape [samples, ", left, "]");
  }
  return out;
}

}  // namespace

absl::StatusOr<TextKeys> TextKeys::Of(const TableSchema& schema) {
  TableSchema rules = schema;
  // What texts of features do not depend on, such as the name of a day's data.
  rules.name.clear();
  rules.labels.clear();
  rules.dense.clear();
  rules.time.reset();
  TextKeys out;
  out.rules_ = TableSchemaText(rules);
  out.schema_ = std::make_shared<const TableSchema>(std::move(rules));
  // Without the vocabulary: the model that scores makes unknown keys of those that it does not
  // have.
  HOTROW_ASSIGN_OR_RETURN(RowParser parser,
                          RowParser::Create(*out.schema_, UnlabelledColumns(schema)));
  out.parser_ = std::make_shared<const RowParser>(std::move(parser));
  return out;
}

absl::StatusOr<ModelSignature> ModelSignature::Of(const Scorer& scorer) {
  return Of(scorer.feature_names(), scorer.num_dense(), scorer.num_tasks(), scorer.schema());
}

absl::StatusOr<ModelSignature> ModelSignature::Of(std::vector<std::string> features,
                                                  int32_t num_dense, int32_t num_tasks,
                                                  const TableSchema* schema) {
  ModelSignature out = {
      .features = std::move(features), .num_dense = num_dense, .num_tasks = num_tasks};
  if (schema != nullptr) {
    HOTROW_ASSIGN_OR_RETURN(out.texts, TextKeys::Of(*schema));
  }
  const auto is_feature = [&](const std::string& name) {
    return std::find(out.features.begin(), out.features.end(), name) != out.features.end();
  };
  for (std::string* const name : {&out.dense_name, &out.lines_name}) {
    if (is_feature(*name)) *name = ":" + *name;
  }
  std::vector<std::string> taken = {out.dense_name, out.lines_name, out.dense_name + kUser,
                                    out.dense_name + kUserColumns};
  for (const std::string& feature : out.features) taken.push_back(feature + kLengths);
  for (const std::string& name : taken) {
    if (!is_feature(name)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("the model has a feature ", QuoteForMessage(name),
                     ", a name that requests need for another tensor; train it with another name"));
  }
  return out;
}

absl::StatusOr<ScoreRequest> MakeScoreRequest(InferRequest* request,
                                              const ModelSignature& signature,
                                              int64_t samples_max) {
  Tensors tensors(&request->inputs);
  if (InputTensor* const lines = tensors.Take(signature.lines_name); lines != nullptr) {
    if (request->inputs.size() != 1) {
      return Wrong("tensor ", QuoteForMessage(lines->name),
                   ": lines hold all features, but other tensors are beside them");
    }
    return LinesRequest(lines, signature, samples_max);
  }

  std::vector<Feature> features;
  for (const std::string& name : signature.features) {
    HOTROW_ASSIGN_OR_RETURN(Feature feature,
                            TakeFeature(name, signature.texts.has_value(), &tensors, samples_max));
    if (feature.values->type == TensorType::kBytes) {
      HOTROW_RETURN_IF_ERROR(ReadTexts(signature.texts->parser(), features.size(), &feature));
    }
    features.push_back(std::move(feature));
  }
  HOTROW_ASSIGN_OR_RETURN(const Dense dense, TakeDense(signature, &tensors, samples_max));
  HOTROW_RETURN_IF_ERROR(tensors.CheckAllTaken(request->inputs, signature));

  // The number of samples: what tensors that do not have one sample agree upon.
  int64_t samples = 1;
  const InputTensor* agreed = nullptr;
  const auto agree = [&](const InputTensor& tensor, int64_t own) -> absl::Status {
    if (own == 1) return absl::OkStatus();
    if (agreed != nullptr && own != samples) {
      return Wrong("tensor ", QuoteForMessage(tensor.name), ": ", own, " samples, but ",
                   QuoteForMessage(agreed->name), " has ", samples,
                   "; expected the same number, or 1 for the features of one user");
    }
    samples = own;
    agreed = &tensor;
    return absl::OkStatus();
  };
  for (const Feature& feature : features) {
    HOTROW_RETURN_IF_ERROR(
        agree(feature.lengths != nullptr ? *feature.lengths : *feature.values, feature.batch_size));
  }
  if (dense.all != nullptr) HOTROW_RETURN_IF_ERROR(agree(*dense.all, dense.all->shape[0]));

  ScoreRequest out = {.num_samples = samples};
  const bool any_of_user =
      samples != 1 && (std::any_of(features.begin(), features.end(),
                                   [](const Feature& f) { return f.batch_size == 1; }) ||
                       (dense.all != nullptr && dense.all->shape[0] == 1));
  if (any_of_user || dense.user != nullptr) out.kind = ScoreKind::kCandidates;
  out.bags.batch_size = samples;
  out.user_bags.batch_size = 1;
  for (size_t f = 0; f < features.size(); ++f) {
    // A user with one candidate may be taken for a whole sample: the scores are the same.
    const bool of_user = samples != 1 && features[f].batch_size == 1;
    if (of_user) out.user_features.push_back(static_cast<int32_t>(f));
    AppendBags(features[f], of_user ? &out.user_bags : &out.bags);
  }
  out.user_dense_columns = dense.user_columns;
  if (dense.user != nullptr) out.user_dense = std::move(dense.user->floats);
  if (dense.all != nullptr && dense.all->shape[0] == samples) {
    out.dense = std::move(dense.all->floats);
  } else if (dense.all != nullptr) {  // one sample beside others: all of it is the user's
    if (dense.user != nullptr) {
      return Wrong("tensor ", QuoteForMessage(dense.all->name), ": 1 sample beside ",
                   QuoteForMessage(dense.user->name), ", expected ", samples);
    }
    for (int32_t c = 0; c < signature.num_dense; ++c) out.user_dense_columns.push_back(c);
    out.user_dense = std::move(dense.all->floats);
  }
  return out;
}

// --- Scoring

namespace {

// step: of the version of the model that scored.
absl::Status ScoreTogether(const Scorer& scorer, std::span<ScoreJob* const> jobs, int64_t samples,
                           std::span<float> logits, int64_t* step) {
  const ScoreRequest& first = jobs[0]->request;
  ScoreDeadline deadline = ScoreDeadline::min();
  for (const ScoreJob* const job : jobs) deadline = std::max(deadline, job->deadline);
  switch (first.kind) {
    case ScoreKind::kCandidates:
      return scorer.ScoreCandidates({.num_candidates = first.num_samples,
                                     .user_features = first.user_features,
                                     .user = first.user_bags.view(),
                                     .candidates = first.bags.view(),
                                     .user_dense_columns = first.user_dense_columns,
                                     .user_dense = first.user_dense,
                                     .candidate_dense = first.dense},
                                    logits, step, deadline);
    case ScoreKind::kLines: {
      std::vector<std::string_view> lines;
      lines.reserve(static_cast<size_t>(samples));
      for (const ScoreJob* const job : jobs) {
        lines.insert(lines.end(), job->request.lines.begin(), job->request.lines.end());
      }
      return scorer.ScoreLines(lines, logits, step, deadline);
    }
    case ScoreKind::kSamples:
      break;
  }
  if (jobs.size() == 1) {
    return scorer.Score({.sparse = first.bags.view(), .dense = first.dense}, logits, step,
                        deadline);
  }
  // Feature-major: of each feature the bags of all requests, one after the other.
  const auto num_features = static_cast<int64_t>(scorer.feature_names().size());
  KeyBags bags = {.batch_size = samples};
  size_t keys = 0;
  for (const ScoreJob* const job : jobs) keys += job->request.bags.keys.size();
  bags.keys.reserve(keys);
  bags.offsets.reserve(static_cast<size_t>(num_features * samples + 1));  // <= samples_max
  for (int64_t f = 0; f < num_features; ++f) {
    for (const ScoreJob* const job : jobs) {
      const KeyBags& own = job->request.bags;
      const int64_t* const offsets = own.offsets.data() + f * own.batch_size;
      const int64_t shift = bags.offsets.back() - offsets[0];
      for (int64_t b = 1; b <= own.batch_size; ++b) bags.offsets.push_back(offsets[b] + shift);
      bags.keys.insert(bags.keys.end(), own.keys.begin() + offsets[0],
                       own.keys.begin() + offsets[own.batch_size]);
    }
  }
  std::vector<float> dense;
  dense.reserve(static_cast<size_t>(samples * scorer.num_dense()));  // <= samples_max
  for (const ScoreJob* const job : jobs) {
    dense.insert(dense.end(), job->request.dense.begin(), job->request.dense.end());
  }
  return scorer.Score({.sparse = bags.view(), .dense = dense}, logits, step, deadline);
}

}  // namespace

void ScoreJobs(const Scorer& scorer, const ModelSignature& signature,
               std::span<ScoreJob* const> jobs) {
  std::vector<ScoreJob*> fitting;
  int64_t samples = 0;
  for (ScoreJob* const job : jobs) {
    job->step = scorer.step();
    if (job->signature.get() != &signature && *job->signature != signature) {
      job->status = absl::AbortedError(
          "the model was replaced by one with other inputs while the request waited; ask for its "
          "metadata and send the request anew");
      continue;
    }
    fitting.push_back(job);
    samples += job->request.num_samples;
  }
  if (fitting.empty()) return;
  const auto num_tasks = static_cast<int64_t>(scorer.num_tasks());
  std::vector<float> logits(static_cast<size_t>(samples * num_tasks));  // <= samples_max
  int64_t step = scorer.step();
  const absl::Status status = ScoreTogether(scorer, fitting, samples, logits, &step);
  for (ScoreJob* const job : fitting) job->step = step;  // a delta may have come meanwhile
  if (fitting.size() == 1) {
    fitting[0]->status = status;
    fitting[0]->batch_samples = samples;
    fitting[0]->logits = std::move(logits);
    return;
  }
  if (!status.ok()) {
    for (ScoreJob* const& job : fitting) ScoreJobs(scorer, signature, std::span(&job, 1));
    return;
  }
  auto next = logits.begin();
  for (ScoreJob* const job : fitting) {
    const auto end = next + job->request.num_samples * num_tasks;
    job->status = absl::OkStatus();
    job->batch_samples = samples;
    job->logits.assign(next, end);
    next = end;
  }
}

}  // namespace hotrow
