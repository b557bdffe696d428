"""A video is a sequence of pictures, made of one array; what a run keeps of it."""

import base64
import io
import sys
from contextlib import suppress

import numpy as np
import pytest
from PIL import Image

from groupwise import attachments
from groupwise.kit import media
from groupwise.kit.copies import copied, equal, kept
from groupwise.kit.errors import UserError
from groupwise.prompts.identity import identity
from groupwise.recording.table import Table
from groupwise.storage.samples import read_samples, with_completions, write_samples
from groupwise.storage.training_samples import TrainingSamples
from groupwise_commands.sampled_set import SampledSet
from groupwise_messages.video import Video

PIXELS = np.arange(3 * 4 * 6 * 3, dtype=np.uint8).reshape(3, 4, 6, 3)


def test_frames_are_pictures_with_pixels_of_their_own():
    video = Video(PIXELS, 4)
    assert (len(video), video.size, video.seconds) == (3, (6, 4), 0.75)
    frame = video[-1]
    frame.putpixel((0, 0), (1, 2, 3))
    assert np.array_equal(video.pixels, PIXELS)
    assert [np.asarray(each).tolist() for each in video] == PIXELS.tolist()
    with pytest.raises(IndexError):
        video[3]


def test_a_part_shares_pixels_and_rate():
    part = Video(PIXELS, 4)[1:]
    assert part == Video(PIXELS[1:], 4)
    assert part != Video(PIXELS[1:], 8)
    assert np.shares_memory(part.pixels, PIXELS)
    with pytest.raises(ValueError, match="read-only"):
        part.pixels[0] = 0


@pytest.mark.parametrize("pixels", [PIXELS[0], PIXELS[..., :2], PIXELS / 255, PIXELS[:0]])
def test_what_is_no_video_is_refused(pixels):
    with pytest.raises(ValueError, match=r"\[frames, height, width, 3\] of uint8 with one frame"):
        Video(pixels)


def test_of_pictures_and_saved(tmp_path):
    video = Video.of([Image.fromarray(frame).convert("RGBA") for frame in PIXELS], 4)
    assert video == Video(PIXELS, 4)
    video.save(tmp_path / "film.png")
    with Image.open(tmp_path / "film.png") as animation:
        assert (animation.n_frames, animation.info["duration"]) == (3, 250)


# ---- files


def films():
    """Shapes and contents at which encoders leave out or join frames."""
    noise = np.random.default_rng(0).integers(0, 256, (4, 5, 7, 3), dtype=np.uint8)
    still = np.repeat(noise[:1], 3, axis=0)
    return {
        "moves": noise,
        "stands": still,
        "stops": np.concatenate([noise, still, still[:1] + 1]),
        "one frame": noise[:1],
        "one pixel": noise[:, :1, :1],
    }


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("name", films())
def test_a_small_video_comes_back_whole(tmp_path, name, small):
    for number, rate in enumerate((8, 24, 1001 / 24_000, 3000)):
        video = Video(films()[name], rate)
        file = media.write(video, tmp_path / f"a.{number}", small=small)
        assert file.name == f"a.{number}.apng"
        assert media.read(file) == video
        assert media.read(file).rate == video.rate


def test_a_large_video_comes_back_with_all_frames_and_its_rate(tmp_path):
    pixels = np.repeat(np.repeat(films()["stops"], 60, axis=1), 60, axis=2)
    file = media.write(Video(pixels, 24), tmp_path / "large")
    assert file.suffix == ".avif"
    assert file.stat().st_size < pixels.size / 20
    back = media.read(file)
    assert (len(back), back.size, back.rate) == (len(pixels), (420, 300), 24)
    assert np.abs(back.pixels.astype(int) - pixels).mean() < 10


def test_a_copy_is_a_video_and_an_own_one_has_pixels_of_its_own():
    pixels = PIXELS.copy()
    video = Video(pixels, 4)
    shared, own = copied([video])[0], kept([video])[0]
    assert shared is not video
    assert np.shares_memory(shared.pixels, pixels)
    pixels[0] = 0
    assert shared == video
    assert own == Video(PIXELS, 4)
    assert not own.pixels.flags.writeable
    assert equal([video], [shared])
    assert not equal([video], [own])
    assert identity(own) == identity(Video(PIXELS, 4)) != identity(Video(PIXELS, 8))
    assert identity(Video(PIXELS.reshape(3, 6, 4, 3), 4)) != identity(own)


