#ifndef HOTROW_TESTS_TOOLS_SERVE_SERVE_MODEL_H_
#define HOTROW_TESTS_TOOLS_SERVE_SERVE_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/data/ctr_batch.h"
#include "models/serving/scorer.h"

namespace hotrow::test {

// A DLRM of lines "click,price,age,user,item,tags": 2 dense features, and 3 others, of which tags
// have bags of 0 to 4 keys; user has num_embeddings. Trained once a process, for some steps.
const std::string& ServedModelDir();

// A new Scorer of it.
std::shared_ptr<const Scorer> OpenServedModel();

// Samples that fit it, drawn from a seed.
struct ServedSamples {
  int64_t batch_size = 0;
  std::vector<std::vector<std::vector<uint64_t>>> bags;  // [feature][sample][keys]
  std::vector<float> dense;                              // [samples, 2]
  std::vector<std::string> lines;                        // other samples

  static ServedSamples Draw(uint64_t seed, int64_t batch_size);
  // The logits of the Scorer itself.
  std::vector<float> Logits(const Scorer& scorer) const;
  std::vector<float> LineLogits(const Scorer& scorer) const;
  // The body of an infer request for them, with all in JSON.
  std::string Json() const;
  std::string LinesJson() const;
  // The same with binary tensors, and the length of its JSON.
  std::string Binary(int64_t* json_bytes) const;
};

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_TOOLS_SERVE_SERVE_MODEL_H_
