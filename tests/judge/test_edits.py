"""A judge of edited pictures sees source and result; neither attack on it pays."""

import asyncio
import io
import json
from base64 import b64decode

import numpy as np
from PIL import Image
from tests.judge.stand_in import images_of

from groupwise_judge.grading import Judge


def picture(left, right):
    image = Image.new("RGB", (8, 4), left)
    image.paste(right, (4, 0, 8, 4))
    return image


def opened(url):
    return np.asarray(Image.open(io.BytesIO(b64decode(url.partition(",")[2])))).astype(int)


def judges(request):
    """Whether the left half became blue, and the right one is the source's."""
    source, result = map(opened, images_of(request))
    follows = (result[:, :4] == (0, 0, 255)).all()
    keeps = (result[:, 4:] == source[:, 4:]).all()
    scores = {"semantic_consistency": 10 * int(min(follows, keeps)), "perceptual_quality": 9}
    return json.dumps(scores)


def test_the_source_itself_and_a_new_picture_do_not_pay(serve):
    server = {"server": serve(judges).address, "model": "m", "cache": None, "reasoning": False}
    judge = Judge(Judge.Config(rubric="gedit", **server))
    source = picture("red", "green")
    results = [picture("blue", "green"), source, picture("blue", "black")]
    columns = {"image": [source] * 3}
    values = asyncio.run(judge(["make the left half blue"] * 3, results, **columns))
    assert [round(value, 3) for value in values] == [0.949, 0.0, 0.0]  # sqrt(1 x .9)
