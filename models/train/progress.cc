#include "models/train/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/thread.h"

namespace hotrow {
namespace {

constexpr int64_t kTerminalIntervalNs = 100'000'000;
constexpr int64_t kPlainIntervalNs = 5'000'000'000;
constexpr size_t kBarColumns = 20;
constexpr char kClearLine[] = "\r\x1b[K";

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// 0: it is no terminal, or does not say.
int TerminalColumns(std::FILE* out) {
  winsize size = {};
  if (isatty(fileno(out)) != 1 || ioctl(fileno(out), TIOCGWINSZ, &size) != 0) return 0;
  return size.ws_col;
}

// The longest prefix of at most `columns` characters; a UTF-8 character is never cut.
std::string_view Prefix(std::string_view text, int columns) {
  size_t i = 0;
  for (; i < text.size(); ++i) {
    const bool first_byte = (static_cast<unsigned char>(text[i]) & 0xc0) != 0x80;
    if (first_byte && columns-- <= 0) break;
  }
  return text.substr(0, i);
}

// 950, 12.3 k, 4.56 M, 1.2 G.
std::string ShortNumber(double x) {
  if (x < 1000) return absl::StrFormat("%.0f", x);
  if (x < 1e6) return absl::StrFormat("%.1f k", x / 1e3);
  if (x < 1e9) return absl::StrFormat("%.2f M", x / 1e6);
  return absl::StrFormat("%.2f G", x / 1e9);
}

// 0:07, 12:34, 3:00:00.
std::string ShortTime(double seconds) {
  const auto s = static_cast<int64_t>(std::min(std::ceil(seconds), 1e15));
  if (s < 3600) return absl::StrFormat("%d:%02d", s / 60, s % 60);
  return absl::StrFormat("%d:%02d:%02d", s / 3600, s / 60 % 60, s % 60);
}

std::string Bar(double share) {
  const auto full = static_cast<size_t>(share * static_cast<double>(kBarColumns));
  return absl::StrCat("[", std::string(full, '#'), std::string(kBarColumns - full, '.'), "]");
}

}  // namespace

Progress::Progress(std::FILE* out, std::string_view title, std::string_view unit, int64_t total)
    : out_(out),
      terminal_(TerminalColumns(out) > 0),
      title_(title),
      unit_(unit),
      total_(total),
      begin_ns_(NowNs()) {
  // A terminal shows the first update at once; a log waits, since short jobs need only the last
  // line.
  last_draw_ns_ = terminal_ ? begin_ns_ - kTerminalIntervalNs : begin_ns_;
}

Progress::~Progress() {
  const auto finish = [this]() -> absl::Status {
    Finish();
    return absl::OkStatus();
  };
  Caught("", finish).IgnoreError();
}

void Progress::Update(int64_t done, std::string_view text) {
  if (finished_) return;
  done_ = done;
  text_ = text;
  if (!terminal_ && total_ > 0 && done == total_) return;  // the last line says so
  const int64_t interval = terminal_ ? kTerminalIntervalNs : kPlainIntervalNs;
  if (NowNs() - last_draw_ns_ >= interval) Draw(/*last=*/false);
}

void Progress::Print(std::string_view line) {
  if (finished_) return;
  if (terminal_) std::fputs(kClearLine, out_);
  std::fwrite(line.data(), 1, line.size(), out_);
  std::fputc('\n', out_);
  if (terminal_) {
    Draw(/*last=*/false);
  } else {
    std::fflush(out_);
  }
}

void Progress::Finish() {
  if (finished_) return;
  Draw(/*last=*/true);
  finished_ = true;
}

void Progress::Draw(bool last) {
  last_draw_ns_ = NowNs();
  const double seconds = static_cast<double>(last_draw_ns_ - begin_ns_) * 1e-9;
  const double rate = seconds > 0 ? static_cast<double>(done_ - done_before_) / seconds : 0;
  std::string line = title_;
  if (total_ > 0) {
    const double share =
        std::clamp(static_cast<double>(done_) / static_cast<double>(total_), 0.0, 1.0);
    // Rounded down: 100% means done.
    absl::StrAppendFormat(&line, " %3d%%", static_cast<int>(share * 100));
    if (terminal_) absl::StrAppend(&line, " ", Bar(share));
  } else {
    absl::StrAppend(&line, " ", ShortNumber(static_cast<double>(done_)), " ", unit_);
  }
  absl::StrAppend(&line, "  ", ShortNumber(rate), " ", unit_, "/s");
  if (last) {
    absl::StrAppend(&line, "  ", ShortTime(seconds));
  } else if (total_ > 0 && rate > 0) {
    const double left = static_cast<double>(std::max<int64_t>(total_ - done_, 0));
    absl::StrAppend(&line, may_end_early_ ? "  at most " : "  ", ShortTime(left / rate), " left");
  }
  if (!text_.empty()) absl::StrAppend(&line, "  ", text_);
  if (terminal_) {
    // One column stays free: some terminals wrap when the last one is written.
    line = absl::StrCat(kClearLine, std::string(Prefix(line, TerminalColumns(out_) - 1)));
  }
  if (last || !terminal_) line += '\n';
  std::fwrite(line.data(), 1, line.size(), out_);
  std::fflush(out_);
}

}  // namespace hotrow
