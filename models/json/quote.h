#ifndef HOTROW_MODELS_JSON_QUOTE_H_
#define HOTROW_MODELS_JSON_QUOTE_H_

#include <string>
#include <string_view>

namespace hotrow {

// Text of a file, in quotes for a message: cut at 40 bytes, unprintable bytes as \xNN.
std::string QuoteForMessage(std::string_view text);

}  // namespace hotrow

#endif  // HOTROW_MODELS_JSON_QUOTE_H_
