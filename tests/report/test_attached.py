"""Pictures of prompts and of tools' answers on the page."""

import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.report.test_report import HOSTILE, page_of, sample, write_run

from groupwise_report import image_file, images

TEXT = {"type": "text", "text": "What is it?"}


def stored(run: Path, name: str, size: tuple[int, int], kind: str = "PNG") -> str:
    """The name of a picture in the folder of a run."""
    folder = run / "samples" / "attached"
    folder.mkdir(parents=True, exist_ok=True)
    Image.effect_noise(size, 80).convert("RGB").save(folder / name, kind)
    return f"samples/attached/{name}"


def shown(run: Path, prompt: Any, completion: Any = "A cat.", **fields: Any) -> str:
    rows = [sample(1, completion, right=True, prompt=prompt, **fields)]
    html, _ = page_of(write_run(run, [], after=rows))
    return html[html.index('<article class="sample') :]


def sources(html: str) -> list[str]:
    return [part.partition(";base64")[0] for part in html.split('src="')[1:]]


def test_pictures_of_columns_stand_above_the_prompt(tmp_path: Path) -> None:
    names = [stored(tmp_path, f"{n}.png", (20, 10)) for n in range(2)]
    for prompt in ("What is it?", [{"role": "user", "content": "What is it?"}]):
        html = shown(tmp_path, prompt, images=names)
        assert sources(html) == ["data:image/png"] * 2
        assert html.index("<img") < html.index("What is it?")
        assert "width:160px" in html  # enlarged by a whole factor


def test_pictures_stand_in_their_message(tmp_path: Path) -> None:
    one, other = (stored(tmp_path, f"{n}.png", (20, 10)) for n in range(2))
    block, own = {"type": "image"}, {"type": "image", "image": other}
    prompt = [{"role": "user", "content": [block, own, TEXT]}]
    html = shown(tmp_path, prompt, images=[one])
    assert html.index(f'alt="{one}"') < html.index(f'alt="{other}"') < html.index("What is it?")
    assert "[image]" not in html
    prompt = [{"role": "user", "content": [TEXT, own]}]
    assert "What is it?\n[image]" in shown(tmp_path, prompt)


def test_pictures_that_tools_return_are_shown(tmp_path: Path) -> None:
    name = stored(tmp_path, "zoomed.png", (20, 10))
    answer = [{"type": "image", "image": name}, {"type": "text", "text": "enlarged"}]
    completion = [{"role": "tool", "name": "zoom", "content": answer}]
    html = shown(tmp_path, "Zoom.", completion)
    assert sources(html) == ["data:image/png"]
    assert "<small>tool zoom</small> enlarged" in html


def test_large_pictures_are_reduced_and_their_number_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = stored(tmp_path, "large.png", (900, 600))
    assert (tmp_path / name).stat().st_size > 10 * images.LIGHT
    html = shown(tmp_path, "?", images=[name])
    assert sources(html) == ["data:image/jpeg"]
    assert len(html) < (tmp_path / name).stat().st_size // 4
    webp = stored(tmp_path, "small.webp", (20, 10), "WEBP")
    jpeg = stored(tmp_path, "small.jpg", (20, 10), "JPEG")
    assert sources(shown(tmp_path, "?", images=[webp, jpeg])) == ["data:image/jpeg"] * 2
    monkeypatch.setattr(images, "MOST_ATTACHED", 1)
    html = shown(tmp_path, "?", images=[webp, jpeg])
    assert html.count("<img") == 1
    assert f"[{jpeg}]" in html


@pytest.mark.parametrize(
    "name",
    ["../secret.png", "/etc/passwd", "samples/attached/words.png", "https://example.invalid/x"],
)
def test_what_is_no_picture_of_the_run_is_named(tmp_path: Path, name: str) -> None:
    run = tmp_path / "run"
    stored(run, "a.png", (9, 9))
    (run / "samples" / "attached" / "words.png").write_text("words")
    Image.new("RGB", (9, 9)).save(tmp_path / "secret.png")
    html = shown(run, "?", images=[name])
    assert "<img" not in html
    assert f"[{name}]" in html


@pytest.mark.parametrize(
    "content",
    [
        [{"type": HOSTILE, HOSTILE: HOSTILE}],
        [{"type": ["image"], "image": "x"}, {"type": {"a": 1}}],
        [{"type": "image", "image": {"deep": HOSTILE}}, None, 3],
        [{"type": "image"}],
    ],
)
def test_no_part_becomes_markup(tmp_path: Path, content: Any) -> None:
    prompt = [{"role": "user", "content": content}]
    for own in ([HOSTILE], HOSTILE, None, [{"a": 1}]):
        html = shown(tmp_path, prompt, prompt, images=own)
        assert HOSTILE not in html


def test_a_damaged_or_enormous_picture_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    name = stored(tmp_path, "large.png", (900, 600))
    monkeypatch.setattr(image_file, "MOST_PIXELS", 1000)
    assert "<img" not in shown(tmp_path, "?", images=[name])
    monkeypatch.undo()
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data[: len(data) // 2])
    assert "<img" not in shown(tmp_path, "?", images=[name])
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)  # without PIL
    light = io.BytesIO()
    light.write(b"\xff\xd8\xff small")
    (tmp_path / name).write_bytes(light.getvalue())
    assert sources(shown(tmp_path, "?", images=[name])) == ["data:image/jpeg"]


def film(run: Path, name: str, size: tuple[int, int]) -> str:
    """The name of an animation of noise in the folder of a run."""
    (run / "samples").mkdir(parents=True, exist_ok=True)
    first, *others = [Image.effect_noise(size, 80).convert("RGB") for _ in range(3)]
    first.save(run / "samples" / name, save_all=True, append_images=others, duration=125)
    return f"samples/{name}"


def completed(run: Path, file: str) -> str:
    return shown(run, "?", "", image=file)


def test_videos_move_and_have_a_first_frame_where_a_browser_has_no_avif(tmp_path: Path) -> None:
    small, large = film(tmp_path, "a.apng", (20, 10)), film(tmp_path, "b.avif", (300, 200))
    assert sources(completed(tmp_path, small)) == ["data:image/png"]
    assert "width:160px" in completed(tmp_path, small)
    for html in (completed(tmp_path, large), shown(tmp_path, "?", images=[large])):
        assert '<source type="image/avif" srcset="data:image/avif;base64,' in html
        assert sources(html) == ["data:image/jpeg"]


def test_a_video_too_large_for_the_page_is_its_first_frame_and_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = film(tmp_path, "a.apng", (250, 250))
    assert sources(completed(tmp_path, name)) == ["data:image/png"]  # a picture would be reduced
    monkeypatch.setattr(images, "LONG", 1000)
    html = completed(tmp_path, name)
    assert sources(html) == ["data:image/jpeg"]
    size = (tmp_path / name).stat().st_size / 1e6
    assert f"{name} ({size:.1f} MB: the first frame)" in html
    monkeypatch.setattr(images, "LARGEST", 1000)
    html = completed(tmp_path, name)
    assert "<img" not in html
    assert "MB, too large for this page)" in html
