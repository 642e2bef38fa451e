hotrow_add_bench(NAME cache_load_bench SOURCES cache_load_bench.cc DEPS hotrow::cache)
