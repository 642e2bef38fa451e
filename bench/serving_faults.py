#!/usr/bin/env python3
"""What clients and a kill do to `hotrow serve`: nothing that others notice.

  python3 bench/serving_faults.py --model=DIR [--clients=1000] [--hotrow=build/bin/hotrow]

DIR is a model of `hotrow train dlrm --data=synthetic:...` with dense features. One client scores
all the time. Meanwhile --clients others connect and hang, each in another way: silent, in the
middle of a head, in the middle of a body, or reading no reply. Prints how long requests of the one
took before and while the others hang, and the memory of the server. Then the server is killed
(SIGKILL) under load and started again. Ends with status 1 where a request failed or a score
changed.
"""

import argparse
import http.client
import json
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time


class Server:
    def __init__(self, hotrow, model, *flags):
        self.process = subprocess.Popen(
            [hotrow, "serve", model, "--port=0", "--transfer_ms=60000", "--timeout_ms=10000",
             *flags],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in self.process.stdout:
            if at := re.search(r"127\.0\.0\.1:(\d+)", line):
                self.port = int(at[1])
                break
        else:
            raise RuntimeError("hotrow serve did not start")
        threading.Thread(target=self.process.stdout.read, daemon=True).start()
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request("POST", "/v2/repository/index", "{}")
        self.name = json.loads(connection.getresponse().read())[0]["name"]
        connection.request("GET", f"/v2/models/{self.name}")
        self.inputs = json.loads(connection.getresponse().read())["inputs"]

    def mebibytes(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024


def body_of(server, samples):
    tensors = []
    for tensor in server.inputs:
        if tensor["name"].endswith(":lengths") or tensor["datatype"] == "BYTES":
            continue
        columns = [] if tensor["datatype"] != "FP32" else [tensor["shape"][1]]
        count = samples * (columns[0] if columns else 1)
        data = [i % 90 if tensor["datatype"] != "FP32" else i % 7 / 7 for i in range(count)]
        tensors.append({"name": tensor["name"], "datatype": tensor["datatype"],
                        "shape": [samples, *columns], "data": data})
    return json.dumps({"inputs": tensors, "outputs": [{"name": "logits"}]})


class Client(threading.Thread):
    """Scores the same batch again and again."""

    def __init__(self, server, body):
        super().__init__(daemon=True)
        self.server, self.body = server, body
        self.times, self.scores, self.errors, self.stop = [], set(), [], False

    def run(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        path = f"/v2/models/{self.server.name}/infer"
        while not self.stop:
            begin = time.perf_counter()
            try:
                connection.request("POST", path, self.body)
                reply = connection.getresponse()
                data = reply.read()
            except OSError as error:
                self.errors.append(repr(error))
                return
            if reply.status != 200:
                self.errors.append(f"{reply.status}: {data[:200]}")
            self.scores.add(str(json.loads(data)["outputs"][0]["data"]))
            self.times.append((time.perf_counter() - begin) * 1e3)

    def take(self):
        """The times so far, which are forgotten."""
        times, self.times = sorted(self.times), []
        return times


def hang(server, body, i):
    """A connection that goes no further."""
    client = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    head = (f"POST /v2/models/{server.name}/infer HTTP/1.1\r\nHost: a\r\n"
            f"Content-Length: {len(body)}\r\n\r\n")
    if i % 4 == 1:
        client.sendall(head[:40].encode())
    elif i % 4 == 2:
        client.sendall((head + body[:len(body) // 2]).encode())
    elif i % 4 == 3:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall((head + body).encode())
    return client


def told(name, times, server):
    print(f"| {name} | {len(times)} | {times[len(times) // 2]:.2f} | "
          f"{times[len(times) * 99 // 100]:.2f} | {times[-1]:.2f} | {server.mebibytes():.0f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--hotrow", default="build/bin/hotrow")
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=5)
    args = parser.parse_args()
    server = Server(args.hotrow, args.model)
    body = body_of(server, 20)
    one = Client(server, body)
    one.start()
    print("| while | requests | TP50 ms | TP99 ms | longest | server MiB |")
    print("| --- | --- | --- | --- | --- | --- |")
    time.sleep(1)
    one.take()
    time.sleep(args.seconds)
    told("alone", one.take(), server)
    hanging = [hang(server, body, i) for i in range(args.clients)]
    told(f"{args.clients} clients came", one.take(), server)
    time.sleep(args.seconds)
    told(f"{args.clients} clients hang", one.take(), server)
    for client in hanging:
        client.close()
    time.sleep(1)
    one.take()
    time.sleep(args.seconds)
    told("they are gone", one.take(), server)
    errors = list(one.errors)

    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    one.join()
    again = Server(args.hotrow, args.model)
    two = Client(again, body)
    two.start()
    time.sleep(1)
    told("after a kill", two.take(), again)
    two.stop = True
    two.join()
    again.process.send_signal(signal.SIGTERM)
    status = again.process.wait(timeout=30)
    errors += two.errors
    scores = one.scores | two.scores
    print(f"{len(errors)} requests failed, {len(scores)} different scores, "
          f"SIGTERM ended the server with status {status}")
    for error in errors[:5]:
        print(error)
    return 0 if not errors and len(scores) == 1 and status == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
