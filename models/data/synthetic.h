#ifndef HOTROW_MODELS_DATA_SYNTHETIC_H_
#define HOTROW_MODELS_DATA_SYNTHETIC_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/data/data_source.h"

namespace hotrow {

// The options of "synthetic:key=value,...". A field is the key of its name; hotness_min and
// hotness_max are hotness=4 or hotness=0-8.
struct SyntheticOptions {
  int64_t tables = 26;
  int64_t rows = 100'000;  // of each table
  double zipf = 1.05;      // exponent of the popularity of ids; 0 = uniform
  int64_t hotness_min = 1;
  int64_t hotness_max = 1;
  int64_t dense = 13;
  int64_t shared = 0;  // further features that look up table 0
  int64_t samples = 1'000'000;
  int64_t valid = -1;    // -1: a tenth of samples, within [20k, 100k]
  int64_t test = -1;     // the same
  int64_t drift = 0;     // ids of each table that become popular while training goes on
  int64_t seconds = 0;   // of time that the training samples span; 0: they have none
  int64_t resident = 0;  // training samples drawn once and used again and again; 0: see below
  uint64_t seed = 0;

  int64_t features() const { return tables + shared; }
  absl::Status Validate() const;  // names the key, what was found and what is expected
};

// `text` follows "synthetic:" and may be empty. Its own seed wins over `seed`.
// Whole numbers may end in k, M or G (10^3, 10^6, 10^9).
absl::StatusOr<SyntheticOptions> ParseSyntheticOptions(std::string_view text, uint64_t seed);

// The keys with their defaults, for --help.
std::string SyntheticHelp();

// Click data drawn from a planted model, so that the best possible AUC is known. Nothing is stored:
// a sample is a pure function of (seed, split, sample number); an epoch is a pseudo-random order of
// the training samples, a function of (seed, epoch).
//
// Ids:   rank r of a table is looked up with probability proportional to (r + 1)^-zipf; its id is
//        the image of r under a permutation of [0, rows), one per table. Features are independent.
//        The number of lookups of a bag is uniform in [hotness_min, hotness_max].
// Dense: independent, bell-shaped, mean 0 and variance 1.
// Label: 1 with probability 1 / (1 + exp(-logit)), which is CtrBatch::true_probability.
//
//   logit      = bias + scale * (dense_part + id_part + pair_part)
//   dense_part = sqrt(kDenseVariance) * w . x, with |w| = 1
//   id_part    = sqrt(kIdVariance / features) * sum over features of e(bag)
//   pair_part  = sqrt(kPairVariance * kLatentDim / pairs) * sum over pairs of u(bag) . u(bag'),
//                the pairs being features (0, 1), (2, 3) and so on up to kMaxPairs
//
// where e(bag) and u(bag) [kLatentDim] are sums over the ids of the bag, divided by the square root
// of the mean hotness (sums, so that a model that pools by sum can express them). e(id) has
// variance fade(r)^2 and u(id) has E|u|^2 = fade(r)^4, with fade(r) = 1 / (1 + r / kFadeRank). Rare
// ids cannot be learnt, so dense features and hot ids carry nearly all of the signal, and pairs of
// very hot ids the interactions.
//
// bias and scale are set from a fixed set of calibration samples so that the click rate is
// kClickRate and the logit has the standard deviation kLogitDeviation: the best AUC is near 0.8 for
// any other keys. scale is at most kMaxScale, so that a signal that cannot be learnt stays weak.
//
// drift > 0 is for what production logs have: new ids come, and old ones fade. The training samples
// come in the order of their numbers, and while they do, `drift` ids of each table, one after
// another, get rank 0 and move all others one rank down; the id that gets it had the last rank. e
// and u stay with their id, fade goes with its rank. A second epoch goes on where the first one
// ended; validation and test data are of the end of the first.
//
// seconds > 0: the training samples come in the order of their numbers, too, and their times run
// evenly from the beginning of 1970 over so many seconds; those of validation and test are the end.
//
// resident > 0 is for measuring what is faster than drawing samples. The training samples are the
// first `resident` ones, in the order of their numbers, over and over through all epochs, and are
// kept in memory. The first time they are as drawn. Each further pass looks up other ids, as often
// as before (RankRotation of the ranks of each table, a function of seed, pass and table), with the
// same dense features, labels and probabilities: so a model learns what the ids say in the first
// pass alone. Validation and test data are drawn as ever.
absl::StatusOr<std::unique_ptr<DataSource>> OpenSynthetic(const SyntheticOptions& options);

}  // namespace hotrow

#endif  // HOTROW_MODELS_DATA_SYNTHETIC_H_
