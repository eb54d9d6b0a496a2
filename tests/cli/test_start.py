"""The command line starts without torch and without the cloud SDKs."""

from __future__ import annotations

import subprocess
import sys


def test_listing_needs_neither_torch_nor_an_sdk() -> None:
    code = (
        "import sys; from objckpt.cli.main import main; main(['--version']);"
        "print(sorted({'torch', 'boto3', 'google.cloud.storage'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
