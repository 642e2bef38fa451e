#!/usr/bin/env python3
"""Malformed HTTP against `hotrow serve`: nothing crashes, memory stays bounded, others are answered.

  python3 bench/serving_fuzz.py --model=DIR [--seconds=1800] [--seed=1] [--hotrow=build/bin/hotrow]

DIR is a model of `hotrow train dlrm --data=synthetic:...` with dense features. Requests that would
be good, JSON and binary, have bytes, numbers, headers, lengths and pieces changed at random, are cut
off, doubled, sent in chunks or in fragments, and go out over connections that stay open as long as
the server lets them. After every 200 a good request must give the scores that it gave at first. With
a server of a sanitizer build (HOTROW_SANITIZE=address,undefined) its findings end the run, too.
Prints counts of statuses and the largest memory of the server. Ends with status 1 where the server
ended, answered a good request with other bytes, or wrote a reply that is no HTTP.
"""

import argparse
import collections
import json
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import time

from serving_faults import Server, body_of

STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
HEADERS = [b"Content-Length: -1", b"Content-Length: 18446744073709551616", b"Content-Length: 5",
           b"Content-Length: 0x10", b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip",
           b"Expect: 100-continue", b"Connection: close", b"Connection: keep-alive",
           b"Inference-Header-Content-Length: 7", b"Inference-Header-Content-Length: 99999999",
           b"Inference-Header-Content-Length: -3", b"Content-Encoding: gzip", b"Host:", b"\x00: \xff",
           b"X: " + b"y" * 9000, b"Content-Type: application/octet-stream", b": nothing", b"a b: c"]
TARGETS = [b"/", b"*", b"/v2", b"/v2/", b"/v2/health/live", b"/v2/models/%2e%2e/infer", b"/metrics",
           b"/v2/models//infer", b"/v2/models/x/versions/9/infer", b"/%00", b"/" + b"a" * 9000,
           b"http://elsewhere/v2", b"/v2/repository/index", b"/v2/repository/models/x/load",
           b"/v2/models/stats"]
METHODS = [b"GET", b"POST", b"PUT", b"HEAD", b"DELETE", b"PRI", b"", b"get", b"OPTIONS", b"CONNECT"]
VALUES = ["-1", "1e999", "18446744073709551616", "NaN", "null", "[]", "{}", '"x"', "0.5", "true",
          "[[[[1]]]]", '"\\ud800"', "9" * 400, "1" + "0" * 300]


def binary_of(body):
    """The same request with its tensors behind the JSON."""
    request, tail = json.loads(body), b""
    for tensor in request["inputs"]:
        data = tensor.pop("data")
        kind = {"FP32": "f", "INT64": "q", "UINT64": "Q", "INT32": "i"}[tensor["datatype"]]
        packed = struct.pack(f"<{len(data)}{kind}", *data)
        tensor["parameters"] = {"binary_data_size": len(packed)}
        tail += packed
    head = json.dumps(request).encode()
    return head + tail, len(head)


def request_of(path, body, json_bytes=None):
    head = [b"POST " + path + b" HTTP/1.1", b"Host: fuzz", b"Content-Length: %d" % len(body)]
    if json_bytes is not None:
        head.append(b"Inference-Header-Content-Length: %d" % json_bytes)
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def scramble(rng, data, most):
    data = bytearray(data)
    for _ in range(rng.randint(1, most)):
        if not data:
            break
        at = rng.randrange(len(data))
        move = rng.randrange(5)
        if move == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif move == 1:
            data[at] = rng.randrange(256)
        elif move == 2:
            del data[at:at + rng.randint(1, 30)]
        elif move == 3:
            data[at:at] = bytes(data[at:at + rng.randint(1, 30)])
        else:
            data[at:at] = bytes(rng.choices(b'[]{}",:0123456789eE.-\\\r\n\0\xff', k=3))
    return bytes(data)


def with_value(rng, body):
    """A number of the JSON replaced by something else."""
    places = list(re.finditer(rb"\d+(\.\d+)?", body))
    place = rng.choice(places)
    return body[:place.start()] + rng.choice(VALUES).encode() + body[place.end():]


def chunks(rng, body):
    out = b""
    while body:
        size = rng.randint(1, 400)
        piece, body = body[:size], body[size:]
        length = rng.choice([b"%x" % len(piece)] * 12 + [b"", b"zz", b"-1", b"fffffffffffffffff", b"0"])
        out += length + rng.choice([b"\r\n"] * 12 + [b"\n", b";x=y\r\n"]) + piece + b"\r\n"
    return out + b"0\r\n" + rng.choice([b"\r\n", b"Trailer: x\r\n\r\n", b""])


