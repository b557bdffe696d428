"""Turns: pictures in replies, of which the model draws on, with and without what was cached."""

from dataclasses import replace

import pytest
import torch
from tests.llm.vision import reference, standins

from groupwise_llm.vision.picture import BEYOND

REPLY = "a picture "


def reply(number):
    """A tool's answer with a picture, or with two, or text alone."""
    pictures = [standins.picture(16 + 8 * n, 32, number) for n in range(number % 3)]
    blocks = [{"type": "image", "image": own} for own in pictures]
    return [{"role": "tool", "content": [reference.block(REPLY), *blocks, reference.block("!")]}]


def play(policy, *, order=lambda contexts: contexts):
    """Contexts after three turns with two replies between; and their rows."""
    rows = [row for row in reference.rows() for _ in range(2)]
    contexts = policy.encode(rows)
    for turn in range(3):
        due = order([*range(len(contexts))])
        drawn = policy.draw(
            [contexts[n] for n in due],
            seeds=[100 * turn + n for n in due],
            limits=[4 + n % 3 for n in due],
        )
        for n, own in zip(due, drawn, strict=True):
            contexts[n] = policy.with_turn(contexts[n], own)
            if turn < 2:
                contexts[n] = policy.extend(contexts[n], reply(n + turn))
    return contexts, rows


@pytest.fixture
def played(make):
    """A policy and its rollouts of several turns."""
    policy = make(max_new_tokens=200)
    with policy.session():
        return policy, policy.assemble(*reversed(play(policy)))


def test_log_probs_of_turns_are_those_of_transformers(played, transformers_log_probs, rounding):
    policy, rollouts = played
    assert (rollouts.trajectory["completion_ids"] >= BEYOND).any(dim=1).tolist() != [False] * 8
    expected = transformers_log_probs(policy, rollouts)
    sampled = rollouts.sampler_log_probs
    for training in ("packed", "cached", "plain"):
        policy._ability = replace(policy.ability, training=training)
        rounding.same(
            lambda: policy(rollouts).log_probs * rollouts.mask, expected * rollouts.mask, sampled
        )


def test_turns_depend_on_their_contexts_alone(make, played):
    _, rollouts = played
    policy = make(max_new_tokens=200)
    with policy.session():
        backwards, _ = play(policy, order=lambda due: due[::-1])
    anew, _ = play(policy)
    ids = [
        own[kept].tolist()
        for own, kept in zip(
            rollouts.trajectory["completion_ids"], rollouts.trajectory["attention"], strict=True
        )
    ]
    assert [own.completion_ids for own in backwards] == ids
    assert [own.completion_ids for own in anew] == ids


def test_what_an_environment_shows_has_no_log_probs(played, transformers_log_probs, rounding):
    policy, rollouts = played
    observed = policy(rollouts).outputs["observation_log_probs"]
    places = policy.observations(rollouts)
    pictures = rollouts.trajectory["completion_ids"] >= BEYOND
    assert pictures.any()
    assert not (places & pictures).any()
    rounding.same(lambda: transformers_log_probs(policy, rollouts) * places, observed)


def test_tokens_around_pictures_that_are_never_drawn_are_no_observations(make):
    """Gemma's template writes such a one before each picture; its log-prob is -1e30."""
    policy = make("gemma3", max_new_tokens=200)
    with policy.session():
        rollouts = policy.assemble(*reversed(play(policy)))
    places = policy.observations(rollouts)
    begins = policy.tokenizer.convert_tokens_to_ids("<start_of_image>")
    assert (rollouts.trajectory["completion_ids"] == begins).any()
    with torch.no_grad():
        observed = policy(rollouts).outputs["observation_log_probs"][places]
    assert len(observed) > 100
    assert observed.min() > -100


def test_a_picture_is_one_token_in_a_text_and_no_token_in_facts(played):
    policy, rollouts = played
    image = policy.causal.family.image_id
    for own, completion in zip(rollouts.facts["completion_ids"], rollouts.completions, strict=True):
        assert max(own) < BEYOND
        assert (image in own) == any("type" in str(message["content"]) for message in completion)
    context = policy.extend(policy.with_turn(*drawn(policy)), reply(2))
    shown = policy.codec.tokenizer.decode(context.segments[-1].ids)
    mark = "<|vision_start|><|image_pad|><|vision_end|>"
    assert f"{REPLY}{mark}{mark}!" in shown


def drawn(policy):
    (context,) = policy.encode(reference.rows()[:1])
    return context, *policy.draw([context], seeds=[0], limits=[3])
