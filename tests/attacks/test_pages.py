"""The report of several runs, and a page that follows a run, in a real browser.

With the sizes of a phone and a desktop, light and dark. Few pages are opened, as each takes 1 s.
"""

import itertools
import json
import threading
from contextlib import contextmanager

import pytest
from tests.attacks.test_report import CONTRAST, MARKUP, NUMBERS, OpenPage, run_of
from tests.effort import Effort
from tests.report import long_run

from groupwise_report.watch import Server
from groupwise_report.writing import write_comparison, write_report

PROMISE = "A report executes no content of a run, loads nothing, and fits the window"
PHONE, DESKTOP = {"width": 390, "height": 844}, {"width": 1280, "height": 900}


@pytest.mark.attack(PROMISE, "markup in every name and text of several runs on one page")
def test_markup_of_several_runs_stays_text(browser, tmp_path, tries):
    runs = [run_of(tmp_path / name, MARKUP, numbers=name == "two") for name in ("one", "two")]
    runs[1].joinpath("config.yaml").write_text(
        "".join(f"k{n}: {t!r}\n" for n, t in enumerate(MARKUP))
    )
    opened = OpenPage(browser, write_comparison(runs))
    opened.check()
    assert not any(NUMBERS[:40] in text for text in opened.text().split())
    tries(len(MARKUP))


def test_the_report_of_nine_runs_is_readable(browser, tmp_path):
    """Contrast of at least 4.5; the page fits the window, and charts do not cover their legends."""
    runs = [run_of(tmp_path / f"a_run_of_a_long_name_{n}", ["correct", "format"]) for n in range(9)]
    opened = OpenPage(browser, write_comparison(runs))
    evaluate = opened.page.evaluate
    for size, scheme in itertools.product((PHONE, DESKTOP), ("light", "dark")):
        opened.page.set_viewport_size(size)
        opened.page.emulate_media(color_scheme=scheme)
        assert evaluate("document.documentElement.scrollWidth <= innerWidth"), opened.widest()
        contrasts = evaluate(CONTRAST)
        assert {key: ratio for key, ratio in contrasts.items() if ratio < 4.5} == {}
        boxes = evaluate(
            """[...document.querySelectorAll('figure')].map(figure => {
              const box = figure.getBoundingClientRect();
              const legend = figure.querySelector('.legend').getBoundingClientRect();
              const plot = figure.querySelector('.plot').getBoundingClientRect();
              return legend.bottom <= plot.top && legend.right <= box.right && plot.height > 100;
            })"""
        )
        assert len(boxes) > 5
        assert all(boxes)
        colours = evaluate(
            "[...document.querySelector('figure').querySelectorAll('.key')]"
            ".map(k => getComputedStyle(k).backgroundColor + getComputedStyle(k).backgroundImage)"
        )
        assert len(set(colours)) == 9
        # The head of a row stays visible when the table is scrolled.
        evaluate("document.querySelector('.card').scrollLeft = 9999")
        name = "document.querySelector('td').getBoundingClientRect().left"
        assert evaluate(f"{name} >= 0")
    assert opened.events == []


@contextmanager
def follow(browser, run):
    """Opens a page that follows the run; yields the page, its server and a list of errors."""
    with Server([run], 0, lambda _: None) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        page = browser.new_page()
        events: list[str] = []
        page.on("pageerror", lambda error: events.append(str(error)))
        page.on("console", lambda message: events.append(message.text))
        # Twenty times as often as every two seconds.
        page.add_init_script("const later = setTimeout; setTimeout = (f, ms) => later(f, ms / 20)")
        try:
            page.goto(server.address)
            yield page, server, events
        finally:
            server.shutdown()
            thread.join()
            page.close()


def wait(page, condition):
    """Waits for a condition without eval, which the security policy of the page forbids."""
    for _ in range(400):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    raise AssertionError(condition)


def step(run, number, **fields):
    row = {"step": number, "reward": number / 20, "reward_std": 0.1, "kl": 0.1, **fields}
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")


def test_a_page_that_follows_its_run_keeps_the_scroll_position(browser, tmp_path):
    names = ["correct", "format"] + [f"long text {n} " * 200 for n in range(12)]
    run = run_of(tmp_path / "run", names)
    (run / "result.json").unlink()
    (run / "samples" / "after.jsonl").unlink()
    with follow(browser, run) as (page, _, events):
        evaluate = page.evaluate
        evaluate("document.querySelector('details').open = true")
        evaluate("window.card = document.querySelectorAll('.sample')[4]")
        position = "card.getBoundingClientRect().top"
        for number, size in ((30, PHONE), (31, DESKTOP)):
            page.set_viewport_size(size)
            evaluate("card.scrollIntoView()")
            evaluate("card.querySelector('.words').scrollTop = 33")
            before, height = evaluate(position), evaluate("card.offsetTop")
            # A new line in the header, a new tile and a new chart, all above the visible card.
            with (run / "metrics.jsonl").open("a") as file:
                file.write("damaged\n")
            fields = {f"evaluation/watch/{number}": 3.0, "evaluation/reward": 9.0}
            step(run, number, **fields)
            wait(page, f"document.querySelector('main').dataset.last === '{number}'")
            assert evaluate("card.offsetTop") > height
            assert abs(evaluate(position) - before) <= 1  # pixel
            assert evaluate("card.querySelector('.words').scrollTop") == 33
            assert evaluate("card.isConnected && document.querySelector('details').open")
            # New charts react to the pointer, too.
            page.locator(".plot").first.hover()
            assert evaluate("document.querySelector('.cursor').hidden") is False
        assert events == []


