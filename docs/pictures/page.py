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

WIDTH, HEAD, TABLE = 1080, 600, 420  # pixels of the page
COLOURS = 64
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
        parts = [shot(page, "body", HEAD), table(page)]
        browser.close()
    whole = Image.new("RGB", (WIDTH, sum(part.height for part in parts)), "white")
    top = 0
    for part in parts:
        whole.paste(part, (0, top))
        top += part.height
    whole.quantize(COLOURS).save(out, optimize=True)


def table(page: Page) -> Image.Image:
    """The completions of training with the largest advantages, the first one opened."""
    page.locator(".completions th").nth(ADVANTAGE).click()
    page.locator(".completions tbody tr:visible summary").first.click()
    return shot(page, "section:has(.completions)", TABLE)


def shot(page: Page, selector: str, height: int) -> Image.Image:
    """The upper part of an element, over the whole width of the page."""
    box = page.locator(selector).bounding_box()
    assert box is not None
    clip = {"x": 0, "y": box["y"], "width": WIDTH, "height": height}
    return Image.open(BytesIO(page.screenshot(clip=clip, full_page=True))).convert("RGB")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
