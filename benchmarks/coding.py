"""How fast coding is, against the bare kernels on the same memory, and whether other threads can run.

    python benchmarks/coding.py [--json] [--rounds 7]

Encoding and checksumming, as an upload does it, runs on two threads with one stripe each. The bare kernels are
one ``ec_encode_data`` call a stripe and one ``crc32_iscsi`` call a fragment, or one a block. All run in turns
on the same buffers, whose pages are touched beforehand; ``ratio`` is the median of the turns' ratios, to
whole fragments (less work than is needed: every block must have its checksum) and by block. A watching thread
measures the longest time that it could not get the GIL while one stripe is coded.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

from objckpt.coding.checksum import block_checksums, combine_blocks
from objckpt.coding.codec import codec
from objckpt.coding.geometry import BLOCK_SIZE, Code, fragment_size
from objckpt.coding.isal import isal
from objckpt.units import MiB

STRIPE = 64 * MiB
THREADS = 2


class Stripe:
    """The memory of one stripe: data and parity, and the bare kernels' pointers to them."""

    def __init__(self, code: Code, number: int) -> None:
        self.code = code
        self.size = fragment_size(code, STRIPE)
        pattern = bytes((position * 7 + number) % 251 for position in range(4096))
        self.bodies = [bytearray((pattern * (self.size // 4096 + 1))[: self.size]) for _ in range(code.fragments)]
        self.data = [memoryview(body).toreadonly() for body in self.bodies[: code.data]]
        self.parity = [memoryview(body) for body in self.bodies[code.data :]]
        self.addresses = [ctypes.addressof(ctypes.c_char.from_buffer(body)) for body in self.bodies]
        self.sources = (ctypes.c_void_p * code.data)(*self.addresses[: code.data])
        self.targets = (ctypes.c_void_p * code.parity)(*self.addresses[code.data :])


class Bare:
    """ISA-L as a C program would call it, with one checksum a fragment."""

    def __init__(self, code: Code) -> None:
        library = isal()
        if library is None:
            raise SystemExit("ISA-L was not found beside pyeclib: nothing to compare with")
        self.library = library
        matrix = ctypes.create_string_buffer(code.fragments * code.data)
        library.gf_gen_cauchy1_matrix(matrix, code.fragments, code.data)
        self.tables = ctypes.create_string_buffer(32 * code.data * code.parity)
        library.ec_init_tables(code.data, code.parity, ctypes.byref(matrix, code.data**2), self.tables)

    def __call__(self, stripe: Stripe) -> None:
        code = stripe.code
        self.library.ec_encode_data(stripe.size, code.data, code.parity, self.tables, stripe.sources, stripe.targets)
        for address in stripe.addresses:
            self.checksum(address, stripe.size)

    def checksum(self, address: int, size: int) -> None:
        self.library.crc32_iscsi(address, size, 0xFFFFFFFF)


class BareBlocks(Bare):
    """The same with a checksum of every block, which is what must be stored."""

    def checksum(self, address: int, size: int) -> None:
        for at in range(address, address + size, BLOCK_SIZE):
            self.library.crc32_iscsi(at, min(BLOCK_SIZE, address + size - at), 0xFFFFFFFF)


def ours(stripe: Stripe) -> None:
    """What an upload does with one stripe."""
    codec().encode(stripe.code, stripe.data, stripe.parity)
    for body in stripe.bodies:
        combine_blocks(block_checksums(body), stripe.size)


def measure_encode(code: Code, rounds: int) -> dict[str, Any]:
    """GB/s of input on two threads: ours and the bare kernels', in turns."""
    stripes = [Stripe(code, number) for number in range(THREADS)]
    ways: dict[str, Callable[[Stripe], None]] = {"ours": ours, "bare": Bare(code), "bare, by block": BareBlocks(code)}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        _on_threads(way, stripes)
    for _ in range(rounds):
        for name, way in ways.items():
            rates[name].append(_on_threads(way, stripes))
    return {
        "code": f"{code.data}+{code.parity}",
        **{f"{name}, GB/s": _spread(values) for name, values in rates.items()},
        "ratio": _ratio(rates["ours"], rates["bare"]),
        "ratio, by block": _ratio(rates["ours"], rates["bare, by block"]),
    }


def measure_decode(code: Code, rounds: int) -> dict[str, Any]:
    """GB/s of a stripe's bytes with 1 to m data fragments lost, one thread."""
    stripe = Stripe(code, 0)
    coder = codec()
    coder.encode(code, stripe.data, stripe.parity)
    spare = [memoryview(bytearray(stripe.size)) for _ in range(code.parity)]
    found = {}
    for lost in range(1, code.parity + 1):
        missing = dict(enumerate(spare[:lost]))
        present = {index: memoryview(body) for index, body in enumerate(stripe.bodies) if index not in missing}
        rates = []
        for _ in range(rounds):
            start = time.perf_counter()
            coder.reconstruct(code, present, missing)
            rates.append(STRIPE / (time.perf_counter() - start) / 1e9)
        assert all(view == stripe.bodies[index] for index, view in missing.items())
        found[f"{lost} lost, GB/s"] = _spread(rates)
    return {"code": f"{code.data}+{code.parity}", **found}


def measure_hold(code: Code, rounds: int) -> dict[str, Any]:
    """The longest wait of a thread that only wants the GIL, in ms, while one stripe is coded by another."""
    stripe = Stripe(code, 0)
    idle = _longest_wait(lambda: time.sleep(0.05))
    waits = [_longest_wait(lambda: ours(stripe)) for _ in range(rounds)]
    return {"code": f"{code.data}+{code.parity}", "longest wait, ms": _spread(waits), "machine alone, ms": idle}


def _longest_wait(work: Callable[[], None]) -> float:
    done = threading.Event()

    def run() -> None:
        work()
        done.set()

    worker = threading.Thread(target=run)
    longest = 0.0
    last = time.perf_counter()
    worker.start()
    while not done.is_set():
        time.sleep(0)  # gives the GIL up and asks for it again
        now = time.perf_counter()
        longest = max(longest, now - last)
        last = now
    worker.join()
    return longest * 1e3


def _on_threads(way: Callable[[Stripe], None], stripes: list[Stripe], repeats: int = 4) -> float:
    def work(stripe: Stripe) -> None:
        for _ in range(repeats):
            way(stripe)

    threads = [threading.Thread(target=work, args=(stripe,)) for stripe in stripes]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(stripes) * repeats * STRIPE / (time.perf_counter() - start) / 1e9


def _ratio(ours: list[float], theirs: list[float]) -> dict[str, float]:
    return _spread([mine / other for mine, other in zip(ours, theirs, strict=True)])


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def _show(title: str, rows: list[dict[str, Any]]) -> None:
    print(title)
    for row in rows:
        print(f"  {row['code']}")
        for name, value in row.items():
            if isinstance(value, dict):
                print(f"    {name:24} {value['median']:7.2f}   ({value['min']:.2f} to {value['max']:.2f})")
            elif name != "code":
                print(f"    {name:24} {value:7.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each measurement, at least 5")
    options = parser.parse_args()
    rounds = max(options.rounds, 5)
    codes = [Code.of(4, 2), Code.of(10, 4)]
    found = {
        f"encode and checksum {STRIPE // MiB} MiB stripes on {THREADS} threads": [
            measure_encode(code, rounds) for code in codes
        ],
        "decode, one thread": [measure_decode(code, rounds) for code in codes],
        "GIL, longest hold seen": [measure_hold(code, rounds) for code in codes],
    }
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for title, rows in found.items():
        _show(title, rows)


if __name__ == "__main__":
    main()
