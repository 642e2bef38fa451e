#ifndef HOTROW_MODELS_ZOO_LAYERS_INTERACTION_LAYERS_H_
#define HOTROW_MODELS_ZOO_LAYERS_INTERACTION_LAYERS_H_

#include <string_view>
#include <vector>

#include "models/zoo/layers/model_graph.h"

// Parts without parameters that make products of the vectors of features, on the CPU or a GPU.
// `fields` has a vector of D columns for each of F features.
namespace hotrow {

// DLRM's interaction, see ops/interactions/dot_interaction.h. `inputs` are a vector [B, D] and the
// fields: that vector, then all pairwise dot products of it and the fields, [B, D + (F + 1) F / 2].
// Or they are the fields alone, the first of which is the vector.
GraphValue AddDotInteraction(ModelGraph& graph, std::string_view name,
                             const std::vector<GraphValue>& inputs);

// The second order of a factorization machine, see ops/interactions/fm_interaction.h: [B, 1]. With
// has_first_order the last column of a field is its first-order weight, which is added, and the
// columns before it are its vector.
GraphValue AddFm(ModelGraph& graph, std::string_view name, GraphValue fields,
                 bool has_first_order = false);

// The products <v_i, v_j> of all pairs i > j, in the order of DLRM's interaction: [B, F (F-1) / 2],
// for F >= 2 (Qu et al. 2016, "Product-based Neural Networks for User Response Prediction").
GraphValue AddInnerProducts(ModelGraph& graph, std::string_view name, GraphValue fields);

// The outer product of the sum of the fields' vectors with itself, which the same paper takes in
// place of the sum of all pairs' outer products, see ops/interactions/outer_product.h. The matrix
// is symmetric: its lower triangle row by row, [B, D (D+1) / 2].
GraphValue AddOuterProduct(ModelGraph& graph, std::string_view name, GraphValue fields);

}  // namespace hotrow

#endif  // HOTROW_MODELS_ZOO_LAYERS_INTERACTION_LAYERS_H_
