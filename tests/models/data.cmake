# The readers and generators of click data, the metrics and the progress line.
hotrow_add_test(
  NAME models_data_test
  WHOLE
  NO_TSAN
  SOURCES data_source_test.cc
          metrics_test.cc
          permutation_test.cc
          progress_test.cc
          step_times_test.cc
          synthetic_test.cc
          zipf_test.cc
  DEPS hotrow::models util)
