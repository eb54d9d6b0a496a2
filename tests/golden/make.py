"""Makes the golden run of the current format. Run once per released format; what it made is never changed.

python tests/golden/make.py tests/golden/v1
"""

from __future__ import annotations

import itertools
import os
import socket
import sys
from pathlib import Path

from objckpt.checkpoint.attempt import SaveAttempt
from objckpt.commit import quorum
from objckpt.commit.ownership import begin
from objckpt.config import CodeConfig, StoreConfig, TargetConfig
from objckpt.format.manifest import Chunk
from objckpt.seams import Seams, SystemRandom
from objckpt.store.open import memory_space
from objckpt.telemetry import NullObserver
from objckpt.transfer.targets import Targets
from objckpt.transfer.upload import BytesSource

BODY = bytes(itertools.islice(itertools.cycle(range(251)), 200_003))


class Still:
    def now_s(self) -> float:
        return 1_800_000_000.0

    def monotonic_s(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing waits here")


class Numbers:
    def __init__(self) -> None:
        self._next = itertools.count(1)

    def new_id(self) -> str:
        return f"{next(self._next):032x}"


def config() -> StoreConfig:
    """Three places, RS(2,1), stripes of 128 KiB: one whole stripe and one that is too short to be cut."""
    return StoreConfig(
        run="golden",
        targets=tuple(TargetConfig(name=f"t{i}", url=f"memory://golden-t{i}", domain=f"d{i}") for i in range(3)),
        code=CodeConfig(data=2, parity=1, stripe_size=2 * 65536),
    )


def main(folder: Path) -> None:
    """Two checkpoints of one opaque shard."""
    socket.gethostname = lambda: "host"
    os.getpid = lambda: 1
    seams = Seams(clock=Still(), random=SystemRandom(), ids=Numbers())
    plane = quorum.ControlPlane(Targets(config(), seams=seams, observer=NullObserver()))
    owned = begin(plane, create=True)
    for seq, step in ((1, 100), (2, 200)):
        attempt = SaveAttempt(plane, owned, seq=seq, step=step)
        index = (Chunk(fqn="object", start=0, stop=len(BODY)),)
        sources = [BytesSource(BODY)]
        written = attempt.write("rank-00000.objects", kind="opaque", sources=sources, index=index, rank=0, counter=0)
        attempt.commit([written], front="golden", metadata=[b'{"a":[1,2.5,"\\u00e4"]}'], user={"loss": 0.5})
    plane.targets.close()
    for target in config().targets:
        for key, body in memory_space(target.url.removeprefix("memory://")).objects().items():
            path = folder / target.name / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
