#ifndef HOTROW_TESTS_MODELS_FILE_BUILDERS_H_
#define HOTROW_TESTS_MODELS_FILE_BUILDERS_H_

#include <zlib.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/env.h"
#include "gtest/gtest.h"

// Files for tests of readers, as strings.
namespace hotrow::test {

// window_bits as deflateInit2 takes them: 31 for gzip, -15 for raw deflate.
inline std::string Deflate(std::string_view text, int window_bits) {
  z_stream zlib = {};
  HOTROW_CHECK(deflateInit2(&zlib, 6, Z_DEFLATED, window_bits, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(deflateBound(&zlib, text.size()) + 64, '\0');
  zlib.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  zlib.avail_in = static_cast<uInt>(text.size());
  zlib.next_out = reinterpret_cast<Bytef*>(out.data());
  zlib.avail_out = static_cast<uInt>(out.size());
  HOTROW_CHECK(deflate(&zlib, Z_FINISH) == Z_STREAM_END);
  out.resize(zlib.total_out);
  deflateEnd(&zlib);
  return out;
}
inline std::string Gzip(std::string_view text) { return Deflate(text, 31); }

// The lowest `bytes` bytes of a number, little-endian.
inline std::string Little(uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i));
  return out;
}

// An array file of version 1.0 around this dictionary.
inline std::string NpyWithHeader(std::string dictionary, std::string_view data) {
  while ((10 + dictionary.size() + 1) % 64 != 0) dictionary += ' ';
  dictionary += '\n';
  return absl::StrCat("\x93NUMPY", std::string("\x01\x00", 2), Little(dictionary.size(), 2),
                      dictionary, std::string(data));
}
inline std::string NpyDictionary(std::string_view dtype, std::string_view shape) {
  return absl::StrCat("{'descr': '", std::string(dtype),
                      "', 'fortran_order': False, 'shape': ", std::string(shape), ", }");
}
template <typename T>
std::string Npy(std::string_view dtype, std::string_view shape, const std::vector<T>& values) {
  return NpyWithHeader(
      NpyDictionary(dtype, shape),
      std::string_view(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)));
}

struct ZipFile {
  std::string name;
  std::string bytes;
  bool deflated = false;
};

// A zip file; with zip64 every size stands in an extra field, as numpy.savez writes it.
inline std::string Zip(const std::vector<ZipFile>& files, bool zip64 = false) {
  std::string out;
  std::string directory;
  for (const ZipFile& file : files) {
    const std::string packed = file.deflated ? Deflate(file.bytes, -15) : file.bytes;
    const auto crc = crc32(0, reinterpret_cast<const Bytef*>(file.bytes.data()),
                           static_cast<uInt>(file.bytes.size()));
    const std::string sizes =
        zip64 ? std::string(8, '\xff') : Little(packed.size(), 4) + Little(file.bytes.size(), 4);
    const std::string common = absl::StrCat(Little(file.deflated ? 8 : 0, 2), Little(0, 4),
                                            Little(crc, 4), sizes, Little(file.name.size(), 2));
    const std::string extra_sizes = Little(file.bytes.size(), 8) + Little(packed.size(), 8);
    const std::string local_extra = zip64 ? Little(1, 2) + Little(16, 2) + extra_sizes : "";
    const std::string extra =
        zip64 ? Little(1, 2) + Little(24, 2) + extra_sizes + Little(out.size(), 8) : "";
    absl::StrAppend(&directory, Little(0x02014b50, 4), Little(45, 2), Little(45, 2), Little(0, 2),
                    common, Little(extra.size(), 2), Little(0, 2), Little(0, 2), Little(0, 2),
                    Little(0, 4), zip64 ? std::string(4, '\xff') : Little(out.size(), 4), file.name,
                    extra);
    absl::StrAppend(&out, Little(0x04034b50, 4), Little(45, 2), Little(0, 2), common,
                    Little(local_extra.size(), 2), file.name, local_extra, packed);
  }
  const size_t begin = out.size();
  out += directory;
  if (zip64) {
    const size_t end64 = out.size();
    absl::StrAppend(&out, Little(0x06064b50, 4), Little(44, 8), Little(45, 2), Little(45, 2),
                    Little(0, 8), Little(files.size(), 8), Little(files.size(), 8),
                    Little(directory.size(), 8), Little(begin, 8));
    absl::StrAppend(&out, Little(0x07064b50, 4), Little(0, 4), Little(end64, 8), Little(1, 4));
  }
  absl::StrAppend(
      &out, Little(0x06054b50, 4), Little(0, 4),
      zip64 ? std::string(4, '\xff') : Little(files.size(), 2) + Little(files.size(), 2),
      zip64 ? std::string(8, '\xff') : Little(directory.size(), 4) + Little(begin, 4),
      Little(0, 2));
  return out;
}

inline void WriteFileOrDie(Env& env, const std::string& path, std::string_view text) {
  const size_t slash = path.rfind('/');
  if (slash != std::string::npos && slash > 0) {
    HOTROW_CHECK(env.CreateDirs(path.substr(0, slash)).ok());
  }
  auto file = env.Open(path, OpenMode::kTruncate);
  HOTROW_CHECK(file.ok());
  HOTROW_CHECK(WriteFull(**file, 0, std::as_bytes(std::span(text.data(), text.size()))).ok());
}

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_MODELS_FILE_BUILDERS_H_
