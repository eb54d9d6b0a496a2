"""Runs LocalStack so that several of them on one machine neither meet nor can be reached from other machines.

    python -P localstack/private_localstack.py FOLDER

LocalStack keeps larger objects in one fixed folder that all its instances share and leave behind, and listens on
every interface whatever GATEWAY_LISTEN says. No setting changes either, so both are set here before it starts:
objects go to FOLDER, and it listens on 127.0.0.1. ``servers.py`` runs this with the test servers' python.
"""

import sys

from localstack.runtime.main import main
from localstack.services.s3 import provider
from twisted.internet.endpoints import TCP4ServerEndpoint


def _run(folder: str) -> None:
    provider.DEFAULT_S3_TMP_DIR = folder
    backlog, _ = TCP4ServerEndpoint.__init__.__defaults__
    TCP4ServerEndpoint.__init__.__defaults__ = (backlog, "127.0.0.1")
    main()


if __name__ == "__main__":
    _run(sys.argv[1])