def test_open_details_stay_open_when_their_content_changes(browser, tmp_path):
    run = run_of(tmp_path / "run", ["a"])
    with follow(browser, run) as (page, _, events):
        for details in ("main > details", ".completions details"):
            page.evaluate(f"document.querySelector('{details}').open = true")
        page.locator(".filters input").fill("a")
        page.locator(".completions th").nth(2).click()
        (run / "config.yaml").write_text("seed: 77\n")
        row = json.dumps({"step": 0, "completion": "new: a", "total": 2.0})
        rows = run / "samples" / "training.jsonl"
        rows.write_text(f"{row}\n{rows.read_text()}")
        step(run, 8)
        wait(page, "document.querySelector('pre').textContent.includes('77')")
        wait(page, "document.querySelector('.completions').textContent.includes('new')")
        assert page.evaluate("document.querySelector('main > details').open")
        # The row is another one now, but the one that was opened is open, and filters stay.
        opened = page.locator(".completions details[open]")
        assert [*map(str.strip, opened.locator("summary").all_inner_texts())] == ["a" * 20]
        assert page.locator(".filters input").input_value() == "a"
        assert page.locator(".completions th").nth(2).get_attribute("aria-sort") == "descending"
        assert events == []


def test_sections_of_a_new_run_appear_in_order(browser, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text("{}")
    (run / "config.yaml").write_text("seed: 1\n")
    with follow(browser, run) as (page, _, events):
        assert page.locator("figure").count() == 0
        for number in range(1, 4):
            step(run, number, **{"time/sample": 2.0})
        page.wait_for_selector("figure")
        heads = page.locator("h2, summary").all_inner_texts()
        assert heads == ["What it learned", "How training went", "Time and memory",
                         "Configuration"]  # fmt: skip
        assert events == []


def test_a_page_shows_that_its_server_does_not_answer(browser, tmp_path):
    run = run_of(tmp_path / "run", ["a"])
    with follow(browser, run) as (page, server, _):
        assert page.locator(".lost").is_hidden()
        server.shutdown()
        server.server_close()
        page.wait_for_selector(".lost", state="visible")
        assert "does not answer" in page.inner_text(".lost")


@pytest.fixture(scope="module")
def long_page(browser, tmp_path_factory):
    """The page of a long run, for all tests of what its script does; and when it began to open."""
    run = long_run.write(tmp_path_factory.mktemp("long"), steps=1_000, prompts=60)
    file = write_report(run)
    with Effort() as effort:
        opened = OpenPage(browser, file)
        opened.page.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
    return opened, effort


def test_the_page_of_a_long_run_opens_within_two_seconds(long_page):
    opened, effort = long_page
    assert effort.wall < 2
    assert opened.events == []


def test_smoothing_redraws_lines_and_keeps_what_was_measured(long_page):
    """Between none and a lot, the line approaches its mean, and its own form comes back."""
    evaluate = long_page[0].page.evaluate
    slider = long_page[0].page.locator(".controls input")
    line = "document.querySelector('.chart [data-line]')"
    own = evaluate(f"{line}.getAttribute('d')")
    heights = []
    for level in range(6):
        slider.fill(str(level))
        drawn = evaluate(f"{line}.getAttribute('d')")
        assert (drawn == own) == (level == 2)
        ys = [float(pair.split(" ")[1]) for pair in drawn[1:].split("L")]
        heights.append(sum(abs(b - a) for a, b in itertools.pairwise(ys)))
    assert heights == sorted(heights, reverse=True)
    slider.fill("2")
    assert evaluate(f"{line}.getAttribute('d')") == own
    # A line that the page does not smooth gets a faint one behind it, and loses it again.
    loose = "document.querySelectorAll('.raw[data-added]').length"
    assert evaluate(loose) == 0


def test_completions_are_sorted_and_filtered(long_page):
    page = long_page[0].page
    rows = "[...document.querySelectorAll('.completions tbody tr:not([hidden])')]"

    def shown(key):
        return page.evaluate(f"{rows}.map(row => row.dataset.{key})")

    def rewards():
        return page.evaluate(f"{rows}.map(row => +row.cells[2].dataset.value)")

    assert set(shown("when")) == {"training"}
    page.locator(".completions th").nth(2).click()
    assert rewards() == sorted(rewards(), reverse=True)
    page.locator(".completions th").nth(2).click()
    assert rewards() == sorted(rewards())
    when, kept, judged = page.locator(".filters select").all()
    kept.select_option("chosen longest")
    judged.select_option("right 0")
    assert len(shown("when")) > 3
    assert (set(shown("chosen")), set(shown("right"))) == ({"longest"}, {"0"})
    for choice in (when, kept, judged):
        choice.select_option("")
    page.locator(".filters input").fill("QUESTION 7:")
    assert {"before", "after"} <= set(shown("when"))
    every = "[...document.querySelectorAll('.completions tbody tr')].map(row => row.textContent)"
    assert len(shown("when")) == sum("Question 7:" in text for text in page.evaluate(every))
    assert page.inner_text(".filters output").startswith(f"{len(shown('when'))} of ")
    page.locator(".filters input").fill("")


def test_the_colours_can_be_switched(long_page):
    page = long_page[0].page
    ground = "getComputedStyle(document.body).backgroundColor"
    page.emulate_media(color_scheme="light")
    light = page.evaluate(ground)
    page.locator(".controls select").select_option("dark")
    dark = page.evaluate(ground)
    page.locator(".controls select").select_option("")
    assert page.evaluate(ground) == light != dark
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(ground) == dark
    page.locator(".controls select").select_option("light")
    assert page.evaluate(ground) == light
    page.reload()  # the choice is kept
    assert page.evaluate(ground) == light
    page.locator(".controls select").select_option("")
