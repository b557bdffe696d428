"""All that this plugin registers passes the checks of `groupwise.testing`."""

import json
from hashlib import sha256

import pytest
from tests.judge.stand_in import text_of

from groupwise import testing
from groupwise.registry import installed

NAMES = ["judge", "judge_ranking", "constitution"]
OPTIONS = {
    "judge": {"aspects": [{"name": "good", "description": "how good it is"}]},
    "constitution": {"principles": {"kind": "Hurt nobody."}},
}


def judges(request):
    """Any value of the schema, by a hash of what is shown."""
    fields = request["response_format"]["json_schema"]["schema"]["properties"]
    number = sha256(text_of(request).encode()).digest()[0]
    values = {name: field["enum"][number % len(field["enum"])] for name, field in fields.items()}
    return json.dumps(values)


@pytest.mark.parametrize("name", NAMES)
def test_rewards(serve, name):
    kind = installed().load("rewards", name)
    server = {"server": serve(judges).address, "model": "m", "cache": None, "reasoning": False}
    reward = kind(kind.Config(**server, **OPTIONS.get(name, {})))
    rows = [{"prompt": text} for text in ("why?", "how?", "when?")]
    completions = ["because", "so", "by bus", "<|im_end|>", "now", "never"]
    testing.check_reward(reward, rows, completions, group_size=2)
