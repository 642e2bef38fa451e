# The models on a GPU beside the CPU.
if(HOTROW_HAVE_CUDA)
  hotrow_add_test(
    NAME models_cuda_test
    SOURCES dlrm_model_cuda_test.cc
    DEPS hotrow::models
    LABELS gpu)
endif()
