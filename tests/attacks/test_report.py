"""The report of a run with hostile names and texts, in a real browser."""

import json
import re
from pathlib import Path

import pytest

from groupwise_report.writing import write_report

PROMISE = "A report executes no content of a run, loads nothing, and fits the window"
WIDTHS = (360, 800, 1600)
RUN = "window.hacked = true"
MARKUP = [
    f"<script>{RUN}</script>",
    f"</script><script>{RUN}</script>",
    f"</style><script>{RUN}</script><style>",
    f"</title></head><body onload='{RUN}'>",
    f"--><!--<script>{RUN}</script>",
    f"<img src=x onerror='{RUN}'>",
    f"\"'><svg onload={RUN}>",
    f"<svg><style></svg><img src=x onerror={RUN}>",
    f"</div></article></section></main><iframe srcdoc='<script>parent.{RUN}</script>'>",
    "<link rel=stylesheet href=http://127.0.0.1:9/x.css><base href=http://127.0.0.1:9>",
    "<meta http-equiv=refresh content='0;url=http://127.0.0.1:9'>",
    "<img src=http://127.0.0.1:9/x.png><video src=http://127.0.0.1:9/x.mp4 autoplay>",
    "<style>* { display: none !important; position: fixed }</style>",
    "&lt;script&gt;&#60;b&#62;&amp;",
    f"javascript:{RUN}",
    f"`${{{RUN}}}` {{{{constructor.constructor('{RUN}')()}}}}",
    f"a\u2028{RUN}\u2029b\u0085c",
    "]]><![CDATA[ x",
]
SHAPES = {
    "long": "n" * 5_000,
    "long with blanks": "na me " * 900,
    "override": "\u202egnp.exe\u202e\u2067\u2066 at the end",
    "unbalanced": "\u2066\u2067\u202b\u202a" * 40 + "x",
    "right to left": "\u05d0\u05d1\u05d2 \u0627\u0628\u062a 12 \u200f",
    "zero widths": "\u200b\u200d\ufeff" * 1_500,
    "marks": "Z" + "\u0300\u0301\u0489\u20dd" * 800,
    "surrogates": "\ud800\udc00 \udfff \ud83d",
    "controls": "".join(map(chr, range(32))) + "\x7f\x9b31m",
    "wide": "\ufdfd\U00012031" * 200,
    "blank": " ",
    "tabs": "\t" * 3_000,
}
NUMBERS = "1" * 6_000
DEEP = "[" * 10_000 + "]" * 10_000
NESTED = '{"a":' * 400 + "1" + "}" * 400
PNG = b"\x89PNG\r\n\x1a\n"
CONTRAST = Path(__file__).with_name("contrast.js").read_text()


class OpenPage:
    """A page in a browser, and a list of all events that a report must not cause."""

    def __init__(self, browser, file: Path, scheme: str = "light") -> None:
        self.page = browser.new_page(color_scheme=scheme)
        self.events: list[str] = []
        self.page.on("request", self._request)
        self.page.on("dialog", lambda dialog: self.events.append(f"dialog {dialog.message}"))
        self.page.on("pageerror", lambda error: self.events.append(f"error {error}"))
        self.page.on("console", lambda message: self.events.append(f"console {message.text}"))
        self.page.on("popup", lambda _: self.events.append("a window"))
        self.page.on("framenavigated", self._frame)
        self.url = file.resolve().as_uri()
        self.page.goto(self.url)

    def _request(self, request) -> None:
        if request.url != self.url and not request.url.startswith("data:image/"):
            self.events.append(f"request of {request.url[:100]}")

    def _frame(self, frame) -> None:
        if frame.url != self.url:
            self.events.append(f"frame of {frame.url[:100]}")

    def check(self) -> None:
        """At every width: no script ran, nothing was loaded, and the page fits the window."""
        evaluate = self.page.evaluate
        assert evaluate("window.hacked") is None
        assert evaluate("document.scripts.length") == 1
        foreign = "iframe, object, embed, link, base, form, video, audio, a, body [id]"
        foreign += ", input:not(.controls input, .filters input)"
        assert evaluate(f"document.querySelectorAll('{foreign}').length") == 0
        handlers = "[...document.querySelectorAll('*')].flatMap(e => [...e.attributes])"
        assert evaluate(f"{handlers}.filter(a => a.name.startsWith('on')).length") == 0
        for width in WIDTHS:
            self.page.set_viewport_size({"width": width, "height": 900})
            widths = evaluate("[document.documentElement.scrollWidth, innerWidth]")
            assert widths[0] <= widths[1], (width, self.widest())
        for plot in self.page.locator(".plot").all()[:2]:
            plot.hover()
        assert evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert self.events == []

    def widest(self) -> list[str]:
        """The first elements that are wider than the window, for the message of a failed test."""
        return self.page.evaluate(
            "[...document.querySelectorAll('body *')]"
            ".filter(e => e.getBoundingClientRect().right > innerWidth)"
            ".slice(0, 5).map(e => e.outerHTML.slice(0, 200))"
        )

    def text(self) -> str:
        return self.page.inner_text("body")


