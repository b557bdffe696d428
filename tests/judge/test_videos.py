"""Judges see a video as some of its frames, pictures in their order."""

import io
import json
from base64 import b64decode

import numpy as np
import pytest
from PIL import Image
from tests.judge.stand_in import text_of

from groupwise.registry import installed
from groupwise_judge.pictures import Frames, seen
from groupwise_judge.questions import Questions
from groupwise_judge.settings import Shown
from groupwise_messages.video import Video


def video(*levels, rate=4.0):
    return Video(np.stack([np.full((2, 2, 3), level, np.uint8) for level in levels]), rate)


def levels(request):
    """Of the pictures in a request, in their order."""
    blocks = [block for block in request["messages"][-1]["content"] if "image_url" in block]
    data = [b64decode(block["image_url"]["url"].partition(",")[2]) for block in blocks]
    return [Image.open(io.BytesIO(each)).getpixel((0, 0))[0] for each in data]


def judge(serve, name, answer, **options):
    server, kind = serve(lambda _: answer), installed().load("rewards", name)
    settings = {"server": server.address, "model": "m", "cache": None, "reasoning": False}
    return server, kind(kind.Config(**settings, **options))


@pytest.mark.parametrize(("frames", "shown"), [(1, [9]), (3, [9, 5, 1]), (99, [9, 7, 5, 3, 1])])
def test_a_rubric_is_about_chosen_frames(serve, score, frames, shown):
    aspects = [{"name": "good", "description": "how good it is"}]
    server, reward = judge(serve, "judge", '{"good": 5}', aspects=aspects, frames=frames)
    score(reward, [video(9, 7, 5, 3, 1)])
    (request,) = server.requests
    assert levels(request) == shown
    name = "a frame" if frames == 1 else f"a video, {len(shown)} frames from 1 seconds"
    assert f"completion, {name}>" in text_of(request)


def test_every_principle_is_about_frames(serve, score):
    server, reward = judge(serve, "constitution", json.dumps({"kind": 1}), principles={"kind": "k"})
    score(reward, [video(9, 7)])
    assert [levels(request) for request in server.requests] == [[9, 7]]


def test_a_ranking_compares_frames_also_with_those_of_earlier_films(serve, score):
    server, reward = judge(serve, "judge_ranking", '{"winner": "A"}', frames=2)
    films = [video(9, 8, 7), video(5, 4, 3)]
    score(reward, films, group_size=2)
    assert sorted(levels(each) for each in server.requests) == [[5, 3, 9, 7], [9, 7, 5, 3]]
    score(reward, films[:1], purpose="evaluate", references=[[video(1, 2, 3)]])
    assert sorted(levels(each) for each in server.requests[2:]) == [[1, 3, 9, 7], [9, 7, 1, 3]]


def test_a_judge_in_this_process_reads_them_before_its_question():
    questions = Questions("Does it move?", None, Shown(frames=2))
    ((_, user),) = questions.chats(["p"], [video(9, 8, 7)], {})
    pictures = [block["image"] for block in user["content"] if block["type"] == "image"]
    assert [picture.getpixel((0, 0))[0] for picture in pictures] == [9, 7]
    whole = Questions("Is it {prompt}?", None, Shown(frames=3))
    ((asked,),) = whole.chats(["a cat"], [video(9, 8, 7)], {})
    assert [block["type"] for block in asked["content"]] == ["image"] * 3 + ["text"]
    with pytest.raises(ValueError, match="is a picture without text"):
        Questions("Is {completion} good?", None, Shown()).chats(["p"], [video(9)], {})


def test_only_videos_are_cut_to_frames():
    picture = Image.new("RGB", (2, 2))
    assert seen(picture, 2) is picture
    assert seen("text", 2) == "text"
    assert seen(video(1, 2, 3, 4), 2).seconds == 0.75
    assert isinstance(seen(video(1), 9), Frames)
