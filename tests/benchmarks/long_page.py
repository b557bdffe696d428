"""How large the page of a long run is, and how long a browser takes to open it.

    python tests/benchmarks/long_page.py                     # 10,000 steps, 100 evaluations

A page is opened when its first frame is drawn. Needs playwright and a browser.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

from groupwise_report.writing import write_report

sys.path.append(str(Path(__file__).parents[2]))
from tests.report import long_run

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DRAWN = "new Promise(done => requestAnimationFrame(() => setTimeout(done)))"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--evaluations", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = long_run.write(
            Path(folder) / "long", steps=options.steps, evaluations=options.evaluations
        )
        began = time.process_time()
        page = write_report(run)
        print(f"written in {time.process_time() - began:.1f} s of one core")
        print(f"size {page.stat().st_size / 1e6:.2f} MB")
        seconds = [opening(page) for _ in range(options.rounds)]
    print(f"opened in {statistics.median(seconds):.2f} s (median of {len(seconds)}, at most "
          f"{max(seconds):.2f})")  # fmt: skip


def opening(page: Path) -> float:
    """Seconds until the first frame, in a browser that has just started."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1280, "height": 900})
        began = time.monotonic()
        tab.goto(page.resolve().as_uri())
        tab.evaluate(DRAWN)
        taken = time.monotonic() - began
        browser.close()
    return taken


if __name__ == "__main__":
    main()
