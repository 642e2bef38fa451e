#include "models/data/table_source.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "models/data/file_pattern.h"
#include "models/data/sample_feed.h"
#include "models/data/vocabulary.h"
#include "models/json/quote.h"

namespace hotrow {
namespace {

// The split of sample number `index` of files that hold several.
Split SplitOf(const TableSchema& schema, int64_t index) {
  return schema.split_of[static_cast<size_t>(index % schema.modulo)];
}

// The samples of one split; of files that hold several, those that belong to it.
class TableStream : public SampleStream {
 public:
  TableStream(const TableSchema* schema, const Vocabulary* vocabulary, Split split, Env& env,
              int32_t threads)
      : schema_(schema),
        split_(split),
        feed_(NewSampleFeed(schema,
                            schema->files[schema->modulo > 0 ? 0 : static_cast<size_t>(split)],
                            OpenTextFrom(env), vocabulary, threads)) {}

  absl::Status Read(int64_t max_samples, SampleBlock* block) override {
    while (max_samples > 0) {
      HOTROW_ASSIGN_OR_RETURN(const int64_t n, NextRun(max_samples));
      if (n == 0) break;
      block->Append(parsed_->samples, at_ - n, at_);
      max_samples -= n;
    }
    return absl::OkStatus();
  }
  absl::StatusOr<int64_t> Skip(int64_t n) override {
    int64_t left = n;
    while (left > 0) {
      HOTROW_ASSIGN_OR_RETURN(const int64_t run, NextRun(left));
      if (run == 0) break;
      left -= run;
    }
    return n - left;
  }

 private:
  // Goes on to behind the next samples of the split that follow each other, at most max_samples of
  // them: those before at_. Returns how many, 0 at the end.
  absl::StatusOr<int64_t> NextRun(int64_t max_samples) {
    while (true) {
      if (parsed_ == nullptr || at_ == parsed_->samples.size()) {
        at_ = 0;
        parsed_ = nullptr;
        HOTROW_ASSIGN_OR_RETURN(parsed_, feed_->Next());
        if (parsed_ == nullptr) return 0;
      }
      const int64_t left = parsed_->samples.size() - at_;
      if (schema_->modulo == 0) {
        const int64_t run = std::min(max_samples, left);
        at_ += run;
        return run;
      }
      int64_t run = 0;
      while (run < std::min(max_samples, left) && SplitOf(*schema_, index_ + run) == split_) ++run;
      at_ += std::max<int64_t>(run, 1);  // or past a sample of another split
      index_ += std::max<int64_t>(run, 1);
      if (run > 0) return run;
    }
  }

  const TableSchema* schema_;
  const Split split_;
  const std::unique_ptr<SampleFeed> feed_;
  const ParsedSamples* parsed_ = nullptr;  // the feed's
  int64_t at_ = 0;                         // the next one of them
  int64_t index_ = 0;                      // the same in the files, where modulo counts
};

class TableFiles : public SampleFiles {
 public:
  TableFiles(const TableSchema& schema, Vocabulary vocabulary, ReaderThreads threads, Env& env)
      : table_(schema),
        vocabulary_(std::move(vocabulary)),
        threads_(threads),
        env_(env),
        schema_(DataSchemaOf(schema)) {}

  const DataSchema& schema() const override { return schema_; }
  absl::StatusOr<std::unique_ptr<SampleStream>> OpenStream(Split split,
                                                           StreamUse use) const override {
    const int32_t threads = use == StreamUse::kLoading ? threads_.opening : threads_.reading;
    return std::make_unique<TableStream>(&table_, vocabulary(), split, env_, threads);
  }
  const Vocabulary* vocabulary() const override {
    return vocabulary_.empty() ? nullptr : &vocabulary_;
  }
  const TableSchema* table_schema() const override { return &table_; }
  absl::StatusOr<std::vector<std::pair<std::string, std::string>>> Identity() const override {
    std::vector<std::string> paths;
    for (const std::vector<std::string>& split : table_.files) {
      for (const std::string& path : split) {
        HOTROW_ASSIGN_OR_RETURN(const bool plain, env_.Exists(path));
        paths.push_back(plain ? path : path + ".gz");
      }
    }
    HOTROW_ASSIGN_OR_RETURN(auto identity, IdentityOfFiles(env_, paths));
    if (table_.text_hash != 0) {
      identity.emplace_back("schema",
                            absl::StrFormat("%s, hash %016x", table_.name, table_.text_hash));
    }
    return identity;
  }

