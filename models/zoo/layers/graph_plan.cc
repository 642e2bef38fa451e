#include <algorithm>
#include <limits>
#include <utility>

#include "base/buffer.h"
#include "base/check.h"
#include "base/math.h"
#include "models/zoo/layers/graph_plan_impl.h"

namespace hotrow::internal {
namespace {

using Kind = GraphNode::Kind;
using Place = Location::Place;

constexpr int64_t kFloatsPerLine = kBufferAlignment / static_cast<int64_t>(sizeof(float));
// Buffers begin at a page each.
constexpr int64_t kFloatsPerPage = 4096 / static_cast<int64_t>(sizeof(float));

// Columns [first, first + shape.width()) of a row that lies somewhere.
Location Slice(const Location& row, int64_t first, const TensorShape& shape) {
  Location out = row;
  out.offset += first;
  out.shape = shape;
  out.field_stride = shape.dim;
  out.room = 0;  // others lie behind it
  return out;
}

bool SamePlace(const Location& a, const Location& b) {
  return a.place == b.place && a.buffer == b.buffer && a.offset == b.offset;
}

class Planner {
 public:
  Planner(std::span<const GraphNode> nodes, const GraphInputs& inputs)
      : nodes_(nodes),
        inputs_(inputs),
        readers_(nodes.size()),
        reads_embeddings_(nodes.size()),
        wants_gradient_(nodes.size()),
        values_(nodes.size()),
        gradients_(nodes.size()),
        owned_(nodes.size(), true),
        written_(nodes.size()),
        touched_(static_cast<size_t>(inputs.num_sparse) *
                 static_cast<size_t>(inputs.table_columns)) {}

  GraphPlan Plan() {
    FollowInputs();
    PlaceParameters();
    PlaceValues();
    PlanForward();
    PlanBackward();
    PlaceBuffers();
    for (size_t n = 0; n < nodes_.size(); ++n) {
      if (nodes_[n].layer == nullptr) continue;
      nodes_[n].layer->Describe(reads_embeddings_[n], &plan_.layers);
    }
    return std::move(plan_);
  }

 private:
  struct Buffer {
    int64_t floats = 0;
    int first = std::numeric_limits<int>::max();  // step of a pass forward and back that uses it
    int last = -1;
  };

  const GraphNode& node(int32_t n) const { return nodes_[static_cast<size_t>(n)]; }
  Location& value(int32_t n) { return values_[static_cast<size_t>(n)]; }
  Location& gradient(int32_t n) { return gradients_[static_cast<size_t>(n)]; }
  int32_t size() const { return static_cast<int32_t>(nodes_.size()); }

  void FollowInputs() {
    for (int32_t n = 0; n < size(); ++n) {
      const auto i = static_cast<size_t>(n);
      const bool reads_sequences =
          nodes_[i].layer != nullptr && nodes_[i].layer->traits().sequences;
      reads_embeddings_[i] = nodes_[i].kind == Kind::kEmbeddings || reads_sequences;
      wants_gradient_[i] = reads_embeddings_[i] || nodes_[i].num_parameters() > 0;
      for (const int32_t input : nodes_[i].inputs) {
        readers_[static_cast<size_t>(input)].push_back(n);
        if (reads_embeddings_[static_cast<size_t>(input)]) reads_embeddings_[i] = true;
        if (wants_gradient_[static_cast<size_t>(input)]) wants_gradient_[i] = true;
      }
    }
  }

  void PlaceParameters() {
    plan_.parameter_offsets.resize(nodes_.size());
    int64_t end = 0;
    for (size_t n = 0; n < nodes_.size(); ++n) {
      const bool begins_block = nodes_[n].num_parameters() > 0 && !nodes_[n].joins_previous;
      if (begins_block) end = RoundUp(end, kFloatsPerLine);
      plan_.parameter_offsets[n] = end;
      end += nodes_[n].num_parameters();
    }
    plan_.num_parameters = RoundUp(end, kFloatsPerLine);
  }

  // --- where things lie ---

  // padded: columns of a row, where they are more than the shape has.
  Location NewBuffer(const TensorShape& shape, int64_t padded = 0) {
    const int64_t width = std::max(shape.width(), padded);
    // A column stays one column: products of it are those of a vector.
    const int64_t stride = width == 1 ? 1 : RoundUp(width, kFloatsPerLine);
    buffers_.push_back({.floats = RoundUp(stride * inputs_.max_batch_size, kFloatsPerPage)});
    return {.place = Place::kArena,
            .buffer = static_cast<int32_t>(buffers_.size()) - 1,
            .row_stride = stride,
            .shape = shape,
            .field_stride = shape.dim,
            .room = stride};
  }

