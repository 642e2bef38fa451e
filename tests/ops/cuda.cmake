# The kernels against the CPU's loops.
set(_cuda_sources)
if(HOTROW_HAVE_CUDA AND _cuda_sources)
  hotrow_add_test(
    NAME ops_cuda_test
    CUDA_SOURCES ${_cuda_sources}
    DEPS hotrow::ops
    LABELS gpu)
endif()
