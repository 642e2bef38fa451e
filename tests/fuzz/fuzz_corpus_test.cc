// Runs the fuzz targets over handwritten inputs, every prefix of them, and copies with one byte
// changed, so that the targets are tested where there is no libFuzzer. With the variable
// HOTROW_FUZZ_CORPUS the inputs are written to folders below it, as a start for libFuzzer.

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "base/philox.h"
#include "models/saving/saved_model.h"
#include "models/train/run_metrics.h"
#include "tests/fuzz/fuzz_targets.h"
#include "tests/models/file_builders.h"
#include "tests/models/model_fuzz_targets.h"
#include "tests/store/rocks_fuzz_targets.h"
#include "tests/store/ssd_fuzz_targets.h"
#include "tests/support/test_util.h"
#include "tests/tools/plan_fuzz_targets.h"
#include "tests/tools/serve_fuzz_targets.h"

namespace hotrow {
namespace {

using Target = std::function<void(const uint8_t*, size_t)>;

// A copy on the heap of exactly this size, so that a sanitizer sees every read behind its end.
void Run(const Target& target, std::string_view input) {
  const std::vector<uint8_t> bytes(input.begin(), input.end());
  target(bytes.data(), bytes.size());
}

void RunAll(const char* name, const Target& target, const std::vector<std::string>& inputs) {
  const char* corpus = std::getenv("HOTROW_FUZZ_CORPUS");
  for (size_t i = 0; i < inputs.size(); ++i) {
    const std::string& input = inputs[i];
    SCOPED_TRACE(testing::Message() << name << " input " << i);
    if (corpus != nullptr) {
      test::WriteFileOrDie(PosixEnv(), absl::StrCat(corpus, "/", name, "/", i), input);
    }
    Run(target, input);
    RandomStream random(i, RandomPurpose::kTest);
    // Long inputs are covered in steps.
    const size_t step = 1 + input.size() / 400;
    for (size_t at = 0; at < input.size(); at += step) {
      Run(target, std::string_view(input).substr(0, at));
      std::string changed = input;
      changed[at] = static_cast<char>(random.Next32());
      Run(target, changed);
      changed.insert(at, 1 + random.Below(9), static_cast<char>(random.Next32()));
      Run(target, changed);
    }
  }
}

TEST(FuzzCorpusTest, Table) {
  const std::string tabs39(39, '\t');
  std::string criteo = "1";
  for (int i = 0; i < 13; ++i) absl::StrAppend(&criteo, "\t", i * i - 4);
  for (int i = 0; i < 26; ++i) absl::StrAppend(&criteo, "\t", i % 5 == 0 ? "" : "7e0ccccf");
  std::string census;
  for (int i = 0; i < 41; ++i)
    absl::StrAppend(&census, i % 3 == 0 ? "Not in universe" : "38", ", ");
  const auto with = [](char choice, std::string_view text) {
    return absl::StrCat(std::string(1, choice), std::string(text));
  };
  RunAll("table", fuzz::Table,
         {"",
          with(0, ""),
          with(0, "\n\n\r\n\r"),
          with(0, std::string(100, '\0')),
          with(0, criteo),
          with(0, criteo + "\r\n" + criteo + "\n\n" + criteo),
          with(0, "0" + tabs39),
          with(0, tabs39),
          with(0, "1" + tabs39 + "\t"),
          with(0, std::string(5000, '9')),
          with(1, census + "- 50000."),
          with(1, census + "50000+.\r\n" + census + "- 50000.\n"),
          with(1, std::string(41, ',') + "50000+."),
          with(1, std::string(300, ',')),
          with(2,
               "y,a,b,c,d,e\n1,2,3,4,5|6|7,8 9\n0,-1e308,1e-320,99,|||,18446744073709551615\n"
               ",,,,,\n1,1e400,0x10,-1,a,b\n"),
          with(2, "\xEF\xBB\xBF e ,d,c,b,a,y\r\n-9223372036854775808 1,x|y,,1,2,0\r\n"),
          with(2, "y,a,b,c,d\n"),
          with(2, "y,y,a,b,c,d,e\n1,1,1,1,1,1,1\n"),
          with(2, "\xEF\xBB\xBF"),
          with(2, "y,a,b,c,d,e\n1,nan,inf,100,,\n"),
          with(2, "y,a,b,c,d,e")});
}

TEST(FuzzCorpusTest, PackedBlock) {
  RunAll("packedblock", fuzz::PackedBlock, fuzz::PackedBlockCorpus());
}

TEST(FuzzCorpusTest, Gzip) {
  const std::string text = "1\t2\t3\nabc\n";
  RunAll("gzip", fuzz::Gzip,
         {"", "\x1f\x8b", test::Gzip(""), test::Gzip(text), test::Gzip(text) + test::Gzip(text),
          test::Gzip(text) + std::string(9, '\0'), test::Gzip(text) + "x",
          test::Gzip(std::string(100'000, 'a')), test::Deflate(text, -15)});
}

TEST(FuzzCorpusTest, NpyHeader) {
  const auto npy = [](std::string_view dictionary) {
    return test::NpyWithHeader(std::string(dictionary), "data");
  };
  RunAll(
      "npy", fuzz::NpyHeader,
      {"", "\x93NUMPY", npy(""), npy("{"), npy("{}"), npy(test::NpyDictionary("<f4", "(3, 13)")),
       npy(test::NpyDictionary("<i8", "()")), npy(test::NpyDictionary("|b1", "(0, 5)")),
       npy(test::NpyDictionary(">i4", "(1,)")),
       npy(test::NpyDictionary("<i8", "(9223372036854775807, 9223372036854775807)")),
       npy(test::NpyDictionary("<i8", "(0, 9223372036854775807, 9223372036854775807)")),
       npy("{'shape': (((((((("), npy("{'descr': '\\x00', 'shape': (1,), 'fortran_order': False}"),
       absl::StrCat("\x93NUMPY", std::string("\x02\x00\xff\xff\xff\xff", 6), "{}"),
       absl::StrCat("\x93NUMPY", std::string("\x03\x00\x02\x00\x00\x00", 6), "{}")});
}

TEST(FuzzCorpusTest, ZipArchive) {
  const std::string text = "some bytes, some bytes, some bytes";
  RunAll("zip", fuzz::ZipArchive,
         {"", "PK\5\6", test::Zip({}), test::Zip({{"0.npy", text}}),
          test::Zip({{"0.npy", text, true}, {"1.npy", text}}),
          test::Zip({{"0.npy", text, true}, {"1.npy", text}}, true), test::Zip({}, true),
          test::Zip({{"", ""}, {"a", "", true}}),
          test::Zip({{"0.npy", text}}) + std::string(70'000, 'x')});
}

TEST(FuzzCorpusTest, TableSchema) {
  const std::string all = R"({"name": "n", "delimiter": "\t", "trim": true, "header": ["y", "x"],
    "files": {"train": ["a"], "valid": ["b"]}, "columns": [
    {"name": "y", "role": "label", "values": {"a": 1, "b": 0, "c": "drop"}},
    {"name": "x", "role": "dense", "transform": "log1p"},
    {"name": "z", "column": "x", "role": "categorical", "key": "bucket", "boundaries": [1, 2e9]},
    {"name": "w", "column": "x", "role": "categorical", "key": "hash", "separator": "|",
     "modulo": 10, "missing": 10, "max_hotness": 5, "table": "t"}]})";
  const std::string split = R"({"files": ["a"], "split": {"modulo": 3, "valid": [0], "test": [1]},
    "columns": [{"name": "y", "role": "label"}, {"name": "x", "role": "categorical",
    "key": "integer", "num_embeddings": 9223372036854775807}]})";
  RunAll("schema", fuzz::TableSchema,
         {"", "{}", "[]", "null", "1e999", "\"\xff\"", all, split, std::string(10'000, '['),
          R"({"files": [[]], "split": [], "columns": {"a": 1}, "header": [1]})",
          R"({"files": {"train": {}}, "columns": [[], {"name": 1, "role": {}}], "trim": null})"});
}

TEST(FuzzCorpusTest, SavedManifest) {
  RunAll("savedmanifest", fuzz::SavedManifest, fuzz::SavedManifestCorpus());
}
TEST(FuzzCorpusTest, DenseFile) { RunAll("densefile", fuzz::DenseFile, fuzz::DenseFileCorpus()); }
TEST(FuzzCorpusTest, DeltaFiles) {
  RunAll("deltafiles", fuzz::DeltaFiles, fuzz::DeltaFilesCorpus());
}
TEST(FuzzCorpusTest, PortableManifest) {
  RunAll("portablemanifest", fuzz::PortableManifest, fuzz::PortableManifestCorpus());
}

TEST(FuzzCorpusTest, VocabularyFile) {
  RunAll("vocabularyfile", fuzz::VocabularyFile, fuzz::VocabularyFileCorpus());
}
TEST(FuzzCorpusTest, PlanText) { RunAll("plantext", fuzz::PlanText, fuzz::PlanTextCorpus()); }

TEST(FuzzCorpusTest, InferBody) { RunAll("inferbody", fuzz::InferBody, fuzz::InferBodyCorpus()); }

TEST(FuzzCorpusTest, MetricsText) {
  RunAll("metricstext", fuzz::MetricsText,
         {"", "\n", "# TYPE", "x{", "x{a=\"\\", "x NaN\n", AllMetricsText(),
          "hotrow_lookups_total 1e308\nhotrow_table_lookups_total{table=\"\x1b[2J\"} +Inf\n"
          "hotrow_table_lookups_total{table=\"\xc2\x9b\"} -1e308\n"
          "hotrow_stage_seconds_total{stage=\"\xff\"} NaN\nhotrow_metrics_timestamp_seconds -1\n"});
}

TEST(FuzzCorpusTest, SsdChunk) { RunAll("ssdchunk", fuzz::SsdChunk, fuzz::SsdChunkCorpus()); }
TEST(FuzzCorpusTest, SsdFooter) { RunAll("ssdfooter", fuzz::SsdFooter, fuzz::SsdFooterCorpus()); }
TEST(FuzzCorpusTest, SsdManifest) {
  RunAll("ssdmanifest", fuzz::SsdManifest, fuzz::SsdManifestCorpus());
}
TEST(FuzzCorpusTest, SsdIndexImage) {
  RunAll("ssdindeximage", fuzz::SsdIndexImage, fuzz::SsdIndexImageCorpus());
}
TEST(FuzzCorpusTest, RocksText) { RunAll("rockstext", fuzz::RocksText, fuzz::RocksTextCorpus()); }

}  // namespace
}  // namespace hotrow