def run_of(folder: Path, names: list[str], *, numbers: bool = False) -> Path:
    """Writes a run in which all names and all texts are taken from `names`."""
    (folder / "samples").mkdir(parents=True)
    rewards = {name: 0.5 * number for number, name in enumerate(names)}
    keys = ("rewards/", "evaluation/rewards/", "evaluation/watch/", "alarm/", "time/")
    keys += ("reward_time/", "evaluation/pass_at_")
    steps = [
        {"step": step, "reward": step / 9, "reward_std": 0.1, "kl": 0.1, "evaluation/reward": step}
        | {key + name: (number + step) / 7 for key in keys for number, name in enumerate(names)}
        for step in range(8)
    ]
    evaluated = {
        f"{key}{name}": 0.5 for key in ("rewards/", "watch/", "pass_at_") for name in names
    }
    result = {"before": evaluated, "after": evaluated, "policy": names[0], "unit": names[0]}
    samples = [
        {
            "prompt": text if number % 2 else [{"role": text, "content": [{"text": text}, text]}],
            "completion": text * (1 if len(text) > 100 else 20),
            "rewards": rewards,
            "watched": rewards,
            "draw": text,
            "index": text,
            "right": bool(number % 2),
            "greedy": number % 3 == 0,
            **({"image": text if number % 4 else "samples/broken.png"} if number > 5 else {}),
        }
        for number, text in enumerate(names)
    ]
    lines = "".join(json.dumps(step) + "\n" for step in steps)
    if numbers:
        lines += f'{{"step": 9, "reward": {NUMBERS}, "kl": 1e300, "entropy": 1e99}}\n'
        lines += f'{{"step": 1e99, "reward": 1}}\n{{"step": {NUMBERS}}}\n{{"step": -5, "kl": 1}}\n'
        lines += f'{{"step": 10, "reward": 1, "x": {DEEP}}}\n{{"step": 11, "x": {NESTED}}}\n'
        lines += '{"step": 12, "accuracy": 1e90, "length": 1e40, "evaluation/accuracy": -1e90}\n'
        lines += '{"step": 13, "time/sample": 1e80, "decisions_per_second": 1e-300}\n'
        result |= {"steps": 1e99, "seconds": 1e99}
        result["after"] = evaluated | {"accuracy": 1e98, "reward": -1e99, "length": 1e300}
    (folder / "metrics.jsonl").write_text(lines)
    (folder / "result.json").write_text(json.dumps(result))
    for side, change in (("before", ""), ("after", " changed")):
        rows = [{**sample, "completion": sample["completion"] + change} for sample in samples]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        if numbers:
            text += (
                f'{{"draw": {NUMBERS}, "completion": {NUMBERS}, "rewards": {{"r": {NUMBERS}}}}}\n'
            )
            text += f'{{"draw": 1, "completion": {DEEP}}}\n'
            text += (
                f'{{"draw": 2, "prompt": {NESTED}, "completion": {NESTED}, "rewards": {NESTED}}}\n'
            )
            text += (
                '{"draw": 3, "completion": "r", "rewards": {"r": 1e300, "s": "'
                + "9" * 9000
                + '"}}\n'
            )
            text += json.dumps({"draw": 4, "completion": "y" * 10**6, "prompt": "z" * 10**6}) + "\n"
            text += (
                json.dumps({"draw": 5, "completion": "a b " * 250_000, "image": "samples"}) + "\n"
            )
        (folder / "samples" / f"{side}.jsonl").write_text(text)
    kept = [
        {**sample, "step": number, "chosen": ["best", text], "advantage": number, "total": text}
        for number, (text, sample) in enumerate(zip(names, samples, strict=True))
    ]
    lines = "".join(json.dumps(row) + "\n" for row in kept)
    if numbers:
        lines += f'{{"step": {NUMBERS}, "total": {NUMBERS}, "chosen": {DEEP}, "right": []}}\n'
        lines += f'{{"step": [1], "total": 1e99, "group": {NESTED}, "completion": {NESTED}}}\n'
    (folder / "samples" / "training.jsonl").write_text(lines)
    start = {"command": "".join(names)[:9_000], "time": names[0], "packages": rewards}
    start |= {"devices": {name: name for name in names}, "system": names[-1], "cores": NUMBERS}
    (folder / "run.json").write_text(json.dumps({"starts": [start, {"packages": {}}, start, 3]}))
    (folder / "samples" / "broken.png").write_bytes(PNG + b"\0\0\0\rIHDR\0\0\0\x20 and no more")
    config = "".join(f"key{number}: {text!a}\n" for number, text in enumerate(names))
    (folder / "config.yaml").write_text(config)
    return folder


