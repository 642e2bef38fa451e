hotrow_add_bench(
  NAME serving_disk_bench
  SOURCES serving_disk_bench.cc
  DEPS hotrow::models absl::strings)