  // An input of the model, or its gradient.
  Location External(const GraphNode& input) const {
    if (input.kind == Kind::kDense) {
      return {.place = Place::kDense,
              .row_stride = inputs_.num_dense,
              .shape = input.shape,
              .field_stride = input.shape.dim};
    }
    return {.place = Place::kEmbeddings,
            .offset = int64_t{input.first_field} * inputs_.table_columns + input.first_column,
            .row_stride = int64_t{inputs_.num_sparse} * inputs_.table_columns,
            .shape = input.shape,
            .field_stride = inputs_.table_columns};
  }

  static int64_t PaddedColumns(const GraphNode& node) {
    return node.layer == nullptr ? 0 : node.layer->traits().padded_columns;
  }
  // Whether it may be written in the middle of other columns.
  static bool FitsInSlice(const GraphNode& node) {
    return PaddedColumns(node) <= node.shape.width();
  }
  static bool IsInput(const GraphNode& node) {
    return node.kind == Kind::kDense || node.kind == Kind::kEmbeddings;
  }

  // Those that read a value are placed before it, so that it can go straight into their place.
  void PlaceValues() {
    const TensorShape logits = node(size() - 1).shape;
    value(size() - 1) = {.place = Place::kLogits,
                         .row_stride = logits.dim,
                         .shape = logits,
                         .field_stride = logits.dim};
    for (int32_t n = size(); n-- > 0;) {
      const GraphNode& at = node(n);
      if (IsInput(at)) {
        value(n) = External(at);
        continue;
      }
      if (!value(n).there()) value(n) = NewBuffer(at.shape, PaddedColumns(at));
      if (at.kind == Kind::kConcat) {
        int64_t column = 0;
        for (const int32_t input : at.inputs) {
          if (!IsInput(node(input)) && FitsInSlice(node(input)) && !value(input).there()) {
            value(input) = Slice(value(n), column, node(input).shape);
          }
          column += node(input).shape.width();
        }
      } else if (at.kind == Kind::kSum) {
        // Not a concatenation, whose parts, which others may read, would lie in it.
        const int32_t first = at.inputs.front();
        const bool is_free = !IsInput(node(first)) && node(first).kind != Kind::kConcat &&
                             FitsInSlice(node(first)) && !value(first).there();
        if (is_free && readers_[static_cast<size_t>(first)].size() == 1) {
          value(first) = Slice(value(n), 0, node(first).shape);
        }
      }
    }
  }

  // Says that the step that is being planned uses it.
  void Use(const Location& location) { UseAt(location, time_); }
  void UseAt(const Location& location, int time) {
    if (location.place != Place::kArena) return;
    Buffer& buffer = buffers_[static_cast<size_t>(location.buffer)];
    buffer.first = std::min(buffer.first, time);
    buffer.last = std::max(buffer.last, time);
  }

  // --- forward ---

  void PlanForward() {
    for (const bool with_embeddings : {false, true}) {
      for (int32_t n = 0; n < size(); ++n) {
        if (IsInput(node(n))) continue;
        if (reads_embeddings_[static_cast<size_t>(n)] != with_embeddings) continue;
        (with_embeddings ? plan_.with_embeddings : plan_.before_embeddings).push_back(Forward(n));
        ++time_;
      }
    }
  }

  ForwardStep Forward(int32_t n) {
    const GraphNode& at = node(n);
    ForwardStep step = {.node = n, .output = value(n)};
    Use(value(n));
    int64_t column = 0;
    bool is_first = true;
    for (const int32_t input : at.inputs) {
      const Location& from = value(input);
      Use(from);
      if (at.kind == Kind::kLayer) step.inputs.push_back(from);
      if (at.kind == Kind::kConcat) {
        const Location to = Slice(value(n), column, node(input).shape);
        if (!SamePlace(from, to)) step.moves.push_back({Move::Kind::kCopy, from, to});
        column += node(input).shape.width();
      }
      if (at.kind == Kind::kSum && !SamePlace(from, value(n))) {
        step.moves.push_back({is_first ? Move::Kind::kCopy : Move::Kind::kAdd, from, value(n)});
      }
      is_first = false;
    }
    return step;
  }

  // --- back ---

