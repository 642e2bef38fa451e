# The readers of click logs in files. Those of real data skip where the data is not there.
hotrow_add_test(
  NAME readers_test
  NO_TSAN
  SOURCES criteo_npy_test.cc
          file_kinds_test.cc
          file_source_test.cc
          npy_test.cc
          packed_source_test.cc
          real_data_test.cc
          sample_block_test.cc
          slice_batch_test.cc
          table_reader_test.cc
          table_schema_test.cc
          text_forms_test.cc
          vocabulary_test.cc
          windowed_source_test.cc
          zip_archive_test.cc
  DEPS hotrow::models ZLIB::ZLIB)
target_compile_definitions(readers_test PRIVATE HOTROW_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
