#include "models/zoo/dcn_model.h"

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "models/zoo/layers/cross_layer.h"
#include "models/zoo/layers/mixture_layer.h"
#include "tests/models/ctr_model_contract.h"
#include "tests/models/model_test_util.h"
#include "tests/support/status_matchers.h"

namespace hotrow {
namespace {

using ::testing::HasSubstr;

DcnOptions SmallOptions() {
  DcnOptions options = {{.num_dense = 4,
                         .num_sparse = 3,
                         .embedding_dim = 2,
                         .over_arch_layer_sizes = {7, 1},
                         .seed = 11,
                         .max_batch_size = 8}};
  options.num_cross_layers = 2;
  return options;
}

// Every kind of model that the options can make.
std::vector<DcnOptions> AllKinds() {
  std::vector<DcnOptions> all;
  for (const DcnStructure structure : {DcnStructure::kStacked, DcnStructure::kParallel}) {
    for (const bool has_bottom : {false, true}) {
      DcnOptions options = SmallOptions();
      options.structure = structure;
      if (has_bottom) options.dense_arch_layer_sizes = {6, 5};
      options.version = 1;
      all.push_back(options);
      options.version = 2;
      all.push_back(options);
      options.low_rank_dim = 3;
      all.push_back(options);
      options.num_experts = 2;
      all.push_back(options);
    }
  }
  return all;
}

std::string Name(const DcnOptions& o) {
  return std::string(o.structure == DcnStructure::kStacked ? "Stacked" : "Parallel") +
         (o.dense_arch_layer_sizes.empty() ? "" : "Bottom") + "V" + std::to_string(o.version) +
         (o.low_rank_dim == 0 ? "" : "Rank" + std::to_string(o.low_rank_dim)) +
         (o.num_experts == 1 ? "" : "Experts" + std::to_string(o.num_experts));
}

std::unique_ptr<GraphModel> NewModel(const DcnOptions& options) {
  auto model = DcnModel::Create(options);
  HOTROW_EXPECT_OK(model);
  return *std::move(model);
}

const CrossNetwork& CrossOf(const GraphModel& model) {
  return dynamic_cast<const CrossLayer&>(*model.FindPart("cross").layer).network();
}

// x_L of one sample by the formulas of the papers.
std::vector<double> Crossed(const CrossNetwork& cross, const DcnOptions& o,
                            const double* parameters, const std::vector<double>& x0) {
  const size_t width = x0.size();
  const auto rank = static_cast<size_t>(o.low_rank_dim);
  std::vector<double> x = x0;
  for (int32_t l = 0; l < o.num_cross_layers; ++l) {
    const double* const w = parameters + cross.weight_offset(l);
    const double* const b = parameters + cross.bias_offset(l);
    std::vector<double> next(width);
    for (size_t i = 0; i < width; ++i) {
      double sum = 0;
      if (o.version == 1) {
        for (size_t j = 0; j < width; ++j) sum += w[j] * x[j];
        next[i] = x0[i] * sum + b[i] + x[i];
        continue;
      }
      for (size_t j = 0; j < width; ++j) {
        double weight = rank == 0 ? w[i * width + j] : 0;
        for (size_t k = 0; k < rank; ++k) {
          weight +=
              parameters[cross.u_offset(l) + static_cast<int64_t>(i * rank + k)] * w[k * width + j];
        }
        sum += weight * x[j];
      }
      next[i] = x0[i] * (sum + b[i]) + x[i];
    }
    x = std::move(next);
  }
  return x;
}

const GatedMapsLayer& ExpertsOf(const GraphModel& model, int32_t layer) {
  return dynamic_cast<const GatedMapsLayer&>(
      *model.FindPart(absl::StrCat("cross", layer, ".experts")).layer);
}

// x_L of one sample with experts: a sum of theirs, as the paper has it, of columns of U.
std::vector<double> CrossedByExperts(const GraphModel& model, const DcnOptions& o,
                                     const double* parameters, const std::vector<double>& x0) {
  const size_t width = x0.size();
  const auto rank = static_cast<size_t>(o.low_rank_dim);
  const auto experts = static_cast<size_t>(o.num_experts);
  std::vector<double> x = x0;
  for (int32_t l = 0; l < o.num_cross_layers; ++l) {
    const std::string layer = absl::StrCat("cross", l);
    const auto map = [&](const char* part, int32_t outputs, bool relu) {
      return test::MlpReference(model, layer + part, {outputs}, parameters, x, relu);
    };
    const std::vector<double> hidden = map(".down", o.num_experts * o.low_rank_dim, true);
    std::vector<double> shares = map(".gate", o.num_experts, false);
    double sum = 0;
    for (double& share : shares) sum += share = std::exp(share);
    const GraphModel::Part up = model.FindPart(layer + ".up");
    const Mlp& of_up = *test::FindMlp(model, layer + ".up");
    std::vector<double> next = x;
    for (size_t e = 0; e < experts; ++e) {
      const auto expert = static_cast<int64_t>(e);
      const std::vector<double> mapped =
          test::MlpReference(ExpertsOf(model, l).map(expert), {o.low_rank_dim},
                             parameters + model.FindPart(layer + ".experts").offset +
                                 ExpertsOf(model, l).offset(expert),
                             {hidden.begin() + static_cast<int64_t>(e * rank),
                              hidden.begin() + static_cast<int64_t>((e + 1) * rank)},
                             true);
      for (size_t i = 0; i < width; ++i) {
        double t = parameters[up.offset + of_up.bias_offset(0) + static_cast<int64_t>(i)];
        for (size_t k = 0; k < rank; ++k) {
          t += parameters[up.offset + of_up.weight_offset(0) +
                          static_cast<int64_t>((i * experts + e) * rank + k)] *
               mapped[k];
        }
        next[i] += shares[e] / sum * x0[i] * t;
      }
    }
    x = std::move(next);
  }
  return x;
}

double ReferenceLogit(const GraphModel& model, const DcnOptions& o, const double* parameters,
                      const float* dense, const double* embeddings) {
  std::vector<double> x0(dense, dense + o.num_dense);
  if (test::FindMlp(model, "bottom") != nullptr) {
    x0 = test::MlpReference(model, "bottom", o.dense_arch_layer_sizes, parameters, x0, true);
  }
  x0.insert(x0.end(), embeddings, embeddings + o.num_sparse * o.embedding_dim);
  const std::vector<double> crossed =
      o.num_experts > 1
          ? CrossedByExperts(model, o, parameters, x0)
          : Crossed(CrossOf(model), o, parameters + model.FindPart("cross").offset, x0);
  const auto over = [&](const std::vector<double>& x) {
    return test::MlpReference(model, "over", o.over_arch_layer_sizes, parameters, x, false)[0];
  };
  if (o.structure == DcnStructure::kStacked) return over(crossed);
  double logit = over(x0);
  for (size_t i = 0; i < crossed.size(); ++i) {
    logit +=
        parameters[model.FindPart("cross_logit").offset + static_cast<int64_t>(i)] * crossed[i];
  }
  return logit;
}

test::Ranges Layers(const GraphModel& model, const DcnOptions& o) {
  test::RangesFromEnd layers(model);
  layers.AddMlp("over");
  if (o.structure == DcnStructure::kParallel) layers.Add(model.FindPart("cross_logit").offset);
  if (o.num_experts == 1) layers.AddLayers("cross", CrossOf(model), o.num_cross_layers);
  for (int32_t l = o.num_experts == 1 ? 0 : o.num_cross_layers; l-- > 0;) {
    layers.AddMlp(absl::StrCat("cross", l, ".up"));
    for (int64_t e = o.num_experts; e-- > 0;) {
      layers.Add(model.FindPart(absl::StrCat("cross", l, ".experts")).offset +
                 ExpertsOf(model, l).offset(e));
    }
    layers.AddMlp(absl::StrCat("cross", l, ".gate"));
    layers.AddMlp(absl::StrCat("cross", l, ".down"));
  }
  layers.AddMlp("bottom");
  return layers.ranges();
}

// Biases of cross layers and the weights of x_L.
void Randomize(const DcnOptions& options, GraphModel& model, RandomStream& random) {
  const auto fill = [&](int64_t offset) {
    for (int64_t i = 0; i < options.InputWidth(); ++i) {
      model.parameters()[static_cast<size_t>(offset + i)] = 0.3f * random.Normal();
    }
  };
  for (int32_t l = 0; l < options.num_cross_layers && options.num_experts == 1; ++l) {
    fill(model.FindPart("cross").offset + CrossOf(model).bias_offset(l));
  }
  if (options.structure == DcnStructure::kParallel) fill(model.FindPart("cross_logit").offset);
}

test::CtrModelKind Kind(const DcnOptions& base) {
  return test::KindOf<DcnModel, DcnOptions>(
      Name(base), int64_t{base.num_sparse} * base.embedding_dim, base, ReferenceLogit,
      [base](const GraphModel& model) { return Layers(model, base); },
      [base](GraphModel& model, RandomStream& random) { Randomize(base, model, random); });
}

std::vector<test::CtrModelKind> Kinds() {
  std::vector<test::CtrModelKind> kinds;
  for (const DcnOptions& options : AllKinds()) kinds.push_back(Kind(options));
  return kinds;
}

}  // namespace

namespace test {
INSTANTIATE_TEST_SUITE_P(Dcn, CtrModelContract, testing::ValuesIn(Kinds()), NameOfKind);
}  // namespace test

namespace {

TEST(DcnModelTest, OddSizesMatchTheReference) {
  for (const DcnStructure structure : {DcnStructure::kStacked, DcnStructure::kParallel}) {
    DcnOptions options = SmallOptions();
    options.structure = structure;
    options.num_sparse = 1;
    options.embedding_dim = 1;
    options.num_cross_layers = 1;
    test::CheckAgainstReference(Kind(options), {.num_dense = 0, .over_arch_layer_sizes = {1}}, 8,
                                4);
    options = SmallOptions();
    options.structure = structure;
    options.embedding_dim = 7;
    options.num_cross_layers = 3;
    options.low_rank_dim = 1;
    test::CheckAgainstReference(Kind(options), {.num_dense = 1, .over_arch_layer_sizes = {5, 3, 1}},
                                1, 5);
    options.num_experts = 5;
    test::CheckAgainstReference(Kind(options), {.num_dense = 1, .over_arch_layer_sizes = {5, 1}}, 3,
                                5);
  }
}

TEST(DcnModelTest, WithoutDenseFeaturesThereIsNoBottomMlp) {
  for (DcnOptions options : AllKinds()) {
    options.num_dense = 0;  // sizes of a bottom MLP are not read
    EXPECT_EQ(test::FindMlp(*NewModel(options), "bottom"), nullptr);
  }
}

TEST(DcnModelTest, PartsLieOneAfterTheOther) {
  for (const DcnOptions& options : AllKinds()) {
    SCOPED_TRACE(Name(options));
    const auto model = NewModel(options);
    EXPECT_EQ(model->name(), "dcn");
    const bool has_bottom = !options.dense_arch_layer_sizes.empty();
    EXPECT_EQ(options.InputWidth(), (has_bottom ? 5 : 4) + 6);
    const Mlp& over = *test::FindMlp(*model, "over");
    EXPECT_EQ(over.input_size(), options.InputWidth());
    if (options.num_experts > 1) continue;  // its parts are told by Layers()
    EXPECT_EQ(CrossOf(*model).width(), options.InputWidth());
    const int64_t cross_offset = model->FindPart("cross").offset;
    EXPECT_EQ(cross_offset, has_bottom ? test::FindMlp(*model, "bottom")->num_parameters() : 0);
    const int64_t cross_end = cross_offset + CrossOf(*model).num_parameters();
    const bool parallel = options.structure == DcnStructure::kParallel;
    EXPECT_EQ(model->FindPart("over").offset, cross_end + (parallel ? 16 : 0));
    EXPECT_EQ(static_cast<int64_t>(model->parameters().size()),
              model->FindPart("over").offset + over.num_parameters());
  }
}

TEST(DcnModelTest, GatedMapsMayBeOfOneExpert) {
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const auto layer,
      GatedMapsLayer::Create({.experts = 1, .columns = 3, .max_batch_size = 2}, {}));
  EXPECT_EQ(layer->num_parameters(), layer->map(0).num_parameters());
}

TEST(DcnModelTest, NamesTheFlagWhenOptionsDoNotFit) {
  const auto error = [](auto change) {
    DcnOptions options = SmallOptions();
    change(&options);
    const absl::Status status = DcnModel::Create(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status.ToString();
    return std::string(status.message());
  };
  EXPECT_THAT(error([](DcnOptions* o) { o->version = 3; }), HasSubstr("--dcn_version"));
  EXPECT_THAT(error([](DcnOptions* o) { o->num_cross_layers = 0; }), HasSubstr("--dcn_num_layers"));
  EXPECT_THAT(error([](DcnOptions* o) { o->low_rank_dim = 11; }),
              ::testing::AllOf(HasSubstr("--dcn_low_rank_dim=11"), HasSubstr("at most 10")));
  EXPECT_THAT(error([](DcnOptions* o) {
                o->version = 1;
                o->low_rank_dim = 2;
              }),
              ::testing::AllOf(HasSubstr("--dcn_low_rank_dim=2"), HasSubstr("--dcn_version=2")));
  EXPECT_THAT(error([](DcnOptions* o) { o->num_experts = 0; }), HasSubstr("--dcn_num_experts"));
  EXPECT_THAT(
      error([](DcnOptions* o) { o->num_experts = 2; }),
      ::testing::AllOf(HasSubstr("--dcn_num_experts=2"), HasSubstr("set --dcn_low_rank_dim")));
  EXPECT_THAT(error([](DcnOptions* o) { o->dense_arch_layer_sizes = {0}; }),
              HasSubstr("--dense_arch_layer_sizes=0"));
  EXPECT_THAT(error([](DcnOptions* o) {
                o->num_sparse = 1 << 16;
                o->embedding_dim = 1 << 16;
              }),
              HasSubstr("--embedding_dim=65536"));
  EXPECT_THAT(error([](DcnOptions* o) { o->num_sparse = 0; }), HasSubstr("num_sparse"));
}

}  // namespace
}  // namespace hotrow
