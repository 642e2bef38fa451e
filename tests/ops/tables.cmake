hotrow_add_test(
  NAME ops_tables_test
  SOURCES affine_rows_test.cc
          fused_sparse_update_test.cc
          gather_test.cc
          gradient_segment_sum_test.cc
          half_test.cc
          key_rows_test.cc
          owner_parts_test.cc
          launch_impl_test.cc
          partition_test.cc
          pooled_lookup_test.cc
          row_codec_test.cc
          row_init_test.cc
          row_layout_test.cc
          row_tiles_test.cc
          sparse_optimizer_test.cc
          split_slots_test.cc
          tell_host_test.cc
          unique_test.cc
  DEPS hotrow::ops)
