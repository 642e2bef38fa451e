# The kernels against the CPU's loops.
set(_cuda_sources
    batch_norm_cuda_test.cc
    bce_loss_cuda_test.cc
    cin_products_cuda_test.cc
    columns_cuda_test.cc
    cross_network_cuda_test.cc
    crossing_cuda_test.cc
    cublaslt_test.cc
    dense_optimizer_cuda_test.cc
    dot_interaction_cuda_test.cc
    dropout_cuda_test.cc
    fm_interaction_cuda_test.cc
    fused_sparse_update_cuda_test.cu
    gated_experts_cuda_test.cc
    gather_cuda_test.cu
    gemm_epilogue_cuda_test.cc
    gemm_products_cuda_test.cc
    gradient_norm_cuda_test.cc
    gradient_segment_sum_cuda_test.cu
    key_rows_cuda_test.cu
    linear_term_cuda_test.cc
    loss_scale_cuda_test.cc
    mlp_bf16_cuda_test.cc
    mlp_cuda_test.cc
    ordered_sum_cuda_test.cu
    outer_product_cuda_test.cc
    owner_parts_cuda_test.cu
    padded_dot_cuda_test.cc
    partition_cuda_test.cu
    pooled_lookup_cuda_test.cu
    row_codec_cuda_test.cu
    row_init_cuda_test.cu
    scan_cuda_test.cu
    sparse_optimizer_cuda_test.cu
    split_slots_cuda_test.cu
    target_attention_cuda_test.cc
    tell_host_cuda_test.cu
    unique_cuda_test.cu)
if(HOTROW_EMULATED_GPU)
  list(REMOVE_ITEM _cuda_sources cublaslt_test.cc)  # has its own cublasLt
endif()
if(HOTROW_HAVE_CUDA)
  hotrow_add_test(
    NAME ops_cuda_test
    CUDA_SOURCES ${_cuda_sources}
    DEPS hotrow::ops
    LABELS gpu)
endif()
