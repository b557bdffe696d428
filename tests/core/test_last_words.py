"""Environments where a last word lets another player's reply stand, and what people see of them."""

import asyncio
import json

import pytest
import torch
from PIL import Image

import groupwise
from groupwise.environment import Environment, EpisodeEnded
from groupwise.experience.failures import dead_ends
from groupwise.kit.errors import UserError
from groupwise.storage.samples import read_samples
from groupwise.testing import check_environment, play_episodes


class Looks(Environment):
    """A draft, several looks at it, and a second try after each look that does not accept it."""

    def columns(self, labels):
        return ["picture", "words"]

    def shown(self, labels):
        return ["picture", "words"]

    def judged(self, labels):
        return ["writer"]

    async def play(self, row, players):
        draft = await players["writer"](row)
        looks = await players["critic"].group(f"look at {draft.text}")

        async def final(look):
            again = not look.text.startswith("0")
            try:
                own = await players["writer"](f"try {look.text}", after=look) if again else draft
            except EpisodeEnded:
                return None
            return own, {"picture": Image.new("RGB", (4, 4), "red"), "words": look.text}

        pairs = filter(None, await asyncio.gather(*map(final, looks)))
        return [*{id(reply): (reply, columns) for reply, columns in pairs}.values()]


def played(lab):
    policies = {
        label: lab.Tabular(prompts=8, seed=n) for n, label in enumerate(("writer", "critic"))
    }
    return play_episodes(Looks(), policies, lab.rows(8)[:4], size=4, batch=64, seed=3)


def test_each_second_try_follows_its_own_look_and_a_last_word_has_the_reward_of_the_draft(lab):
    episodes = played(lab)
    scores = lab.scores_of(torch.arange(float(len(episodes.judged))))
    judged = {call: float(place) for place, call in enumerate(episodes.judged_calls)}
    looks = dict(_scored(lab, episodes, scores, "critic"))
    assert len(looks) == 64
    seconds = {call.parent: judged[call] for call in judged if call.parent is not None}
    drafts = {call for call in judged if call.parent is None}
    assert seconds.keys() <= looks.keys()
    for look, value in looks.items():
        assert value == (seconds[look] if look in seconds else judged[look.parent])
    accepted = looks.keys() - seconds.keys()
    assert {look.parent for look in accepted} == drafts
    assert 0 < len(accepted) < 64


class Last(Environment):
    """The critic has the last word on the writer's only reply, and a mapping is returned."""

    def judged(self, labels):
        return ["writer"]

    async def play(self, row, players):
        draft = await players["writer"](row)
        await players["critic"](f"look at {draft.text}")
        return {}


def test_what_a_last_word_follows_is_judged_also_where_columns_alone_are_returned(lab):
    policies = {
        label: lab.Tabular(prompts=8, seed=n) for n, label in enumerate(("writer", "critic"))
    }
    episodes = play_episodes(Last(), policies, lab.rows(8)[:4], size=4)
    assert {call.label for call in episodes.judged_calls} == {"writer"}
    assert len(episodes.judged) == 16
    scores = lab.scores_of(torch.arange(16.0))
    values = dict(zip(episodes.judged_calls, range(16), strict=True))
    for call, value in _scored(lab, episodes, scores, "critic"):
        assert value == values[call.parent]


def test_calls_after_replies_that_are_named_have_seeds_and_groups_of_their_own(lab):
    class Twice(Environment):
        async def play(self, row, players):
            draft = await players["writer"](row)
            first = await players["critic"].group("look")
            second_draft = await players["writer"]("again", after=draft)
            second = await players["critic"].group("look", after=second_draft)
            return [*((reply, {}) for reply in (*first, *second))]

    policies = {
        label: lab.Tabular(prompts=8, seed=n) for n, label in enumerate(("writer", "critic"))
    }
    episodes = play_episodes(Twice(), policies, lab.rows(8)[:4], size=4)
    calls = episodes.judged_calls
    assert len({(call.space, call.number, call.index) for call in calls}) == len(calls)
    rollouts = episodes.rollouts("critic")
    sizes = torch.stack([*rollouts.groups.unique(return_counts=True)])[1]
    assert set(sizes.tolist()) == {4}


def _scored(lab, episodes, scores, label):
    totals = lab.score(episodes, scores)[label].total.tolist()
    return zip([own.first for own in episodes.rollouts_of(label)], totals, strict=True)


def test_replies_of_players_that_are_not_judged_never_reach_rewards(lab, monkeypatch):
    class Ends(Looks):
        async def play(self, row, players):
            draft = await players["writer"](row)
            look = await players["critic"](f"look at {draft.text}")
            await players["writer"]("refuse this", after=look)

    monkeypatch.setattr(lab.Tabular, "skips", lambda self, row: "refuse" in row["prompt"])
    policies = {
        label: lab.Tabular(prompts=8, seed=n) for n, label in enumerate(("writer", "critic"))
    }
    episodes = play_episodes(Ends(), policies, lab.rows(8)[:2], size=4)
    assert len(episodes.judged) == 0
    refused = [*dead_ends([own for group in episodes.groups for own in group.episodes])]
    assert len(refused) == 8  # of the looks
    assert {call.refused_by for call in refused} == {"writer"}


def test_samples_and_the_page_show_pictures_and_texts_of_environments(lab, tmp_path):
    players = [
        {"label": label, "policy": lab.Tabular(prompts=8, seed=number)}
        for number, label in enumerate(("writer", "critic"))
    ]
    arguments = {
        "players": players,
        "prompts": {"name": lab.rows(), "held_out": 0.4},
        "rewards": [lab.ones],
        "train": {"steps": 1, "groups_per_step": 2, "group_size": 2},
        "evaluation": {"prompts": 2, "samples": 2},
        "output": tmp_path / "run",
        "quiet": True,
    }
    groupwise.train(environment=Looks(), **arguments)
    for sample in read_samples(tmp_path / "run" / "samples" / "after.jsonl"):
        picture = sample["shown"]["picture"]
        with Image.open(tmp_path / "run" / picture["image"]) as image:
            assert image.getpixel((0, 0)) == (255, 0, 0)
        assert sample["shown"]["words"].isdigit()
        assert "words" not in sample.get("extra", {})
    page = (tmp_path / "run" / "report.html").read_text()
    assert page.count("<small>words</small>") == page.count("<small>picture</small>") > 0
    assert 'src="data:image/png' in page

    class Misnamed(Looks):
        def columns(self, labels):
            return ["words"]

    class Both(Looks):
        def logged(self, labels):
            return ["words"]

    for environment, message in (
        (Misnamed(), "its `shown` names 'picture', which is not among its `columns`"),
        (Both(), "its `logged` and its `shown` name 'words'"),
    ):
        with pytest.raises(UserError, match=message):
            groupwise.train(environment=environment, **arguments | {"output": tmp_path / "no"})


def test_environments_with_last_words_keep_the_laws(lab):
    rows = [{"prompt": "one"}, {"prompt": "two"}]
    scripts = {
        "writer": lambda prompt, random: json.dumps(random.random()),
        "critic": lambda prompt, random: random.choice(["0", "1"]),
    }
    check_environment(Looks(), rows, scripts)
