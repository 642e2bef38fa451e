#ifndef HOTROW_BASE_ENTROPY_H_
#define HOTROW_BASE_ENTROPY_H_

#include <cstdint>

namespace hotrow {

// 64 unpredictable bits from the system's generator: for seeds of hashes, so that nobody can choose
// keys that collide, and for identities. Results must not depend on them; random numbers of a run
// come from base/philox.h.
//
// Without a system generator the bits are made of the clock and of addresses, which are still
// harder to predict than a constant.
uint64_t EntropyBits();

}  // namespace hotrow

#endif  // HOTROW_BASE_ENTROPY_H_
