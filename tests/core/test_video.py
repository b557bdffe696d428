"""A video is a sequence of pictures, made of one array."""

import numpy as np
import pytest
from PIL import Image

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
