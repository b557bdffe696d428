"""The documentation as a site: built without warnings, working offline, searchable from files."""

import re
import shutil
import subprocess
import sys
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site, with the reference of every public module; takes about six seconds."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return folder


class Links(HTMLParser):
    """The links of a page, and the addresses that it loads."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag in {"script", "img", "iframe"} and values.get("src"):
            self.loads.append(values["src"])
        if tag == "link" and values.get("rel") != "canonical":
            self.loads.append(values["href"])
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])


def is_broken(page: Path, link: str) -> bool:
    parts = urlsplit(link)
    if parts.scheme in {"http", "https", "mailto", "data"}:
        return False
    return not (page.parent / unquote(parts.path)).exists() if parts.path else False


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Links]:
    return {page: Links(page) for page in sorted(site.rglob("*.html"))}


def test_every_link_of_every_page_points_to_a_file(site: Path, pages: dict[Path, Links]) -> None:
    """Also of pages made from files outside docs/, such as modules and examples."""
    assert site / "repository/core/groupwise/policy.py.html" in pages
    assert site / "repository/examples/notebooks/reasoning.ipynb.html" in pages
    broken = [
        f"{page.relative_to(site)}: {link}"
        for page, page_links in pages.items()
        if page.name != "404.html"  # its links are absolute
        for link in (*page_links.links, *page_links.loads)
        if is_broken(page, link)
    ]
    assert broken == []


def test_no_page_loads_anything_from_the_network(site: Path, pages: dict[Path, Links]) -> None:
    loads = {load for page_links in pages.values() for load in page_links.loads}
    assert [load for load in loads if urlsplit(load).scheme in {"http", "https"}] == []
    sheets = [sheet.read_text(encoding="utf-8") for sheet in site.rglob("*.css")]
    assert not [url for text in sheets for url in re.findall(r"url\(['\"]?(https?:[^)]*)", text)]


def test_the_search_works_from_files(site: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip("there is no browser")
    requests: list[str] = []
    with playwright.sync_playwright() as browsers:
        browser = browsers.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(100_000)
        page.on("request", lambda request: requests.append(request.url))
        page.goto((site / "index.html").as_uri())
        results = page.locator(".md-search-result__link")
        for _ in range(10):  # keys pressed before the page's script is ready are lost
            page.fill("input.md-search__input", "")
            page.click("input.md-search__input")
            page.keyboard.type("leave_one_out", delay=30)
            with suppress(playwright.TimeoutError):
                results.first.wait_for(timeout=10_000)
                break
        places = [link.get_attribute("href") for link in results.all()]
        browser.close()
    assert any("groupwise_algorithms/rloo.py.html" in place for place in places)
    assert [url for url in requests if urlsplit(url).scheme in {"http", "https"}] == []
