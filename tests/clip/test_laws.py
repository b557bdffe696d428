"""All that this plugin registers passes the checks of `groupwise.testing`."""

import pytest

from groupwise import testing
from groupwise.registry import installed

NAMES = ["clip_similarity", "aesthetic", "learned_image", "preference"]


@pytest.mark.parametrize("name", NAMES)
def test_rewards(folder, head, pictures, pil, *, name):
    kind = installed().load("rewards", name)
    options = {"aesthetic": {"head": str(head(24, 1))}, "learned_image": {"labels": "verifier"}}
    more = options.get(name, {})
    reward = kind(kind.Config(model=str(folder), **more))
    rows = [{"prompt": text} for text in ("a red disk", "two dogs", "three")]
    testing.check_reward(reward, rows, pil(pictures(*range(6))), group_size=2)