def broken(rng, path, body):
    json_bytes = None
    if rng.random() < 0.4:
        body, json_bytes = binary_of(body)
    kind = rng.randrange(8)
    if kind == 0:
        return scramble(rng, request_of(path, body, json_bytes), 8)
    if kind == 1:
        return request_of(path, scramble(rng, body, 6), json_bytes)
    if kind == 2:
        return request_of(path, with_value(rng, body), json_bytes)
    if kind == 3:
        whole = request_of(path, body, json_bytes)
        return whole[:rng.randrange(len(whole))]
    head, _, rest = request_of(path, body, json_bytes).partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    if kind == 4:
        lines[0] = b" ".join([rng.choice(METHODS), rng.choice(TARGETS + [path]),
                              rng.choice([b"HTTP/1.1", b"HTTP/1.0", b"HTTP/9.9", b"HTTP", b""])])
    elif kind == 5:
        for _ in range(rng.choice([1, 1, 2, 150])):
            lines.insert(rng.randint(1, len(lines)), rng.choice(HEADERS))
    elif kind == 6:
        lines = [line for line in lines if not line.startswith(b"Content-Length")]
        lines.append(b"Transfer-Encoding: chunked")
        rest = chunks(rng, rest)
    else:
        return request_of(path, body, json_bytes) * rng.randint(2, 5)  # one behind the other
    return b"\r\n".join(lines) + b"\r\n\r\n" + rest


class Attack:
    def __init__(self, server):
        self.server, self.socket = server, None
        self.statuses = collections.Counter()

    def send(self, rng, data):
        try:
            if self.socket is None:
                self.socket = socket.create_connection(("127.0.0.1", self.server.port), timeout=5)
            while data:
                size = len(data) if rng.random() < 0.7 else rng.randint(1, 600)
                self.socket.sendall(data[:size])
                data = data[size:]
            self.socket.settimeout(0.03)
            reply = self.socket.recv(1 << 16)
        except TimeoutError:
            self.statuses["waits"] += 1  # for the rest of what it was promised
            if rng.random() < 0.5:
                self.close()
            return
        except OSError:
            self.statuses["closed"] += 1
            self.close()
            return
        if not reply:
            self.statuses["closed"] += 1
            self.close()
            return
        found = STATUS.findall(reply)
        if not reply.startswith(b"HTTP/1.1 ") and not found:
            # The rest of a reply that was long.
            self.statuses["more"] += 1
            self.close()
            return
        self.statuses.update(code.decode() for code in found)
        if rng.random() < 0.2:
            self.close()

    def close(self):
        if self.socket is not None:
            self.socket.close()
        self.socket = None


def good(server, path, body):
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        head, _, rest = request_of(path, body).partition(b"\r\n\r\n")
        connection.sendall(head + b"\r\nConnection: close\r\n\r\n" + rest)
        reply = b""
        while piece := connection.recv(1 << 16):
            reply += piece
    status = STATUS.match(reply)
    return (status and status[1]), reply.partition(b"\r\n\r\n")[2]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--hotrow", default="build/bin/hotrow")
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    server = Server(arguments.hotrow, arguments.model, "--max_connections=64",
                    "--max_body_bytes=1048576", "--transfer_ms=500", "--idle_ms=500")
    path = f"/v2/models/{server.name}/infer".encode()
    body = body_of(server, 4).encode()
    expected = good(server, path, body)
    assert expected[0] == b"200", expected
    rng = random.Random(arguments.seed)
    attacks = [Attack(server) for _ in range(16)]
    sent, peak, failures = 0, 0.0, 0
    end = time.monotonic() + arguments.seconds
    while time.monotonic() < end and server.process.poll() is None:
        for _ in range(200):
            rng.choice(attacks).send(rng, broken(rng, path, body))
            sent += 1
        if server.process.poll() is not None:
            break
        peak = max(peak, server.mebibytes())
        if good(server, path, body) != expected:
            failures += 1
    for attack in attacks:
        attack.close()
    ended = server.process.poll()
    if ended is None:
        server.process.send_signal(signal.SIGTERM)
        ended = server.process.wait(60)
    counts = collections.Counter()
    for attack in attacks:
        counts.update(attack.statuses)
    print(f"{sent:,} requests, seed {arguments.seed}: " +
          ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())))
    print(f"largest memory {peak:.0f} MiB, the server's exit status {ended}, "
          f"{failures} good requests without their scores")
    return 1 if failures or ended != 0 else 0


if __name__ == "__main__":
    sys.exit(main())
