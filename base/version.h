#ifndef HOTROW_BASE_VERSION_H_
#define HOTROW_BASE_VERSION_H_

namespace hotrow {

// The version of this build, "1.2.3". Formats have versions besides (base/format_version.h).
const char* Version();

}  // namespace hotrow

#endif  // HOTROW_BASE_VERSION_H_
