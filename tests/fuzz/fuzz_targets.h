#ifndef HOTROW_TESTS_FUZZ_FUZZ_TARGETS_H_
#define HOTROW_TESTS_FUZZ_FUZZ_TARGETS_H_

#include <cstddef>
#include <cstdint>

// What libFuzzer calls with inputs of its own, and fuzz_corpus_test with a few nasty ones. Any
// input must end in samples or a status; an abort, a sanitizer's report or a hang is a bug.
namespace hotrow::fuzz {

void Table(const uint8_t* data, size_t size);        // first byte: which schema; then text
void Gzip(const uint8_t* data, size_t size);         // a compressed file
void NpyHeader(const uint8_t* data, size_t size);    // an array file
void ZipArchive(const uint8_t* data, size_t size);   // an archive
void TableSchema(const uint8_t* data, size_t size);  // a schema's JSON

}  // namespace hotrow::fuzz

#endif  // HOTROW_TESTS_FUZZ_FUZZ_TARGETS_H_
