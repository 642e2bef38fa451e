#ifndef HOTROW_EMBEDDING_COLLECTION_METRICS_H_
#define HOTROW_EMBEDDING_COLLECTION_METRICS_H_

#include <string>

#include "base/exposition.h"
#include "embedding/stats.h"

// What an EmbeddingCollection counts, as Prometheus reads it. docs/metrics.md has all of it.

namespace hotrow {

// For one's own training loop, on the thread that calls the collection:
//
//   text = MetricsText(tables->Stats());
//
// Stats waits for nobody and resets nothing, so this may be called between any two steps; once a
// second is often. The text, kept behind a mutex or as a shared_ptr, may then be served by another
// thread (TextServer, base/text_server.h) or written to a file.
std::string MetricsText(const EmbeddingStats& stats);

// The same as families of a text that has others, too, whose names must not be hotrow's.
void AppendMetrics(const EmbeddingStats& stats, ExpositionWriter* out);

}  // namespace hotrow

#endif  // HOTROW_EMBEDDING_COLLECTION_METRICS_H_
