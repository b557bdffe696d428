"""README's picture of a run's page: its head, and the table of completions.

    groupwise train examples/arithmetic.yaml
    python docs/pictures/page.py runs/arithmetic docs/pictures/page.png

Needs playwright, Pillow and a browser (chromium, or google-chrome).
"""

import shutil
import sys
import tempfile
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from groupwise_report.writing import write_report

WIDTH = 1080  # pixels of the page
ROWS = 5  # of the table
GAP = 14
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ADVANTAGE = 5  # column of the table


def main(run: Path, out: Path) -> None:
    browser_path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser_path is None:
        sys.exit(f"needs a browser, one of {', '.join(BROWSERS)}")
    with sync_playwright() as driver, tempfile.TemporaryDirectory() as folder:
        page_file = write_report(run, Path(folder) / "page.html")
        browser = driver.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 2000}, color_scheme="light")
        page.goto(page_file.as_uri())
        parts = [head(page), table(page)]
        browser.close()
    whole = Image.new("RGB", (WIDTH, sum(part.height for part in parts)))
    whole.paste(parts[0], (0, 0))
    whole.paste(parts[1], (0, parts[0].height))
    whole.quantize(256).save(out, optimize=True)


def head(page: Page) -> Image.Image:
    """Down to the first row of charts."""
    return shot(page, 0, edge(page, "figure:nth-child(2)", "bottom") + GAP)


def table(page: Page) -> Image.Image:
    """The completions of training with the largest advantages."""
    page.locator(".completions th").nth(ADVANTAGE).click()
    page.mouse.move(0, 0)
    rows = page.locator(".completions tbody tr:visible")
    last = rows.nth(ROWS - 1).evaluate("row => row.getBoundingClientRect().bottom + scrollY")
    return shot(page, edge(page, "section:has(.completions)", "top") - GAP, last + 2)


def edge(page: Page, selector: str, side: str) -> float:
    """In pixels from the page's top, wherever it is scrolled to."""
    found = page.locator(selector).first
    return float(found.evaluate(f"e => e.getBoundingClientRect().{side} + scrollY"))


def shot(page: Page, top: float, bottom: float) -> Image.Image:
    """A part of the page, in its whole width."""
    clip = {"x": 0, "y": top, "width": WIDTH, "height": bottom - top}
    return Image.open(BytesIO(page.screenshot(clip=clip, full_page=True))).convert("RGB")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
