#ifndef HOTROW_MODELS_ONNX_PRODUCER_VERSION_H_
#define HOTROW_MODELS_ONNX_PRODUCER_VERSION_H_

#include <string_view>

namespace hotrow {

// Of this build of hotrow, as ModelProto.producer_version has it.
std::string_view OnnxProducerVersion();

}  // namespace hotrow

#endif  // HOTROW_MODELS_ONNX_PRODUCER_VERSION_H_
