"""Both codecs, for every test that is a promise of either."""

from __future__ import annotations

import pytest

from objckpt.coding.codec import Codec
from objckpt.coding.isal import IsalCodec, isal
from objckpt.coding.pyeclib_codec import PyeclibCodec


def make_isal() -> Codec:
    library = isal()
    assert library is not None, "pyeclib's wheel carries ISA-L"
    return IsalCodec(library)


@pytest.fixture(scope="session", params=[make_isal, PyeclibCodec], ids=["isal", "pyeclib"])
def either(request: pytest.FixtureRequest) -> Codec:
    return request.param()
