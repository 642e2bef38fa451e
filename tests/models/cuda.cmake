# The models on a GPU beside the CPU.
if(HOTROW_HAVE_CUDA)
  hotrow_add_test(
    NAME models_cuda_test
    SOURCES dlrm_model_cuda_test.cc step_mailbox_test.cc
    DEPS hotrow::models
    LABELS gpu)
  # The program as a user runs it.
  hotrow_add_test(
    NAME dlrm_gpu_cli_test
    SOURCES dlrm_gpu_cli_test.cc
    DEPS hotrow::base nlohmann_json::nlohmann_json
    LABELS gpu)
  add_dependencies(dlrm_gpu_cli_test dlrm)
endif()
