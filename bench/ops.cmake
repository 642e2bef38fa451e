hotrow_add_bench(
  NAME mlp_bench
  SOURCES mlp_bench.cc
  DEPS hotrow::ops benchmark::benchmark)