  // Parses the split up to there.
  absl::StatusOr<std::string> PlaceOf(Split split, int64_t sample) const override {
    const auto files = table_.modulo > 0 ? 0 : static_cast<size_t>(split);
    const auto feed = NewSampleFeed(&table_, table_.files[files], OpenTextFrom(env_), vocabulary(),
                                    threads_.opening);
    int64_t before = sample;  // of the split
    for (int64_t index = 0;;) {
      HOTROW_ASSIGN_OR_RETURN(const ParsedSamples* const parsed, feed->Next());
      if (parsed == nullptr) return std::string();
      for (const RecordPlace& place : parsed->places) {
        if (table_.modulo > 0 && SplitOf(table_, index++) != split) continue;
        if (before-- == 0) return feed->TextOf(place);
      }
    }
  }

  // Files that hold all splits are parsed once, not once for each.
  absl::StatusOr<bool> ReadAll(TakeSamples take) const override {
    if (table_.modulo == 0) return SampleFiles::ReadAll(take);
    const auto feed =
        NewSampleFeed(&table_, table_.files[0], OpenTextFrom(env_), vocabulary(), threads_.opening);
    int64_t index = 0;
    while (true) {
      HOTROW_ASSIGN_OR_RETURN(const ParsedSamples* const parsed, feed->Next());
      if (parsed == nullptr) return true;
      const SampleBlock& samples = parsed->samples;
      for (int64_t at = 0, run = 0; at < samples.size(); at += run, index += run) {
        const Split split = SplitOf(table_, index);
        run = 1;
        while (run < samples.size() - at && SplitOf(table_, index + run) == split) ++run;
        HOTROW_ASSIGN_OR_RETURN(const bool more, take(split, samples, at, at + run));
        if (!more) return false;
      }
    }
  }

 private:
  const TableSchema table_;
  const Vocabulary vocabulary_;
  const ReaderThreads threads_;
  Env& env_;
  DataSchema schema_;
};

// Puts the files in the place of their patterns.
absl::Status ExpandFiles(Env& env, TableSchema* schema) {
  for (std::vector<std::string>& files : schema->files) {
    HOTROW_ASSIGN_OR_RETURN(files, ExpandFilePatterns(env, files));
  }
  return absl::OkStatus();
}

// The values of one table that merges rare ones.
struct TableCount {
  std::string table;
  uint64_t min_count;
  uint64_t unknown_key;
  KeyCounter counter = {};
};

std::vector<TableCount> TablesToCount(const TableSchema& schema) {
  std::vector<TableCount> counts;
  for (const CategoricalColumn& column : schema.categorical) {
    const bool known = std::any_of(counts.begin(), counts.end(), [&](const TableCount& count) {
      return count.table == column.table;
    });
    if (column.min_count > 0 && !known) {
      counts.push_back({column.table, column.min_count, UnknownKey(column)});
    }
  }
  return counts;
}

// Reads the training samples once and counts their values.
class ValueCounts {
 public:
  // counts and schema must outlive this.
  ValueCounts(const TableSchema& schema, int64_t max_bytes, std::vector<TableCount>* counts)
      : schema_(schema), max_bytes_(max_bytes), count_of_(schema.categorical.size()) {
    for (size_t f = 0; f < count_of_.size(); ++f) {
      for (TableCount& count : *counts) {
        if (count.table == schema.categorical[f].table) count_of_[f] = &count;
      }
    }
    for (const TableCount& count : *counts) bytes_ += count.counter.bytes();
  }

  absl::Status AddAll(SampleFeed& feed) {
    for (int64_t index = 0;;) {
      HOTROW_ASSIGN_OR_RETURN(const ParsedSamples* const parsed, feed.Next());
      if (parsed == nullptr) return absl::OkStatus();
      for (int64_t i = 0; i < parsed->samples.size(); ++i, ++index) {
        if (schema_.modulo > 0 && SplitOf(schema_, index) != Split::kTrain) continue;
        HOTROW_RETURN_IF_ERROR(AddSample(feed, *parsed, i));
      }
    }
  }

