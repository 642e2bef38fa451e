hotrow_add_bench(
  NAME store_gather_bench
  SOURCES store_gather_bench.cc
  DEPS hotrow::store absl::flat_hash_map absl::strings)
