# The models on a GPU beside the CPU.
if(HOTROW_HAVE_CUDA)
  hotrow_add_test(
    NAME models_cuda_test
    SOURCES graph_model_cuda_test.cc step_mailbox_test.cc trainer_cuda_test.cc
    DEPS hotrow::models
    LABELS gpu)
  # The program as a user runs it.
  hotrow_add_test(
    NAME dlrm_gpu_cli_test
    WHOLE
    SOURCES dlrm_gpu_cli_test.cc
    DEPS hotrow::base nlohmann_json::nlohmann_json
    LABELS gpu)
  add_dependencies(dlrm_gpu_cli_test dlrm)
endif()
# Ranks whose caches lie on devices; in host memory everywhere.
hotrow_add_test(
  NAME models_device_ranks_test
  NO_TSAN
  SOURCES trainer_device_ranks_test.cc
  DEPS hotrow::models
  LABELS gpu
  PROCESSORS 2)
if(HOTROW_HAVE_CUDA)
  target_link_libraries(models_device_ranks_test PRIVATE hotrow_comm_test_device_ranks)
endif()
