from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from objckpt.coding.codec import Codec, codec
from objckpt.coding.geometry import Code
from objckpt.coding.known_answer import expected_parity
from objckpt.coding.pyeclib_codec import PyeclibCodec

codes = st.tuples(st.integers(1, 28), st.integers(1, 8)).filter(lambda pair: sum(pair) <= 32).map(lambda p: Code.of(*p))


@given(st.data(), codes, st.integers(0, 400), st.sampled_from(["isal", "pyeclib"]))
def test_any_k_fragments_give_any_range_of_the_others(draw: st.DataObject, code: Code, size: int, which: str) -> None:
    """E02, E10."""
    coder: Codec = codec() if which == "isal" else PyeclibCodec()
    data = [draw.draw(st.binary(min_size=size, max_size=size)) for _ in range(code.data)]
    parity = [bytearray(size) for _ in range(code.parity)]
    coder.encode(code, [memoryview(body) for body in data], [memoryview(body) for body in parity])
    assert parity == expected_parity(code, data)

    fragments = [*data, *parity]
    lost = draw.draw(st.sets(st.integers(0, code.fragments - 1), min_size=1, max_size=code.parity))
    start, stop = sorted(draw.draw(st.tuples(st.integers(0, size), st.integers(0, size))))
    rebuilt = {index: bytearray(stop - start) for index in lost}
    coder.reconstruct(
        code,
        {index: memoryview(fragments[index])[start:stop] for index in range(code.fragments) if index not in lost},
        {index: memoryview(body) for index, body in rebuilt.items()},
    )
    assert rebuilt == {index: bytearray(fragments[index][start:stop]) for index in lost}