 private:
  absl::Status AddSample(const SampleFeed& feed, const ParsedSamples& parsed, int64_t i) {
    const uint16_t* const lengths = parsed.samples.lengths(i);
    const uint64_t* values = parsed.samples.values(i);
    for (size_t f = 0; f < count_of_.size(); ++f) {
      const std::span<const uint64_t> bag(values, lengths == nullptr ? 1 : lengths[f]);
      values += bag.size();
      if (count_of_[f] == nullptr) continue;
      for (const uint64_t key : bag) {
        const absl::Status status = AddKey(schema_.categorical[f], key, count_of_[f]);
        if (status.ok()) continue;
        const std::string place = feed.TextOf(parsed.places[static_cast<size_t>(i)]);
        return {status.code(), absl::StrCat(place, ": ", std::string(status.message()))};
      }
    }
    return absl::OkStatus();
  }

  absl::Status AddKey(const CategoricalColumn& column, uint64_t key, TableCount* count) {
    if (key == count->unknown_key) {
      if (column.missing_key == key) return absl::OkStatus();
      return absl::InvalidArgumentError(absl::StrCat(
          "column ", QuoteForMessage(column.column), " has the key ", key,
          ", which stands for rare values; give another key as \"unknown\" in the schema"));
    }
    if (count->counter.full()) {
      if (bytes_ + count->counter.bytes_to_grow() > max_bytes_) {
        return absl::ResourceExhaustedError(absl::StrCat(
            "counting the values of table ", QuoteForMessage(count->table),
            " for \"min_count\" takes more than ", max_bytes_ >> 20, " MiB, after ",
            count->counter.distinct(),
            " different ones; give the column a \"modulo\", or leave out \"min_count\""));
      }
      bytes_ += count->counter.bytes();
      count->counter.Grow();
    }
    count->counter.Add(key);
    return absl::OkStatus();
  }

  const TableSchema& schema_;
  const int64_t max_bytes_;
  std::vector<TableCount*> count_of_;  // of each categorical column; null: it keeps all values
  int64_t bytes_ = 0;                  // of all counters
};

// Which values have their own rows: what the model has that training starts from, and those of
// the training data.
absl::StatusOr<Vocabulary> MakeVocabulary(const TableSchema& schema,
                                          const FileSourceOptions& options, Env& env) {
  const SavedVocabulary* const saved = options.saved_vocabulary;
  std::vector<TableCount> counts = TablesToCount(schema);
  if (!counts.empty() && (saved == nullptr || !saved->final)) {
    const auto feed = NewSampleFeed(&schema, schema.files[0], OpenTextFrom(env),
                                    /*vocabulary=*/nullptr, options.threads.opening);
    ValueCounts counting(schema, options.vocabulary_bytes, &counts);
    HOTROW_RETURN_IF_ERROR(counting.AddAll(*feed));
  }
  std::vector<KeptKeys> tables;
  for (TableCount& count : counts) {
    std::vector<uint64_t> keys = count.counter.KeysFrom(count.min_count);
    count.counter = KeyCounter();  // gives back its memory
    tables.emplace_back(count.table, count.min_count, count.unknown_key, std::move(keys));
  }
  Vocabulary vocabulary(std::move(tables));
  if (saved != nullptr) {
    HOTROW_RETURN_IF_ERROR(vocabulary.Join(saved->vocabulary, saved->where));
  }
  return vocabulary;
}

constexpr const char* kFrappe = R"json({
  "name": "frappe",
  "quotes": false,
  "files": {"train": ["train.csv"], "valid": ["valid.csv"], "test": ["test.csv"]},
  "columns": [
    {"name": "label", "role": "label"},
    {"name": "user", "role": "categorical", "key": "integer", "num_embeddings": 5382},
    {"name": "item", "role": "categorical", "key": "integer", "num_embeddings": 5382},
    {"name": "daytime", "role": "categorical", "key": "integer", "num_embeddings": 5382},
    {"name": "weekday", "role": "categorical", "key": "integer", "num_embeddings": 5382},
    {"name": "isweekend", "role": "categorical", "key": "integer", "num_embeddings": 5382},
    {"name": "homework", "role": "categorical", "key": "integer", "num_embeddings": 5382},
    {"name": "cost", "role": "categorical", "key": "integer", "num_embeddings": 5382},
    {"name": "weather", "role": "categorical", "key": "integer", "num_embeddings": 5382},
    {"name": "country", "role": "categorical", "key": "integer", "num_embeddings": 5382},
    {"name": "city", "role": "categorical", "key": "integer", "num_embeddings": 5382}
  ]
})json";

