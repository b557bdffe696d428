import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

if sys.platform != "linux":
    collect_ignore_glob = ["test_*.py"]
else:
    from groupwise_sandbox.limits import Limits
    from groupwise_sandbox.sandbox import Sandbox

    @pytest.fixture(scope="session")
    def sandbox() -> Iterator[Sandbox]:
        limits = Limits(seconds=1, memory=256 << 20, output=1 << 20)
        with Sandbox(limits=limits, parallel=4) as opened:
            yield opened

    @pytest.fixture
    def open_folder() -> Iterator[Path]:
        """A folder that anybody may write to, with a file `mine`."""
        with tempfile.TemporaryDirectory() as name:
            folder, mine = Path(name), Path(name, "mine")
            mine.write_text("mine")
            mine.chmod(0o666)
            folder.chmod(0o777)
            yield folder
