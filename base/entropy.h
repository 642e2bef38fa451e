#ifndef HOTROW_BASE_ENTROPY_H_
#define HOTROW_BASE_ENTROPY_H_

#include <cstdint>

namespace hotrow {

// 64 bits that nobody can foresee, from the system's generator. For the seeds of hashes, so that no
// one can choose keys that collide, and for identities. Never for anything that results depend on:
// random numbers that a run must be able to repeat come from base/philox.h.
//
// Where the system has no generator, they are made of the clock and of addresses, which is harder
// to foresee than a constant.
uint64_t EntropyBits();

}  // namespace hotrow

#endif  // HOTROW_BASE_ENTROPY_H_
