hotrow_add_bench(
  NAME mlp_bench
  SOURCES mlp_bench.cc
  DEPS hotrow::ops benchmark::benchmark)

hotrow_add_bench(
  NAME row_codec_bench
  SOURCES row_codec_bench.cc
  DEPS hotrow::ops benchmark::benchmark)
