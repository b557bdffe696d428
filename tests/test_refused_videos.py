"""Rewards for pictures say of a video what to do with it."""

import numpy as np
import pytest
import torch

from groupwise_clip.images import images_of
from groupwise_judge.messages import exhibits
from groupwise_messages.video import Video
from groupwise_verifiable.images.pixels import pixels

FRAMES = np.zeros((2, 4, 6, 3), np.uint8)
TENSOR = torch.zeros(2, 3, 4, 6)


@pytest.mark.parametrize(
    "call",
    [
        lambda: images_of([Video(FRAMES)], {}),
        lambda: images_of([Video(FRAMES)], {"pixels": [TENSOR]}),
        lambda: pixels([Video(FRAMES)], reward="r"),
        lambda: pixels([TENSOR], reward="r"),
        lambda: pixels([FRAMES], reward="r"),
        lambda: exhibits("completion", Video(FRAMES)),
    ],
)
def test_rewards_for_pictures_name_per_frame(call):
    with pytest.raises(ValueError, match=r"a video, and this reward looks at pictures.*per_frame"):
        call()
