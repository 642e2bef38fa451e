"""What the examples share: a progress bar, and a plot of the loss."""

import sys
import time
from typing import Any, Iterable, Iterator, List, Optional


class Losses:
    """The loss of each step, with a progress bar on stderr.

        losses = Losses(total=len(batches))
        for batch in losses.bar(batches):
            losses.add(loss)
        losses.plot("loss.png")
    """

    def __init__(self, total: Optional[int] = None) -> None:
        self.values: List[float] = []
        self._total = total
        self._begun = self._shown = time.monotonic()

    def add(self, loss: float) -> None:
        self.values.append(float(loss))

    def recent(self) -> float:
        """The mean of the last steps."""
        last = self.values[-50:]
        return sum(last) / max(1, len(last))

    def bar(self, batches: Iterable[Any]) -> Iterator[Any]:
        for count, batch in enumerate(batches):
            yield batch
            self._show(count + 1)
        self._show(count=len(self.values), end=True)

    def _show(self, count: int, end: bool = False) -> None:
        now = time.monotonic()
        # A line that is written over needs a terminal; a notebook or a log gets a few lines.
        live = sys.stderr.isatty()
        if not end and now - self._shown < (0.1 if live else 10):
            return
        self._shown = now
        rate = count / max(now - self._begun, 1e-9)
        text = f"step {count}, loss {self.recent():.4f}, {rate:.0f} steps/s"
        if self._total:
            done = min(1.0, count / self._total)
            text = f"[{'#' * int(30 * done):<30}] {100 * done:3.0f} %  {text}"
        sys.stderr.write(f"\r\x1b[K{text}" if live else f"{text}\n")
        if live and end:
            sys.stderr.write("\n")
        sys.stderr.flush()

    def plot(self, path: str, window: int = 20) -> bool:
        """Writes a PNG with the loss and its running mean; False: matplotlib is missing."""
        try:
            import matplotlib
        except ImportError:
            print(f"no plot in {path}: matplotlib is not installed", file=sys.stderr)
            return False
        matplotlib.use("Agg")
        from matplotlib import pyplot

        steps = range(len(self.values))
        mean = [
            sum(self.values[max(0, at - window + 1) : at + 1]) / min(window, at + 1)
            for at in steps
        ]
        figure, axes = pyplot.subplots(figsize=(7, 4))
        axes.plot(steps, self.values, color="tab:blue", alpha=0.25, label="of a step")
        axes.plot(steps, mean, color="tab:blue", label=f"mean of {window} steps")
        axes.set_xlabel("step")
        axes.set_ylabel("loss")
        axes.legend()
        figure.tight_layout()
        figure.savefig(path)
        pyplot.close(figure)
        return True