@pytest.mark.parametrize("suffix", [".apng", ".avif", ".webp", ".gif"])
def test_each_format_of_pillow_moves(tmp_path, suffix):
    Video(PIXELS * 40, 4).save(tmp_path / f"film{suffix}")
    back = Video.open(tmp_path / f"film{suffix}")
    assert (len(back), back.size, back.rate) == (3, (6, 4), 4)


def test_an_mp4_has_all_frames_also_of_odd_sides(tmp_path):
    av = pytest.importorskip("av")
    Video(np.concatenate([*films().values()][:2]), 24).save(tmp_path / "film.mp4", crf=30)
    with av.open(str(tmp_path / "film.mp4")) as file:
        frames = [*file.decode(video=0)]
        assert (len(frames), float(file.streams.video[0].average_rate)) == (7, 24)
        assert (frames[0].width, frames[0].height) == (8, 6)


@pytest.mark.parametrize("size", [(5, 7), (270, 300)])
def test_a_damaged_file_is_an_oserror(tmp_path, size):
    file = media.write(Video(np.zeros((3, *size, 3), np.uint8)), tmp_path / "film")
    content = file.read_bytes()
    for length in range(0, len(content) - 16, max(1, len(content) // 12)):
        file.write_bytes(content[:length])
        with suppress(OSError):  # and no other; a part may be readable
            media.read(file)


def test_what_cannot_be_written_is_said(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"one of .*\.avif.*\.mp4, found \.mov"):
        Video(PIXELS).save(tmp_path / "film.mov")
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(UserError, match=r"pip install 'groupwise\[video\]'"):
        Video(PIXELS).save(tmp_path / "film.mp4")


def test_a_notebook_shows_a_video_that_moves():
    for pixels, kind in ((PIXELS, "apng"), (np.zeros((2, 300, 500, 3), np.uint8), "webp")):
        page = Table([{"completion": Video(pixels)}])._repr_html_()
        data = base64.b64decode(page.partition(f"data:image/{kind};base64,")[2].partition('"')[0])
        assert max(Image.open(io.BytesIO(data)).size) <= 256


# ---- samples of a run


@pytest.mark.parametrize("size", [(5, 7), (270, 300)])
def test_samples_of_a_run_have_all_frames(tmp_path, size):
    """Also a film that stands still in the middle, in every file that a run keeps."""
    pixels = np.zeros((6, *size, 3), np.uint8)
    pixels[2:] = 200
    video = Video(pixels, 12)
    own = {"draw": 1, "index": 0, "greedy": False, "prompt": "p", "completion": video}
    shown = {"draft": {"type": "image", "image": video}}
    write_samples(tmp_path / "samples" / "after.jsonl", [{**own, "shown": shown}])
    kept = TrainingSamples(tmp_path / "samples" / "training.jsonl", most=8)
    kept.write(1, [own])
    with SampledSet(tmp_path / "set.jsonl") as target:
        target.write([own])
    (row,) = read_samples(tmp_path / "set.jsonl")
    back = [
        with_completions(read_samples(tmp_path / "samples" / f"{name}.jsonl"), tmp_path)[0]
        for name in ("after", "training")
    ]
    draft = media.read(tmp_path / back[0]["shown"]["draft"]["image"])
    for read in (back[0]["completion"], back[1]["completion"], draft):
        assert (len(read), read.size, read.rate) == (6, video.size, 12)
        assert read == video or max(size) > 256
    assert media.read(tmp_path / row["file_name"]) == back[0]["completion"]
    with SampledSet(tmp_path / "set.jsonl", overwrite=True) as target:
        target.write([{**own, "completion": "a text"}])
    assert [*(tmp_path / "set_images").iterdir()] == []


def test_a_video_in_words_says_how_many_pictures_it_has():
    assert attachments.named(Video(PIXELS)) == "[3 pictures 6x4]"
