"""The S3 adapter's PUT and GET against bare boto3: the same bytes, sizes and threads, on a server that does nothing.

    python benchmarks/client.py [--rounds 7] [--json]

The server is a process of its own that answers every PUT and serves one object from memory. Both sides run in turns;
``ratio`` is ours to boto3's throughput, the median of the turns, with the lowest and the highest.
"""

from __future__ import annotations

import argparse
import base64
import json
import multiprocessing
import os
import re
import socket
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

import boto3
from botocore.config import Config

from objckpt.coding.checksum import crc32c
from objckpt.config import TargetConfig
from objckpt.seams import Seams
from objckpt.store.s3 import S3Store
from objckpt.units import MiB

SIZE = 16 * MiB
THREADS = 8
OBJECTS = 16


def serve(ready: Connection) -> None:
    """Speaks just enough HTTP."""
    body = os.urandom(SIZE)
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    ready.send(listener.getsockname()[1])
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=answer, args=(connection, body), daemon=True).start()


def answer(connection: socket.socket, body: bytes) -> None:
    scratch = bytearray(1 * MiB)
    received = b""
    while True:
        while b"\r\n\r\n" not in received:
            piece = connection.recv(65536)
            if not piece:
                return
            received += piece
        head, _, received = received.partition(b"\r\n\r\n")
        if b"100-continue" in head.lower():
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head.lower())
        left = (int(length.group(1)) if length else 0) - len(received)
        received = b""
        while left > 0:
            left -= connection.recv_into(scratch, min(left, len(scratch)))
        if head.startswith(b"PUT"):
            connection.sendall(b'HTTP/1.1 200 OK\r\nETag: "x"\r\nContent-Length: 0\r\n\r\n')
        else:
            start, stop = 0, SIZE
            found = re.search(rb"range: bytes=(\d+)-(\d+)", head.lower())
            status = b"200 OK"
            extra = b""
            if found:
                start, stop = int(found.group(1)), int(found.group(2)) + 1
                status = b"206 Partial Content"
                extra = b"Content-Range: bytes %d-%d/%d\r\n" % (start, stop - 1, SIZE)
            connection.sendall(
                b'HTTP/1.1 %s\r\nETag: "x"\r\n%sContent-Length: %d\r\n\r\n' % (status, extra, stop - start)
            )
            connection.sendall(memoryview(body)[start:stop])


def throughput(pool: ThreadPoolExecutor, act: Callable[[int], None]) -> float:
    """GB/s of OBJECTS calls on THREADS threads."""
    began = time.perf_counter()
    list(pool.map(act, range(OBJECTS)))
    return OBJECTS * SIZE / (time.perf_counter() - began) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    os.environ |= {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_EC2_METADATA_DISABLED": "true"}
    here, there = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(there,), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{here.recv()}"
    target = TargetConfig(name="t", url="s3://bucket", endpoint_url=url, region="us-east-1")
    store = S3Store(target, bucket="bucket", prefix="", threads=THREADS, seams=Seams())
    bare = boto3.client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        config=Config(
            max_pool_connections=THREADS,
            s3={"addressing_style": "path", "payload_signing_enabled": False},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )
    body = bytearray(os.urandom(SIZE))
    checksum = crc32c(body)
    header = base64.b64encode(checksum.to_bytes(4, "big")).decode()
    places = [memoryview(bytearray(SIZE)) for _ in range(THREADS)]

    def bare_get(number: int) -> None:
        into = places[number % THREADS]
        into[:] = bare.get_object(Bucket="bucket", Key=f"k{number}")["Body"].read()

    sides: dict[str, tuple[Callable[[int], None], Callable[[int], None]]] = {
        "put": (
            lambda number: store.put(f"k{number}", body, crc32c=checksum),
            lambda number: bare.put_object(Bucket="bucket", Key=f"k{number}", Body=body, ChecksumCRC32C=header),
        ),
        "get": (lambda number: store.get_into(f"k{number}", 0, [places[number % THREADS]]), bare_get),
    }
    found: dict[str, dict[str, float]] = {}
    with ThreadPoolExecutor(THREADS) as pool:
        for name, (ours, theirs) in sides.items():
            throughput(pool, ours), throughput(pool, theirs)
            turns = [(throughput(pool, ours), throughput(pool, theirs)) for _ in range(arguments.rounds)]
            ratios = [a / b for a, b in turns]
            found[name] = {
                "ours_gb_s": statistics.median(a for a, _ in turns),
                "boto3_gb_s": statistics.median(b for _, b in turns),
                "ratio": statistics.median(ratios),
                "lowest": min(ratios),
                "highest": max(ratios),
            }
    store.close()
    bare.close()
    server.kill()
    server.join()
    if arguments.json:
        print(json.dumps(found))
        return
    for name, numbers in found.items():
        print(
            f"{name}: {numbers['ours_gb_s']:.2f} GB/s, boto3 {numbers['boto3_gb_s']:.2f},"
            f" ratio {numbers['ratio']:.2f} ({numbers['lowest']:.2f} to {numbers['highest']:.2f}); bar 0.85"
        )


if __name__ == "__main__":
    main()