@pytest.mark.attack(PROMISE, "18 pieces of markup in every name and text of a run")
def test_markup_stays_text(browser, tmp_path, tries):
    opened = OpenPage(browser, write_report(run_of(tmp_path / "run", MARKUP)))
    opened.check()
    words = re.sub(r"\s+", " ", opened.text())
    for text in MARKUP[:10]:
        assert re.sub(r"\s+", " ", text)[:40] in words
        tries(len(WIDTHS))
    assert opened.page.locator("figure svg").count() > 20
    assert len(opened.page.locator(".sample").all()) == len(MARKUP)


@pytest.mark.attack(PROMISE, "names of 5,000 characters, bidirectional controls, marks, tabs")
def test_text_of_any_kind_fits_the_window(browser, tmp_path, tries, full):
    runs = {"all": list(SHAPES.values())}
    runs |= {name: [text, f"{text}2", "plain"] * 3 for name, text in SHAPES.items()} if full else {}
    for name, texts in runs.items():
        opened = OpenPage(browser, write_report(run_of(tmp_path / name, texts)))
        opened.check()
        opened.page.close()
        tries(len(WIDTHS) * len(set(texts)))


@pytest.mark.attack(PROMISE, "numbers of 6,000 digits, JSON 10,000 deep, texts of 1 MB")
def test_numbers_and_nesting_of_any_size_fit_the_window(browser, tmp_path, tries):
    opened = OpenPage(
        browser, write_report(run_of(tmp_path / "run", ["plain", "other"], numbers=True))
    )
    opened.check()
    words = opened.text()
    assert not re.search(r"[\d,]{40}", words.replace("9" * 40, ""))
    assert "characters left out" in words
    tries(len(WIDTHS))


def test_directions_of_text_do_not_affect_other_elements(browser, tmp_path):
    names = [SHAPES["override"], SHAPES["right to left"], SHAPES["unbalanced"]]
    opened = OpenPage(browser, write_report(run_of(tmp_path / "run", names)))
    opened.page.set_viewport_size({"width": 1600, "height": 900})
    orders = opened.page.evaluate(
        """[...document.querySelectorAll('.scores > span, .legend > span')].map(span => {
          const value = span.querySelector('b').getBoundingClientRect();
          const name = document.createRange();
          name.setStart(span, 0);
          name.setEndBefore(span.querySelector('b'));
          const box = [...name.getClientRects()].at(-1);  // of its last line
          return !box || !box.width || value.top >= box.bottom - 2 || value.left >= box.right - 2;
        })"""
    )
    assert len(orders) > 20
    assert all(orders)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_in_both_schemes(browser, tmp_path, scheme):
    """Contrast of at least 4.5 (WCAG 2.1, AA) between all text and its background."""
    names = ["correct", "format"]
    opened = OpenPage(browser, write_report(run_of(tmp_path / "run", names)), scheme)
    opened.page.evaluate("document.querySelector('details').open = true")
    contrasts = opened.page.evaluate(CONTRAST)
    assert len(contrasts) > 12
    assert {key: ratio for key, ratio in contrasts.items() if ratio < 4.5} == {}
    lines = opened.page.locator("path.line, path.dot")
    assert lines.count() > 4
    assert all(box["height"] > 0 for box in (line.bounding_box() for line in lines.all()[:4]))
