#ifndef HOTROW_TESTS_EMULATED_GPU_EMULATED_NCCL_H_
#define HOTROW_TESTS_EMULATED_GPU_EMULATED_NCCL_H_

// NCCL between ranks that are threads of this process, over the memory of the emulated GPU: what
// comm/nccl_communicator.cc calls, so that many ranks are tested where there is no GPU.
//
// Streams: a call is a piece of work of its stream, done when all ranks that it needs have come to
//          theirs; until then the stream waits, for ever if one does not come. Calls of a
//          communicator run in the order in which they were made, on any streams.
// Calls:   of a communicator with blocking = 0 now and then return ncclInProgress, as NCCL's may.
// Sums:    begin with another rank in each part of the data, as those of a ring do. So who counts
//          on the order of ranks gets other bits.
// Abort:   ends what waits on this rank alone; the others wait on, until they abort too.
// Errors:  what NCCL leaves undefined ends the process with a message: counts or calls of two ranks
//          that do not fit, memory that the device does not reach.
// Missing: several ranks' kernels that wait for each other's place on one GPU; networks; speed.
//          NCCL refuses two ranks on one GPU, and this does not.

namespace hotrow::emulated {

// From now on every communicator of that rank says it has this ncclResult_t; 0 ends it.
void SetNcclError(int rank, int result);

// Communicators that live: none after a test that leaks none.
int NumNcclCommunicators();

}  // namespace hotrow::emulated

#endif  // HOTROW_TESTS_EMULATED_GPU_EMULATED_NCCL_H_
