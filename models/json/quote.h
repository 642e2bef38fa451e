#ifndef HOTROW_MODELS_JSON_QUOTE_H_
#define HOTROW_MODELS_JSON_QUOTE_H_

#include <string>
#include <string_view>

namespace hotrow {

// Quotes text of a file for a message: at most 40 bytes, unprintable ones as \xNN.
std::string QuoteForMessage(std::string_view text);

}  // namespace hotrow

#endif  // HOTROW_MODELS_JSON_QUOTE_H_
