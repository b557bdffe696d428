import sys
from collections.abc import Iterator

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
