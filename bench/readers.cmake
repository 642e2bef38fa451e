hotrow_add_bench(
  NAME readers_bench
  SOURCES readers_bench.cc
  DEPS hotrow::models absl::strings)
hotrow_add_bench(
  NAME feed_bench
  SOURCES feed_bench.cc ${PROJECT_SOURCE_DIR}/tests/support/lagging_streams.cc
  DEPS hotrow::models absl::strings)
