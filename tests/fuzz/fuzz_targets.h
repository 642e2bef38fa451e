#ifndef HOTROW_TESTS_FUZZ_FUZZ_TARGETS_H_
#define HOTROW_TESTS_FUZZ_FUZZ_TARGETS_H_

#include <cstddef>
#include <cstdint>

// What libFuzzer calls with its own inputs, and fuzz_corpus_test with a few nasty ones. Any
// input must end in samples or a status; an abort, a sanitizer's report or a hang is a bug.
namespace hotrow::fuzz {

void Table(const uint8_t* data, size_t size);        // first byte: which schema; then text
void Gzip(const uint8_t* data, size_t size);         // a compressed file
void NpyHeader(const uint8_t* data, size_t size);    // an array file
void ZipArchive(const uint8_t* data, size_t size);   // an archive
void TableSchema(const uint8_t* data, size_t size);  // a schema's JSON

// What lies in the directory of a model, tests/models/model_fuzz_targets.h.
// A manifest. First byte odd: its checksum is made right before it is read.
void SavedManifest(const uint8_t* data, size_t size);
// The dense file, whose checksum is right. Second bit of the first byte: the length of its header
// is made right. The next eight bytes are the number of parameters, modulo what may be.
void DenseFile(const uint8_t* data, size_t size);
// A manifest of the portable form beside two arrays. First byte odd: it was edited.
void PortableManifest(const uint8_t* data, size_t size);
// A vocabulary. First byte odd: its size and its checksums are made right before it is read.
void VocabularyFile(const uint8_t* data, size_t size);
// A block of packed data, whose checksum is right. First byte: what it has (PackedShape). Second:
// its samples.
void PackedBlock(const uint8_t* data, size_t size);

// What lies in the directory of a chain: its manifest, a delta's, a file of rows. First byte odd:
// the checksums are made right; the others modulo 3: which of these.
void DeltaFiles(const uint8_t* data, size_t size);

// What `hotrow plan` reads, tests/tools/plan_fuzz_targets.h. First byte: a curve, hardware, a spec.
void PlanText(const uint8_t* data, size_t size);

// What `hotrow top` reads: a text of metrics, and the screen of it.
void MetricsText(const uint8_t* data, size_t size);

// What `hotrow serve` reads, tests/tools/serve_fuzz_targets.h: the body of an infer request. First
// byte: 0, none of it is JSON; 1, all is; else what ends with "]}" and a line break.
void InferBody(const uint8_t* data, size_t size);

// The files of an SsdStore, tests/store/ssd_fuzz_targets.h. First byte odd: the checksums are made
// right before the bytes are read.
void SsdChunk(const uint8_t* data, size_t size);       // records, and the footer at their end
void SsdFooter(const uint8_t* data, size_t size);      // of a chunk
void SsdManifest(const uint8_t* data, size_t size);    // a manifest
void SsdIndexImage(const uint8_t* data, size_t size);  // an index image

// The text files of a RocksStore: TABLES, LIVE, SNAPSHOT. First byte odd: the checksum is made
// right before.
void RocksText(const uint8_t* data, size_t size);

}  // namespace hotrow::fuzz

#endif  // HOTROW_TESTS_FUZZ_FUZZ_TARGETS_H_
