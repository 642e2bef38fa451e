#ifndef HOTROW_TESTS_MODELS_CTR_MODEL_CONTRACT_H_
#define HOTROW_TESTS_MODELS_CTR_MODEL_CONTRACT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/philox.h"
#include "gtest/gtest.h"
#include "models/zoo/ctr_model.h"
#include "models/zoo/layers/model_graph.h"
#include "tests/models/model_test_util.h"

namespace hotrow::test {

// What every model on the CPU must do: tests/models/ctr_model_contract.cc. A model joins in its own
// test, with one line:
//
//   INSTANTIATE_TEST_SUITE_P(DeepFm, CtrModelContract, testing::Values(DeepFm()), NameOfKind);

// What the contract varies.
struct CtrModelSettings {
  int32_t num_dense = 4;
  std::vector<int32_t> over_arch_layer_sizes = {7, 1};
  float dropout = 0;
  uint64_t seed = 11;
  int64_t max_batch_size = 8;
};

// One kind of model; KindOf makes it.
struct CtrModelKind {
  std::string name;
  std::string model_name;  // CtrModel::name
  int64_t width = 0;       // of a sample's embeddings
  int64_t num_tasks = 1;
  std::function<absl::StatusOr<std::unique_ptr<CtrModel>>(const CtrModelSettings&)> create;
  // Draws the parameters that start as zeros, which would hide mistakes. Null: there are none.
  std::function<void(CtrModel&, RandomStream&)> randomize;
  // The logits of a batch of this model.
  std::function<BatchReference(const CtrModel&, const CtrModelSettings&)> reference;
  // The ranges of gradients in the order in which Backward finishes them.
  std::function<Ranges(const CtrModel&)> layers;

  ModelBatch Batch(const CtrModelSettings& settings, int64_t size, uint64_t seed) const {
    return RandomModelBatch(size, settings.num_dense, width, seed, num_tasks);
  }
};
// A kind that Model creates from these options, with the members of CtrModelSettings as the
// contract wants them. logits: [B, T] of a batch by the text of the paper, in double.
template <typename Model, typename Options>
CtrModelKind KindOfBatch(
    const std::string& name, int64_t width, const Options& base,
    const std::function<std::vector<double>(const GraphModel&, const Options&, int64_t batch_size,
                                            const double* parameters, const float* dense,
                                            const double* embeddings)>& logits,
    const std::function<Ranges(const GraphModel&)>& layers,
    const std::function<void(GraphModel&, RandomStream&)>& randomize = nullptr) {
  const auto options_of = [base](const CtrModelSettings& settings) {
    Options options = base;
    options.num_dense = settings.num_dense;
    options.over_arch_layer_sizes = settings.over_arch_layer_sizes;
    options.dropout = settings.dropout;
    options.seed = settings.seed;
    options.max_batch_size = settings.max_batch_size;
    return options;
  };
  CtrModelKind kind;
  kind.name = name;
  kind.width = width;
  if constexpr (requires { base.num_tasks; }) kind.num_tasks = base.num_tasks;
  kind.create = [=](const CtrModelSettings& settings) {
    return Model::Create(options_of(settings));
  };
  if (randomize) {
    kind.randomize = [=](CtrModel& model, RandomStream& random) {
      randomize(static_cast<GraphModel&>(model), random);
    };
  }
  kind.reference = [=](const CtrModel& model, const CtrModelSettings& settings) {
    return [logits, &model = static_cast<const GraphModel&>(model), options = options_of(settings)](
               int64_t batch_size, const double* parameters, const float* dense,
               const double* embeddings) {
      return logits(model, options, batch_size, parameters, dense, embeddings);
    };
  };
  kind.layers = [=](const CtrModel& model) {
    return layers(static_cast<const GraphModel&>(model));
  };
  return kind;
}
// The same where the logit of a sample follows from that sample.
template <typename Model, typename Options>
CtrModelKind KindOf(const std::string& name, int64_t width, const Options& base,
                    double (*logit)(const GraphModel&, const Options&, const double* parameters,
                                    const float* dense, const double* embeddings),
                    const std::function<Ranges(const GraphModel&)>& layers,
                    const std::function<void(GraphModel&, RandomStream&)>& randomize = nullptr) {
  return KindOfBatch<Model, Options>(
      name, width, base,
      [logit, width](const GraphModel& model, const Options& options, int64_t batch_size,
                     const double* parameters, const float* dense, const double* embeddings) {
        const LogitReference one = [&](const double* p, const float* d, const double* e) {
          return logit(model, options, p, d, e);
        };
        return EachSample(one, options.num_dense, width)(batch_size, parameters, dense, embeddings);
      },
      layers, randomize);
}
inline void PrintTo(const CtrModelKind& kind, std::ostream* out) { *out << kind.name; }
inline std::string NameOfKind(const testing::TestParamInfo<CtrModelKind>& info) {
  return info.param.name;
}

// Forward against the reference in double, and each derivative against its central difference.
inline void CheckAgainstReference(const CtrModelKind& kind, const CtrModelSettings& settings,
                                  int64_t batch_size, uint64_t seed) {
  SCOPED_TRACE(kind.name);
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<CtrModel> model, kind.create(settings));
  RandomStream random(seed, RandomPurpose::kTest, 1);
  if (kind.randomize) kind.randomize(*model, random);
  CheckModel(*model, kind.Batch(settings, batch_size, seed), kind.reference(*model, settings));
}

class CtrModelContract : public testing::TestWithParam<CtrModelKind> {
 protected:
  static std::unique_ptr<CtrModel> New(const CtrModelSettings& settings) {
    absl::StatusOr<std::unique_ptr<CtrModel>> model = GetParam().create(settings);
    HOTROW_EXPECT_OK(model);
    return *std::move(model);
  }
};

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_MODELS_CTR_MODEL_CONTRACT_H_