  // First all that the gradient of the embeddings needs. Then the gradients of the parameters, the
  // last ones first, and between them what leads to those that are not above embeddings.
  void PlanBackward() {
    gradient(size() - 1) = value(size() - 1);
    for (int32_t n = size(); n-- > 0;) {
      if (IsInput(node(n)) || !reads_embeddings_[static_cast<size_t>(n)]) continue;
      plan_.to_embeddings.push_back(Backward(n, /*inputs=*/true, /*parameters=*/false));
      ++time_;
    }
    BackwardStep rest;  // columns that nothing has read
    ZeroUntouched(0, static_cast<int64_t>(touched_.size()), &rest.after);
    if (!rest.after.empty()) plan_.to_embeddings.push_back(std::move(rest));

    int64_t ready = plan_.num_parameters;
    for (int32_t n = size(); n-- > 0;) {
      const auto i = static_cast<size_t>(n);
      const bool has_parameters = nodes_[i].num_parameters() > 0;
      const bool is_above = reads_embeddings_[i];
      if (IsInput(nodes_[i]) || !(is_above ? has_parameters : wants_gradient_[i])) continue;
      BackwardStep step = Backward(n, /*inputs=*/!is_above, has_parameters);
      if (has_parameters && !nodes_[i].joins_previous) {
        const int64_t begin = plan_.parameter_offsets[i];
        if (!nodes_[i].layer->traits().reports_gradients) {
          step.ready_begin = begin;
          step.ready_end = ready;
        }
        ready = begin;
      }
      plan_.to_parameters.push_back(std::move(step));
      ++time_;
    }
  }

  BackwardStep Backward(int32_t n, bool inputs, bool parameters) {
    const GraphNode& at = node(n);
    BackwardStep step = {.node = n,
                         .inputs = inputs && at.kind == Kind::kLayer,
                         .parameters = parameters,
                         .output_gradient = gradient(n)};
    HOTROW_CHECK(gradient(n).there());  // who reads a value has gone back before
    if (inputs) Use(gradient(n));
    if (at.kind == Kind::kConcat) SplitGradient(n, &step.after);
    if (at.kind == Kind::kSum) SpreadGradient(n, &step.after);
    if (at.kind != Kind::kLayer) return step;
    const LayerTraits traits = at.layer->traits();
    if (traits.gradient_until == LayerPhase::kBackwardParameters) Use(gradient(n));
    // The phases of the layers that read embeddings are far apart.
    const bool reads_inputs = traits.inputs_until == LayerPhase::kBackwardParameters ||
                              (inputs && traits.inputs_until == LayerPhase::kBackwardInputs);
    for (const int32_t input : at.inputs) {
      step.values.push_back(value(input));
      if (reads_inputs) Use(value(input));
    }
    if (inputs) {
      for (const int32_t input : at.inputs) {
        step.input_gradients.push_back(Contribute(input, &step.before, &step.after));
      }
      written_[static_cast<size_t>(n)] = step.input_gradients;
    } else {
      step.input_gradients = written_[static_cast<size_t>(n)];
    }
    return step;
  }

  // Where a layer shall write its share of the gradient of `input`; nowhere if nobody wants it.
  Location Contribute(int32_t input, std::vector<Move>* before, std::vector<Move>* after) {
    if (!wants_gradient_[static_cast<size_t>(input)]) return {};
    if (node(input).kind == Kind::kEmbeddings) {
      const Location all = External(node(input));
      if (CountTouched(all) == 0) {
        SetTouched(all);
        return all;
      }
      ZeroUntouchedOf(all, before);
      return AddBehind(all, after);
    }
    if (!gradient(input).there()) {
      gradient(input) = NewBuffer(node(input).shape, PaddedColumns(node(input)));
      Use(gradient(input));
      return gradient(input);
    }
    Use(gradient(input));
    return AddBehind(gradient(input), after);
  }

  Location AddBehind(const Location& to, std::vector<Move>* after) {
    const Location scratch = NewBuffer(to.shape);
    Use(scratch);
    after->push_back({Move::Kind::kAdd, scratch, to});
    return scratch;
  }

  // Passes a gradient that lies somewhere on to where that of `input` is.
  void Pass(const Location& from, int32_t input, std::vector<Move>* moves) {
    Location to;
    Move::Kind kind = Move::Kind::kAdd;
    if (node(input).kind == Kind::kEmbeddings) {
      to = External(node(input));
      if (CountTouched(to) == 0) {
        kind = Move::Kind::kCopy;
        SetTouched(to);
      } else {
        ZeroUntouchedOf(to, moves);
      }
    } else {
      if (!gradient(input).there()) {
        kind = Move::Kind::kCopy;
        gradient(input) = NewBuffer(node(input).shape, PaddedColumns(node(input)));
      }
      to = gradient(input);
      Use(to);
    }
    moves->push_back({kind, from, to});
  }

  // A part of the concatenation may keep its slice as its own gradient.
  void SplitGradient(int32_t n, std::vector<Move>* moves) {
    int64_t column = 0;
    for (const int32_t input : node(n).inputs) {
      const Location slice = Slice(gradient(n), column, node(input).shape);
      column += node(input).shape.width();
      if (!wants_gradient_[static_cast<size_t>(input)]) continue;
      if (!IsInput(node(input)) && FitsInSlice(node(input)) && !gradient(input).there() &&
          owned_[static_cast<size_t>(n)]) {
        gradient(input) = slice;
      } else {
        Pass(slice, input, moves);
      }
    }
  }

