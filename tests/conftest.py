"""Settings of all tests: no model hub, no files of the user, only the plugins of this tree."""

import gc
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings

# The same examples in every run, however long one takes on a machine with other work.
settings.register_profile("tests", deadline=None, derandomize=True, database=None)
settings.load_profile("tests")
gc.disable()  # while all is imported; see `pytest_collection_finish`
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Trackio reads it at import, also by other packages; without it, runs are in the user's cache.
_trackio = tempfile.TemporaryDirectory(prefix="trackio")
os.environ["TRACKIO_DIR"] = _trackio.name
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a background job of a script
    signal.signal(signal.SIGINT, signal.default_int_handler)
if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores
    os.environ.setdefault("OMP_NUM_THREADS", "1")

TESTS = Path(__file__).parent
LONGEST = (
    *("test_ray", "test_shard", "test_sharding", "test_real", "test_site", "test_training"),
    *("test_notebooks", "test_invariance", "test_processes", "test_third_party", "test_torchrun"),
    *("test_failed", "test_isolated_rewards", "test_kills", "test_ppo", "test_device"),
)
"""Files with tests of 20 s and more, which start first, so that no worker waits for them."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Workers have neighbouring tests, which share fixtures, and take tests of others when done."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getoption("dist") == "load" else None


SLOW_FOLDERS = ("attacks", "cluster", "device")
"""Folders whose tests are all slow."""


def _leaves_out_slow(config: pytest.Config) -> bool:
    """Whether slow tests are left out: unless an option wants them, or a file is named."""
    files = (Path(argument.partition("::")[0]).is_file() for argument in config.args)
    return not (config.getoption("slow") or config.getoption("markexpr") or any(files))


def pytest_report_header(config: pytest.Config) -> str | None:
    if not _leaves_out_slow(config):
        return None
    return "without tests marked `slow`: add --slow to run these too, or -m slow for these alone"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="tests marked `slow`, too")
    parser.addoption(
        "--few",
        action="store_true",
        help="the last case of each test without a folder, or the last test of a file",
    )


def _mark_slow(items: Sequence[pytest.Item]) -> None:
    """Marks what a folder or `slow(after=n)` says is slow, and unmarks the first n cases."""
    numbers: Counter[str] = Counter()
    for item in items:
        test = item.nodeid.partition("[")[0]
        numbers[test] += 1
        mark = item.get_closest_marker("slow")
        if mark is not None and numbers[test] <= mark.kwargs.get("after", 0):
            item.own_markers = [each for each in item.own_markers if each.name != "slow"]
        if item.path.relative_to(TESTS).parts[0] in SLOW_FOLDERS:
            item.add_marker("slow")


def _fixtures(item: pytest.Item) -> Collection[str]:
    return getattr(item, "fixturenames", ())


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if "rounding" in _fixtures(item):
            item.add_marker("rounding")
    _mark_slow(items)
    if _leaves_out_slow(config):
        config.hook.pytest_deselected(items=[i for i in items if i.get_closest_marker("slow")])
        items[:] = [item for item in items if not item.get_closest_marker("slow")]
    if config.getoption("few"):
        # A folder is for what takes long: a run, its checkpoints, a process of its own.
        cases = {i.nodeid.partition("[")[0]: i for i in items if "tmp_path" not in _fixtures(i)}
        files = {item.path for item in cases.values()}
        few = [*cases.values(), *{i.path: i for i in items if i.path not in files}.values()]
        config.hook.pytest_deselected(items=[item for item in items if item not in few])
        items[:] = few
    items.sort(key=lambda item: item.path.stem not in LONGEST)


def pytest_collection_finish() -> None:
    """Garbage is looked for less often, and not among the objects of torch, transformers, ..."""
    gc.set_threshold(10_000, 10, 10)
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Libraries complain at the end of what nobody could collect."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _no_process_group_is_left() -> Iterator[None]:
    """A sharded run in a test's process opens a group, which stays for the policy it returns."""
    yield
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


@pytest.fixture
def rounding() -> ModuleType:
    """Bounds of rounding errors: `tests/rounding.py`. Tests that take it are marked `rounding`."""
    from tests import rounding

    return rounding


@pytest.fixture
def reloaded(tmp_path: Path) -> Callable[[Any], Any]:
    """reloaded(state): the state of a part of a run as a checkpoint gives it back."""
    from groupwise.storage.checkpoint import Checkpoints
    from groupwise.storage.staging import Checkpoint

    checkpoints, steps = Checkpoints(tmp_path / "reloaded"), count(1)

    def save_and_load(state: Any) -> Any:
        checkpoints.save(next(steps), Checkpoint(tensors={}, state={"part": state}))
        return checkpoints.load().state["part"]

    return save_and_load