// zip has codes such as 12345-6789, so it is text.
constexpr const char* kMovieLens = R"json({
  "name": "ml1m",
  "quotes": false,
  "files": ["(given)"],
  "split": {"modulo": 10, "valid": [8], "test": [9]},
  "columns": [
    {"name": "rating_class", "role": "label", "values": {"0": 0, "1": "drop", "2": 1}},
    {"name": "user_id", "role": "categorical", "key": "integer"},
    {"name": "movie_id", "role": "categorical", "key": "integer"},
    {"name": "gender", "role": "categorical", "key": "hash"},
    {"name": "age", "role": "categorical", "key": "integer"},
    {"name": "occupation", "role": "categorical", "key": "integer"},
    {"name": "zip", "role": "categorical", "key": "hash"},
    {"name": "year", "role": "categorical", "key": "integer"},
    {"name": "genres", "role": "categorical", "key": "hash", "separator": "|", "max_hotness": 18}
  ]
})json";

struct CensusColumn {
  const char* name;
  enum { kText, kNumber, kUnused, kLabel } use;
};
// In file order, named as in census-income.names. Codes (industry, occupation, ...) are categories.
// The instance weight says how many people a row stands for; the data's authors ask not to use it.
constexpr CensusColumn kCensusColumns[] = {
    {"age", CensusColumn::kNumber},
    {"class_of_worker", CensusColumn::kText},
    {"industry_code", CensusColumn::kText},
    {"occupation_code", CensusColumn::kText},
    {"education", CensusColumn::kText},
    {"wage_per_hour", CensusColumn::kNumber},
    {"enrolled_in_edu_inst_last_wk", CensusColumn::kText},
    {"marital_status", CensusColumn::kText},
    {"major_industry_code", CensusColumn::kText},
    {"major_occupation_code", CensusColumn::kText},
    {"race", CensusColumn::kText},
    {"hispanic_origin", CensusColumn::kText},
    {"sex", CensusColumn::kText},
    {"member_of_a_labor_union", CensusColumn::kText},
    {"reason_for_unemployment", CensusColumn::kText},
    {"full_or_part_time_employment_stat", CensusColumn::kText},
    {"capital_gains", CensusColumn::kNumber},
    {"capital_losses", CensusColumn::kNumber},
    {"dividends_from_stocks", CensusColumn::kNumber},
    {"tax_filer_status", CensusColumn::kText},
    {"region_of_previous_residence", CensusColumn::kText},
    {"state_of_previous_residence", CensusColumn::kText},
    {"detailed_household_and_family_stat", CensusColumn::kText},
    {"detailed_household_summary", CensusColumn::kText},
    {"instance_weight", CensusColumn::kUnused},
    {"migration_code_change_in_msa", CensusColumn::kText},
    {"migration_code_change_in_reg", CensusColumn::kText},
    {"migration_code_move_within_reg", CensusColumn::kText},
    {"live_in_this_house_1_year_ago", CensusColumn::kText},
    {"migration_prev_res_in_sunbelt", CensusColumn::kText},
    {"num_persons_worked_for_employer", CensusColumn::kNumber},
    {"family_members_under_18", CensusColumn::kText},
    {"country_of_birth_father", CensusColumn::kText},
    {"country_of_birth_mother", CensusColumn::kText},
    {"country_of_birth_self", CensusColumn::kText},
    {"citizenship", CensusColumn::kText},
    {"own_business_or_self_employed", CensusColumn::kText},
    {"fill_inc_questionnaire_for_veterans_admin", CensusColumn::kText},
    {"veterans_benefits", CensusColumn::kText},
    {"weeks_worked_in_year", CensusColumn::kNumber},
    {"year", CensusColumn::kText},
    {"income", CensusColumn::kLabel},
};
static_assert(std::size(kCensusColumns) == 42);

TableSchema MustParse(const char* json, const std::string& where) {
  absl::StatusOr<TableSchema> schema = ParseTableSchema(json, where);
  HOTROW_CHECK(schema.ok());
  return *std::move(schema);
}

}  // namespace

