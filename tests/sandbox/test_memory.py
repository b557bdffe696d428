"""All programs together keep within a bound of memory."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from groupwise_sandbox import memory
from groupwise_sandbox.limits import Limits
from groupwise_sandbox.sandbox import Sandbox

MIB = 1 << 20


def sandbox(total: int | None, parallel: int | None = 8) -> Sandbox:
    limits = Limits(memory=100 * MIB)
    return Sandbox(limits=limits, parallel=parallel, total_memory=total)


def test_fewer_run_at_the_same_time_where_memory_is_little(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sandbox(10_000 * MIB).parallel == 8
    assert sandbox(999 * MIB).parallel == 4  # of two processes each
    assert sandbox(200 * MIB).parallel == 1
    with pytest.raises(ValueError, match="total_memory: expected at least"):
        sandbox(199 * MIB)
    monkeypatch.setattr(memory, "free", lambda: 1300 * MIB)
    assert sandbox(None).parallel == 3
    assert sandbox(None, parallel=2).parallel == 2
    monkeypatch.setattr(memory, "free", lambda: 0)
    assert sandbox(None).parallel == 1


def test_what_is_free_is_that_of_the_container(tmp_path: Path) -> None:
    machine = psutil.virtual_memory().total
    assert 0 < memory.free(tmp_path) <= machine
    (tmp_path / "memory.current").write_text("70\n")
    for limit, free in (("100", 30), ("50", 0)):
        (tmp_path / "memory.max").write_text(limit)
        assert memory.free(tmp_path) == free
    (tmp_path / "memory.max").write_text("max")
    assert memory.free(tmp_path) > 100


def test_greedy_programs_take_no_more_together() -> None:
    code = "block = bytearray(90 << 20)\nimport time\ntime.sleep(0.4)\nprint(len(block))"
    with Sandbox(
        limits=Limits(seconds=5, memory=100 * MIB), parallel=8, total_memory=400 * MIB
    ) as box:
        box.run("")
        server = psutil.Process(box._connected()._server.pid)
        with ThreadPoolExecutor(8) as pool:
            running = [pool.submit(box.run, code) for _ in range(6)]
            most = 0
            while not all(each.done() for each in running):
                most = max(most, len(server.children()))
        assert [each.result().status for each in running] == [0] * 6
    assert 1 <= most <= 2
