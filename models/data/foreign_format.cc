#include "models/data/foreign_format.h"

namespace hotrow {
namespace {

using std::string_view_literals::operator""sv;

constexpr std::string_view kDecompress = "decompress it, or compress it with gzip";
constexpr std::string_view kPandas = "write it as text, with to_csv(..., index=False) of pandas";
constexpr std::string_view kPack =
    "pack it in Python, with hotrow.pack, or write it as text, with to_csv(..., index=False) of "
    "pandas";
constexpr std::string_view kArrays =
    "write its arrays as text, with savetxt of numpy; arrays of Criteo's clicks go with criteo-npy";
constexpr std::string_view kUtf8 = "convert it to UTF-8, with iconv -t UTF-8";

struct Magic {
  std::string_view head;
  std::string_view tail;  // 4 bytes before the end, where the head alone may be text
  ForeignFormat format;
};

constexpr Magic kMagic[] = {
    {"PAR1"sv, "PAR1"sv, {"a Parquet file", kPack}},
    {"PARE"sv, "PARE"sv, {"an encrypted Parquet file", kPack}},
    {"ORC"sv, "ORC"sv, {"an ORC file", kPack}},
    {"ARROW1\0\0"sv, ""sv, {"an Arrow (Feather) file", kPack}},
    {"\xff\xff\xff\xff"sv, ""sv, {"an Arrow stream", kPack}},
    {"FEA1\0"sv, ""sv, {"a Feather file", kPack}},
    {"FEA1"sv, "FEA1"sv, {"a Feather file", kPack}},
    {"Obj\x01"sv, ""sv, {"an Avro file", kPandas}},
    {"SQLite format 3\0"sv, ""sv, {"an SQLite database", "export the table as CSV"}},
    {"\x89HDF\r\n\x1a\n"sv, ""sv, {"an HDF5 file", kPandas}},
    {"\x93NUMPY"sv, ""sv, {"a numpy array (.npy)", kArrays}},
    {"BZh"sv, ""sv, {"a bzip2 file", kDecompress}},
    {"\xfd"
     "7zXZ\0"sv,
     ""sv,
     {"an xz file", kDecompress}},
    {"\x28\xb5\x2f\xfd"sv, ""sv, {"a Zstandard file", kDecompress}},
    {"\x04\x22\x4d\x18"sv, ""sv, {"an LZ4 file", kDecompress}},
    {"7z\xbc\xaf\x27\x1c"sv, ""sv, {"a 7z archive", kDecompress}},
    {"\xff\xfe"sv, ""sv, {"UTF-16 text", kUtf8}},
    {"\xfe\xff"sv, ""sv, {"UTF-16 text", kUtf8}},
};

}  // namespace

ForeignFormat FindForeignFormat(std::string_view head, std::string_view tail) {
  if (head.starts_with("PK\x03\x04"sv)) {
    return {"a zip archive (.zip, .npz, .xlsx)",
            "unpack it; numpy's savetxt writes arrays as text"};
  }
  // Protocol 2 and later; earlier ones are text. UTF-8 text begins with no such byte.
  if (head.size() >= 2 && head[0] == '\x80' && head[1] >= 2 && head[1] <= 5) {
    return {"a Python pickle", kPandas};
  }
  for (const Magic& magic : kMagic) {
    if (!head.starts_with(magic.head)) continue;
    if (tail.size() < 4 || !tail.substr(tail.size() - 4).starts_with(magic.tail)) continue;
    // A header line may begin with these letters.
    const bool bzip2 = magic.head == "BZh";
    if (bzip2 && (head.size() < 10 || head.substr(4, 6) != "1AY&SY")) continue;
    return magic.format;
  }
  return {};
}

}  // namespace hotrow
