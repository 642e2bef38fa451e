#ifndef HOTROW_TOOLS_MODEL_REPORT_H_
#define HOTROW_TOOLS_MODEL_REPORT_H_

#include <string>

#include "models/data/packed_format.h"
#include "models/delta/apply_chain.h"
#include "models/delta/compact_chain.h"
#include "models/delta/export_delta.h"
#include "models/saving/checkpoint_check.h"
#include "models/saving/export_table.h"
#include "models/saving/portable_manifest.h"
#include "models/saving/portable_model.h"
#include "models/serving/export_onnx.h"

// Reports of checkpoints and portable models, as text and as JSON.
namespace hotrow {

// The report of a checkpoint, for people and as JSON. `path` as it was typed.
std::string CheckpointReportText(const std::string& path, const CheckpointReport& report);
std::string CheckpointReportJson(const std::string& path, const CheckpointReport& report);

// The report of a directory of the portable form whose arrays were not read.
std::string PortableModelText(const std::string& path, const PortableModel& portable,
                              const std::vector<int64_t>& rows);
std::string PortableModelJson(const std::string& path, const PortableModel& portable,
                              const std::vector<int64_t>& rows);

// The report of an export, an import or a check.
std::string PortableSummaryText(const PortableSummary& summary);
std::string PortableSummaryJson(const PortableSummary& summary);

// The report of a delta that was written.
std::string DeltaSummaryText(const DeltaSummary& summary);
std::string DeltaSummaryJson(const DeltaSummary& summary);

// The report of a table that was exported alone.
std::string TableSummaryText(const ExportTableSummary& summary);
std::string TableSummaryJson(const ExportTableSummary& summary);

// The report of an ONNX file that was written.
std::string OnnxSummaryText(const ExportOnnxSummary& summary);
std::string OnnxSummaryJson(const ExportOnnxSummary& summary);

// The report of packed data: a line, and their columns. damage: of one that was read; null.
std::string PackedDataText(const std::string& path, const PackedManifest& pack);
std::string PackedColumnsText(const PackedManifest& pack);
std::string PackedDataJson(const std::string& path, const PackedManifest& pack,
                           const std::vector<std::string>* damage = nullptr);
// The report of a chain that was read or checked.
std::string ChainSummaryText(const ChainSummary& summary);
std::string ChainSummaryJson(const ChainSummary& summary);

// The report of a chain that was compacted.
std::string CompactSummaryText(const CompactSummary& summary);
std::string CompactSummaryJson(const CompactSummary& summary);

}  // namespace hotrow

#endif  // HOTROW_TOOLS_MODEL_REPORT_H_
