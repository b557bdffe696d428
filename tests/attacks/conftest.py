"""Attacks on promises of the docs; `pytest tests/attacks --full` makes many more tries.

`@pytest.mark.attack(PROMISE, HOW)` names the promise and the way a test attacks it; the fixture
`tries` counts the tries. With `--full` the run prints the tries that docs/reliability.md sums.
"""

import shutil
from collections import Counter
from collections.abc import Callable

import hypothesis
import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_counts: Counter[tuple[str, str]] = Counter()
_broken: set[tuple[str, str]] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="many more tries of each attack")


def pytest_configure(config: pytest.Config) -> None:
    # Without --full the inputs are always the same, so no test fails by chance.
    options = {"deadline": None, "database": None}
    hypothesis.settings.register_profile("small", max_examples=60, derandomize=True, **options)
    hypothesis.settings.register_profile("full", max_examples=5_000, **options)
    hypothesis.settings.load_profile("full" if _is_full(config) else "small")


def _is_full(config: pytest.Config) -> bool:
    return bool(config.getoption("--full", default=False))


@pytest.fixture(scope="session")
def full(pytestconfig: pytest.Config) -> bool:
    """Whether --full is set: a test may take minutes instead of seconds."""
    return _is_full(pytestconfig)


@pytest.fixture
def tries(request: pytest.FixtureRequest) -> Callable[[int], None]:
    """tries(count=1) adds to the number of tries of this attack."""
    promise, how = request.node.get_closest_marker("attack").args

    def add(count: int = 1) -> None:
        _counts[promise, how] += count

    return add


def browser_path() -> str | None:
    return next(filter(None, map(shutil.which, BROWSERS)), None)


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    path = browser_path()
    if path is None:
        pytest.skip(f"needs a browser: none of {', '.join(BROWSERS)} is installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report = yield
    marker = item.get_closest_marker("attack")
    if marker is not None and report.failed:
        _broken.add(marker.args)
    return report


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    if not _is_full(config) or not _counts:
        return
    terminalreporter.write_line("| What is promised | How it is tried | Tries | |")
    terminalreporter.write_line("|---|---|---|---|")
    for (promise, how), count in _counts.items():
        verdict = "broken" if (promise, how) in _broken else "held"
        terminalreporter.write_line(f"| {promise} | {how} | {count:,} | {verdict} |")
