#ifndef HOTROW_MODELS_TRAIN_PROGRESS_H_
#define HOTROW_MODELS_TRAIN_PROGRESS_H_

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace hotrow {

// Shows the progress of a long job: bar, share, rate, time left, and a text such as the loss. On a
// terminal it redraws one line, at most ten times a second; otherwise it prints a plain line at
// most every five seconds. A terminal without a size is one of mpirun, which writes into a log,
// too.
class Progress {
 public:
  // total: units of work, 0 when not known. `out` is not owned.
  Progress(std::FILE* out, std::string_view title, std::string_view unit, int64_t total);
  ~Progress();  // ends the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // So much was done before this job: its rate leaves that out.
  void StartAt(int64_t done) { done_before_ = done; }
  // The job may stop before its total: the time left is a bound, and the line says so.
  void MayEndEarly() { may_end_early_ = true; }
  void Update(int64_t done, std::string_view text);
  // Prints a separate line above the bar.
  void Print(std::string_view line);
  // Draws the last state and ends the line; later calls do nothing.
  void Finish();

 private:
  void Draw(bool last);

  std::FILE* out_;
  bool terminal_;
  std::string title_;
  std::string unit_;
  int64_t total_;
  int64_t done_ = 0;
  int64_t done_before_ = 0;
  std::string text_;
  int64_t begin_ns_;
  int64_t last_draw_ns_ = 0;
  bool may_end_early_ = false;
  bool finished_ = false;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_TRAIN_PROGRESS_H_
