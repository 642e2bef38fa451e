"""The numbers of tables for people and for Prometheus."""

import errno
import html
import http.server
import os
import sys
import threading
import weakref
from typing import Any, Dict, List, Mapping, Optional

from . import errors


def _table(head: List[str], rows: List[List[Any]]) -> str:
    def line(cells: List[Any], tag: str) -> str:
        texts = [html.escape(f"{cell:,}" if isinstance(cell, int) else str(cell)) for cell in cells]
        return "<tr>" + "".join(f"<{tag}>{text}</{tag}>" for text in texts) + "</tr>"

    return "<table>" + line(head, "th") + "".join(line(row, "td") for row in rows) + "</table>"


def _close_socket(server: Optional[http.server.HTTPServer]) -> None:
    if server is not None:
        server.socket.close()


class Stats(Dict[str, Any]):
    """What `EmbeddingCollection.stats` gives: a dict. In a notebook it is a table of the tiers, one
    of the tables, and one of the numbers of the collection that are not 0; printed, a line each."""

    def __str__(self) -> str:
        def line(title: str, record: Mapping[str, Any]) -> str:
            counts = [f"{n} {v:,}" for n, v in record.items() if v and isinstance(v, (int, float))]
            return f"{title}: {', '.join(counts)}"

        parts = [line(f"{kind[:-1]} {record['name']}", record)
                 for kind in ("tiers", "tables") for record in self.get(kind, ())]
        return "\n".join([line("collection", self), *parts])

    def _repr_html_(self) -> str:
        def all_of(records: List[Mapping[str, Any]]) -> str:
            names = [n for n in records[0] if any(record[n] for record in records)]
            return _table(names, [[record[n] for n in names] for record in records])

        parts = [all_of(self[name]) for name in ("tiers", "tables") if self.get(name)]
        counts = [[n, v] for n, v in self.items() if v and not isinstance(v, list)]
        return "".join([*parts, _table(["collection", ""], counts)])


class MetricsServer:
    """Serves `tables.metrics()` at /metrics of 127.0.0.1 until it is closed. Keeps no collection.

    Threads of its own answer; each waits for the call of the collection that runs.
    """

    def __init__(self, tables: Any, port: int) -> None:
        self._tables = weakref.ref(tables)
        self._process = os.getpid()
        # Held while the collection is asked; the collector of garbage may come in between.
        self._lock = threading.RLock()
        self._closed = False
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            timeout = 5

            def do_GET(self) -> None:
                if self.path not in ("/", "/metrics"):
                    self.send_error(404)
                    return
                text = owner._text()
                if not text:
                    self.send_error(503)
                    return
                body = text.encode("utf-8")
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        try:
            self._server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        except (OSError, OverflowError) as error:  # beyond 65535, with the rank
            raise OSError(
                getattr(error, "errno", None) or errno.EINVAL,
                f"metrics_port: {port} cannot be had ({error}); 0 takes any",
            ) from None
        self._server.daemon_threads = True
        # A child would keep the port.
        server = weakref.ref(self._server)
        os.register_at_fork(after_in_child=lambda: _close_socket(server()))
        self._server.timeout = 0.1
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._closed:
            self._server.handle_request()
        self._server.server_close()

    def _text(self) -> str:
        with self._lock:
            tables = None if self._closed else self._tables()
            try:
                return "" if tables is None else str(tables.metrics())
            except errors.Error:  # it has been closed, or its job has ended
                return ""

    def close(self) -> None:
        """No thread asks the collection any more. May be called twice, and in a forked child."""
        if self._process != os.getpid() or self._closed:
            return
        with self._lock:
            self._closed = True
        if threading.current_thread() is not self._thread and not sys.is_finalizing():
            self._thread.join(1)  # the port is free again
