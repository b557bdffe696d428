"""Shell folder: the process that holds the folder of a shell, and starts its commands.

It is a server like the one that it was forked from, in namespaces where the folder is a file system
in memory. The commands see it, and vanish with it.
"""

import base64
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from groupwise_sandbox import namespaces

PLACE = "/sys"
"""Where it is mounted: a folder that every machine has, and no command needs; hidden from this
process and its commands alone."""
FOLDERS = ("folder", "tmp")
"""What commands see as `/folder` and `/tmp`, of one size together."""


def keep(payload: Mapping[str, Any], channel: int) -> None:
    """Hold a folder with the payload's files, and start commands until the run hangs up.

    channel: by which the run hands over its line to a server. Raises OSError.
    """
    from groupwise_sandbox.server import Server  # which has begun this one

    with socket.socket(fileno=channel) as line:
        _, (control,), _, _ = socket.recv_fds(line, 1, 1)
    namespaces.hold(payload["space"], PLACE)
    for each in FOLDERS:
        Path(PLACE, each).mkdir(mode=0o700)
    for name, content in payload["files"].items():
        path, data = Path(PLACE, name), base64.b64decode(content)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        if data.startswith(b"#!"):
            path.chmod(0o755)
    Server(socket.socket(fileno=control)).serve()
