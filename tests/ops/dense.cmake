hotrow_add_test(
  NAME ops_dense_test
  NO_TSAN
  SOURCES batch_norm_test.cc
          bce_loss_test.cc
          bf16_test.cc
          cin_products_test.cc
          columns_test.cc
          cross_network_test.cc
          crossing_test.cc
          dense_optimizer_test.cc
          dot_interaction_test.cc
          dropout_test.cc
          fm_interaction_test.cc
          gated_experts_test.cc
          gemm_cuda_test.cc
          gradient_norm_test.cc
          int8_test.cc
          layer_norm_test.cc
          linear_term_test.cc
          loss_scale_test.cc
          mlp_test.cc
          ordered_sum_test.cc
          outer_product_test.cc
          padded_dot_test.cc
          self_attention_test.cc
          silu_test.cc
          target_attention_test.cc
          vec8_test.cc
  DEPS hotrow::ops)