  // All terms have the gradient of the sum. Those that only read it, and nothing else adds to,
  // share it.
  void SpreadGradient(int32_t n, std::vector<Move>* moves) {
    const std::vector<int32_t>& terms = node(n).inputs;
    const bool alone = terms.size() == 1 && owned_[static_cast<size_t>(n)];
    for (const int32_t term : terms) {
      const auto i = static_cast<size_t>(term);
      if (!wants_gradient_[i]) continue;
      const GraphNode& of = nodes_[i];
      const bool reads_only =
          of.kind == Kind::kSum || (of.kind == Kind::kLayer && FitsInSlice(of) &&
                                    (alone || !of.layer->traits().overwrites_gradient));
      if (reads_only && readers_[i].size() == 1 && !gradient(term).there()) {
        gradient(term) = Slice(gradient(n), 0, of.shape);
        owned_[i] = alone;
      } else {
        Pass(gradient(n), term, moves);
      }
    }
  }

  // --- columns of the embeddings' gradient that have been written ---

  template <typename Function>
  void ForColumns(const Location& location, const Function& function) {
    for (int64_t f = 0; f < location.shape.fields; ++f) {
      const int64_t first = location.offset + f * location.field_stride;
      for (int64_t c = first; c < first + location.shape.dim; ++c) function(static_cast<size_t>(c));
    }
  }
  int64_t CountTouched(const Location& location) {
    int64_t count = 0;
    ForColumns(location, [&](size_t c) { count += touched_[c] ? 1 : 0; });
    return count;
  }
  void SetTouched(const Location& location) {
    ForColumns(location, [&](size_t c) { touched_[c] = true; });
  }
  void ZeroUntouchedOf(const Location& location, std::vector<Move>* moves) {
    for (int64_t f = 0; f < location.shape.fields; ++f) {
      const int64_t first = location.offset + f * location.field_stride;
      ZeroUntouched(first, first + location.shape.dim, moves);
    }
  }
  void ZeroUntouched(int64_t begin, int64_t end, std::vector<Move>* moves) {
    while (begin < end) {
      const bool touched = touched_[static_cast<size_t>(begin)];
      int64_t run = begin;
      for (; run < end && touched_[static_cast<size_t>(run)] == touched; ++run) {
        touched_[static_cast<size_t>(run)] = true;
      }
      if (!touched) {
        const TensorShape shape = {1, static_cast<int32_t>(run - begin)};
        moves->push_back({Move::Kind::kZero,
                          {},
                          {.place = Place::kEmbeddings,
                           .offset = begin,
                           .row_stride = static_cast<int64_t>(touched_.size()),
                           .shape = shape,
                           .field_stride = shape.dim}});
      }
      begin = run;
    }
  }

  // --- the arena ---

  // Each buffer at the first place where it meets none that is in use at the same time.
  void PlaceBuffers() {
    std::vector<size_t> order(buffers_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::stable_sort(
        order, [&](size_t a, size_t b) { return buffers_[a].first < buffers_[b].first; });
    plan_.buffer_offsets.resize(buffers_.size());
    std::vector<size_t> placed;  // by offset
    for (const size_t i : order) {
      int64_t offset = 0;
      for (const size_t other : placed) {
        if (buffers_[other].last < buffers_[i].first || buffers_[i].last < buffers_[other].first) {
          continue;
        }
        if (plan_.buffer_offsets[other] - offset >= buffers_[i].floats) break;
        offset = std::max(offset, plan_.buffer_offsets[other] + buffers_[other].floats);
      }
      plan_.buffer_offsets[i] = offset;
      plan_.arena_floats = std::max(plan_.arena_floats, offset + buffers_[i].floats);
      placed.insert(std::ranges::upper_bound(placed, offset, {},
                                             [&](size_t p) { return plan_.buffer_offsets[p]; }),
                    i);
    }
  }

  const std::span<const GraphNode> nodes_;
  const GraphInputs inputs_;
  std::vector<std::vector<int32_t>> readers_;
  std::vector<bool> reads_embeddings_;  // directly or by way of others
  std::vector<bool> wants_gradient_;    // leads back to embeddings or parameters
  std::vector<Location> values_;
  std::vector<Location> gradients_;
  std::vector<bool> owned_;                     // no other term of a sum has the same gradient
  std::vector<std::vector<Location>> written_;  // input gradients, by node
  std::vector<bool> touched_;                   // columns of the embeddings' gradient
  std::vector<Buffer> buffers_;
  int time_ = 0;
  GraphPlan plan_;
};

}  // namespace

GraphPlan PlanGraph(std::span<const GraphNode> nodes, const GraphInputs& inputs) {
  return Planner(nodes, inputs).Plan();
}

}  // namespace hotrow::internal