DataSchema DataSchemaOf(const TableSchema& schema) {
  DataSchema out;
  out.name = schema.name;
  out.num_dense = static_cast<int32_t>(schema.dense.size());
  for (const auto& column : schema.dense) out.dense.push_back(column.name);
  out.labels.clear();
  for (const LabelColumn& label : schema.labels) out.labels.push_back(label.name);
  for (const CategoricalColumn& column : schema.categorical) {
    DataFeature feature;
    feature.name = column.name;
    feature.table = column.table;
    feature.num_embeddings = NumEmbeddings(column);
    if (column.min_count > 0 && feature.num_embeddings > 0) {
      const uint64_t last =
          std::max(UnknownKey(column), static_cast<uint64_t>(feature.num_embeddings) - 1);
      feature.num_embeddings = last < INT64_MAX ? static_cast<int64_t>(last) + 1 : 0;
    }
    feature.max_hotness = column.separator == 0 ? 1 : column.max_hotness;
    out.features.push_back(std::move(feature));
  }
  return out;
}

absl::StatusOr<std::unique_ptr<DataSource>> OpenTableSource(const TableSchema& schema,
                                                            const FileSourceOptions& options,
                                                            Env& env) {
  HOTROW_RETURN_IF_ERROR(schema.Validate());
  HOTROW_RETURN_IF_ERROR(options.Validate());
  TableSchema expanded = schema;
  HOTROW_RETURN_IF_ERROR(ExpandFiles(env, &expanded));
  HOTROW_ASSIGN_OR_RETURN(Vocabulary vocabulary, MakeVocabulary(expanded, options, env));
  return OpenFileSource(
      std::make_unique<TableFiles>(expanded, std::move(vocabulary), options.threads, env), options);
}

TableSchema FrappeSchema(const std::string& dir) { return MustParse(kFrappe, dir + "/frappe"); }

TableSchema MovieLensSchema(const std::vector<std::string>& paths) {
  TableSchema schema = MustParse(kMovieLens, "ml1m");
  schema.files[0] = paths;
  return schema;
}

TableSchema CensusSchema(const std::vector<std::string>& paths) {
  TableSchema schema;
  schema.name = "census";
  schema.trim = true;
  schema.header = false;
  schema.files[0] = paths;
  SplitByTen(&schema);
  for (const CensusColumn& column : kCensusColumns) {
    const std::string name = column.name;
    schema.column_names.push_back(name);
    if (column.use == CensusColumn::kNumber) {
      schema.dense.push_back(
          {.name = name, .column = name, .transform = DenseTransform::kLogPlus1});
    } else if (column.use == CensusColumn::kText) {
      schema.categorical.push_back({.name = name, .column = name, .table = name});
    }
  }
  schema.labels.push_back(
      {.name = "income",
       .column = "income",
       .values = {{"- 50000.", LabelValue::kZero}, {"50000+.", LabelValue::kOne}}});
  return schema;
}

TableSchema CensusTasksSchema(const std::vector<std::string>& paths) {
  TableSchema schema = CensusSchema(paths);
  schema.name = "census-tasks";
  std::erase_if(schema.categorical,
                [](const CategoricalColumn& column) { return column.column == "marital_status"; });
  schema.labels.push_back({.name = "never_married",
                           .column = "marital_status",
                           .values = {{"Never married", LabelValue::kOne}},
                           .otherwise = LabelValue::kZero});
  return schema;
}

TableSchema MovieLensTasksSchema(const std::vector<std::string>& paths) {
  TableSchema schema = MovieLensSchema(paths);
  schema.name = "ml1m-tasks";
  const auto label = [](const char* name, const char* of_one) {
    return LabelColumn{.name = name,
                       .column = "rating_class",
                       .values = {{of_one, LabelValue::kOne}},
                       .otherwise = LabelValue::kZero};
  };
  schema.labels = {label("liked", "2"), label("disliked", "0")};
  return schema;
}

TableSchema CriteoSchema(const std::vector<std::string>& paths) {
  TableSchema schema;
  schema.name = "criteo";
  schema.delimiter.assign(1, '\t');
  schema.header = false;
  schema.files[0] = paths;
  SplitByTen(&schema);
  schema.column_names.emplace_back("label");
  schema.labels.push_back({.name = "label", .column = "label"});
  for (int i = 1; i <= 13; ++i) {
    const std::string name = absl::StrCat("I", i);
    schema.column_names.push_back(name);
    schema.dense.push_back({.name = name, .column = name, .transform = DenseTransform::kLogPlus3});
  }
  for (int i = 1; i <= 26; ++i) {
    const std::string name = absl::StrCat("C", i);
    schema.column_names.push_back(name);
    schema.categorical.push_back({.name = name,
                                  .column = name,
                                  .table = name,
                                  .key = KeyKind::kHex,
                                  .missing_key = kCriteoMissingKey});
  }
  return schema;
}

}  // namespace hotrow
