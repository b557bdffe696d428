"""Rewards for videos: motion that is motion, steadiness, and rewards of frames."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from groupwise import testing
from groupwise.registry import installed
from groupwise.rewards import SampleErrors
from groupwise_messages.frames import evenly
from groupwise_messages.video import Video
from groupwise_verifiable.videos.flow import speed
from groupwise_verifiable.videos.motion import Motion, Smoothness
from groupwise_verifiable.videos.per_frame import PerFrame

sys.path.insert(0, str(Path(__file__).parent))
import films

ROWS = [{"prompt": text} for text in ("a disk", "a square", "a cross")]
SIDES = (32, 64, 256)


def clips():
    return [
        *(films.disk(0.0), films.disk(0.16)),
        *(films.disk(0.4, frames=5), films.noise(side=48)),
        *(films.disk(0.2, places=(0.3, 0.6)), films.flicker()),
    ]


def smoothness(video):
    return Smoothness()(["p"], [video])[0]


@pytest.mark.parametrize("side", SIDES)
def test_motion_is_the_speed_of_what_moves_in_sides_per_second(side):
    assert speed(films.disk(0.0, side=side)) == 0.0
    speeds = [speed(films.disk(true, side=side)) for true in (0.08, 0.24, 0.48)]
    assert speeds == pytest.approx([0.08, 0.24, 0.48], rel=0.15)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("fake", [films.noise, films.flicker])
def test_noise_and_flicker_are_neither_motion_nor_smooth(fake, side):
    video = fake(side=side)
    assert speed(video) < 0.03
    assert smoothness(video) < 0.01
    # A still film with the noise of a camera does not move.
    assert speed(films.disk(0.0, side=side, noise=0.03)) < 0.01


def test_motion_is_bounded_and_its_unit_is_an_option():
    fast, slow = films.disk(0.48), films.disk(0.08)
    assert Motion()(["p"] * 2, [fast, slow]) == [1.0, pytest.approx(0.08 / 0.2, rel=0.1)]
    (half,) = Motion(Motion.Config(enough=0.96))(["p"], [fast])
    assert half == pytest.approx(0.5, rel=0.1)
    assert Motion()(["p"], [fast[:1]]) == [None]


@pytest.mark.parametrize("side", SIDES)
def test_what_goes_on_is_smooth_and_what_jumps_or_stands_still_is_not(side):
    assert smoothness(films.disk(0.24, side=side)) > 0.85
    to_and_fro = films.disk(0.0, places=(0.3, 0.33), side=side)
    assert speed(to_and_fro) > 0.1  # which motion alone would pay
    for rough in (to_and_fro, films.disk(0.0, places=(0.3, 0.7), side=side)):
        assert smoothness(rough) < 0.05
    assert smoothness(films.disk(0.0, side=side)) == 0.0
    assert smoothness(films.disk(0.2, frames=2)) is None


def test_a_cut_in_the_middle_lowers_smoothness():
    whole, back = films.disk(0.24), films.disk(0.24).pixels[:, ::-1, ::-1]
    assert (
        smoothness(films.disk(0.24))
        - smoothness(Video(np.concatenate([whole.pixels[:4], back[:4]]), films.RATE))
        > 0.3
    )


@pytest.mark.parametrize("name", ["motion", "smoothness"])
def test_laws_of_motion(name):
    testing.check_reward(installed().load("rewards", name)(), ROWS, clips(), group_size=2)


@pytest.mark.parametrize("name", ["motion", "smoothness"])
def test_a_picture_is_no_video(name):
    reward = installed().load("rewards", name)()
    with pytest.raises(ValueError, match=r"completion 0: expected a video, found Image"):
        reward(["p"], [Image.new("RGB", (8, 8))])


# ---- per_frame


def gray(*levels):
    """A video of plain frames."""
    return Video(np.stack([np.full((8, 8, 3), level, np.uint8) for level in levels]))


def level(prompts, completions, **columns):
    return [float(np.asarray(one)[0, 0, 0]) for one in completions]


def per_frame(reward=level, **options):
    return PerFrame(PerFrame.Config.model_validate({"reward": reward, **options}))


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({"frames": 1}, 9.0),
        ({"frames": 2}, (9 + 4) / 2),
        ({"frames": 3, "gives": "least"}, 1.0),
        ({"every": 2}, (9 + 1 + 4) / 3),
        ({"frames": 99}, (9 + 5 + 1 + 5 + 4) / 5),
    ],
)
def test_chosen_frames_and_what_they_give(options, value):
    assert per_frame(**options)(["p"], [gray(9, 5, 1, 5, 4)]) == [pytest.approx(value)]


def test_evenly_spaced_frames_are_distinct_and_have_both_ends():
    for length in range(1, 40):
        for count in range(2, 12):
            chosen = evenly(length, count)
            assert len({*chosen}) == len(chosen) == min(length, count)
            assert (chosen[0], chosen[-1]) == (0, length - 1)


def test_one_call_has_the_frames_of_all_videos_with_their_columns_and_tensors():
    calls = []

    def reward(prompts, completions, *, groups, purpose, color, pixels, log_extra, **columns):
        calls.append((prompts, groups, color, [float(one.mean()) for one in pixels]))
        log_extra("own", level(prompts, completions))
        return [0.0] * len(completions)

    videos, logged = [gray(1, 2, 3), gray(4, 5), gray(6, 7, 8)], {}
    tensors = [torch.from_numpy(each.pixels.copy()).movedim(-1, 1).float() for each in videos]
    columns = {"color": ["r", "g", "b"], "pixels": tensors, "purpose": "train"}
    per_frame(reward)(
        ["p", "p", "q"], videos, groups=[7, 7, 9], log_extra=logged.__setitem__, **columns
    )
    ((prompts, groups, color, means),) = calls
    assert prompts == ["p"] * 5 + ["q"] * 3
    assert groups == [0, 0, 1, 1, 2, 3, 4, 5]  # pictures of one place are compared
    assert color == ["r", "g", "r", "g", "r", "b", "b", "b"]
    assert means == [1, 4, 2, 5, 3, 6, 7, 8]
    assert logged == {"own": [[1, 2, 3], [4, 5], [6, 7, 8]]}


def test_a_frame_that_fails_or_does_not_apply():
    def reward(prompts, completions, **columns):
        values = [None if v == 0 else v for v in level(prompts, completions)]
        bad = {n: "is too bright" for n, value in enumerate(values) if value == 255}
        if bad:
            raise SampleErrors([None if n in bad else v for n, v in enumerate(values)], bad)
        return [math.nan if value == 13 else value for value in values]

    videos = [gray(1, 255, 3), gray(4, 0, 6), gray(0, 0)]
    with pytest.raises(SampleErrors) as failed:
        per_frame(reward)(["p"] * 3, videos)
    assert failed.value.errors == {0: "frame 1: is too bright"}
    assert failed.value.values[1:] == [5.0, None]
    (value,) = per_frame(reward, gives="least")(["p"], [gray(13, 1)])
    assert math.isnan(value)


def test_columns_of_the_reward_are_checked_and_relative_rewards_are_refused():
    def needs(prompts, completions, color):
        return [0.0] * len(completions)

    from groupwise.kit.errors import UserError
    from groupwise.rewards import Reward

    with pytest.raises(UserError, match="the column 'color'"):
        Reward(name="r", function=per_frame(needs)).check_columns({})

    class Relative:
        relative = True

        def __call__(self, prompts, completions, references):
            return [0.0] * len(completions)

    with pytest.raises(ValueError, match="judges have an option `frames`"):
        per_frame(Relative())
    with pytest.raises(ValueError, match="both choose frames"):
        per_frame(every=2, frames=3)


def test_laws_of_frames():
    reward = per_frame({"name": "image_diversity"})
    same_size = [films.disk(0.1 * n, side=32, frames=3 + n % 2) for n in range(6)]
    testing.check_reward(reward, ROWS, same_size, group_size=2)
    assert isinstance(reward, installed().load("rewards", "per_frame"))
