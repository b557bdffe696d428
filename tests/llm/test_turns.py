"""Turns: contexts that go on after replies, in any batch, with and without what was cached."""

from dataclasses import replace

import pytest
import torch

from groupwise.weights import kept_parameters
from groupwise_llm.codec.contexts import Turn

CHAT = [
    {"prompt": [{"role": "user", "content": content}]}
    for content in ("longer: 12+34=", "Hi", "7-5")
]
REPLIES = ["a reply é", "ok", "", "46"]


def reply(number):
    return [{"role": "tool", "content": REPLIES[number % len(REPLIES)]}]


def play(policy, rows, *, turns=3, size=2, order=lambda contexts: contexts, **options):
    """Contexts after some turns of each of `size` episodes a row; the number of turns differs."""
    contexts = dict(enumerate(own for own in policy.encode(rows) for _ in range(size)))
    for turn in range(turns):
        due = order([n for n in contexts if turn == 0 or (n + turn) % 3])
        limits = [min(3 + n % 5 + turn, policy.room(contexts[n])) for n in due]
        drawn = policy.draw(
            [contexts[n] for n in due],
            seeds=[1000 * turn + n for n in due],
            limits=limits,
            **options,
        )
        for n, own in zip(due, drawn, strict=True):
            contexts[n] = contexts[n].with_turn(own)
            if turn + 1 < turns and (n + turn + 1) % 3:
                contexts[n] = policy.extend(contexts[n], reply(n + turn))
    return [contexts[n] for n in sorted(contexts)], [row for row in rows for _ in range(size)]


def ids_of(contexts):
    return [context.completion_ids for context in contexts]


ARCHITECTURES = ["qwen2", "llama", "gpt2", "gpt_neox", "mixtral", "gemma2", "gemma3"]


# ---- laws


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 0.7, "top_k": 20, "repetition_penalty": 1.3}], ids=str
)
@pytest.mark.slow(after=5)
def test_the_log_probs_of_turns_are_those_of_forward(
    make, transformers_log_probs, architecture, settings, rounding
):
    policy = make(architecture, max_new_tokens=90, **settings)
    with policy.session():
        contexts, rows = play(policy, CHAT)
    rollouts = policy.assemble(rows, contexts)
    assert not rollouts.mask.equal(rollouts.trajectory["attention"])
    rounding.same(
        lambda: transformers_log_probs(policy, rollouts) * rollouts.mask,
        policy(rollouts).log_probs * rollouts.mask,
        rollouts.sampler_log_probs,
    )
    assert (rollouts.sampler_log_probs[rollouts.mask] < 0).all()


@pytest.mark.parametrize("architecture", ["qwen2", "gpt2", "gemma3"])
@pytest.mark.parametrize("settings", [{}, {"top_p": 0.9, "repetition_penalty": 1.3}], ids=str)
@pytest.mark.slow(after=1)
def test_a_turn_depends_on_its_seed_and_context_alone(make, allow, architecture, settings):
    policy = make(architecture, max_new_tokens=90, temperature=0.8, **settings)
    with policy.session():
        contexts, _ = play(policy, CHAT)
        expected = ids_of(contexts)
        assert len({tuple(ids) for ids in expected}) == 6
        backwards, _ = play(policy, CHAT, order=lambda due: due[::-1])
        assert ids_of(backwards) == expected
    # Nothing is kept between turns; each context is drawn by itself; in other ways of decoding.
    assert ids_of(play(policy, CHAT)[0]) == expected
    with policy.session():
        for context, ids in zip(contexts, expected, strict=True):
            start = replace(context, segments=(), completion=())
            done = 0
            for segment in context.segments:
                if not isinstance(segment, Turn):
                    start = policy.extend(start, segment.messages)
                else:
                    limit = len(segment.ids)
                    seed = seed_of(contexts, context, done)
                    (turn,) = policy.draw([start], seeds=[seed], limits=[limit])
                    assert turn.ids == segment.ids
                    start = start.with_turn(turn)
                done += len(segment.ids)
            assert start.completion_ids == ids
    for decoding in ({"shared": False}, {"padded": False}, {"cached": False}):
        allow(policy, **decoding)
        assert ids_of(play(policy, CHAT)[0]) == expected


def seed_of(contexts, context, done):
    number = contexts.index(context)
    ends, total = [], 0
    for segment in context.segments:
        if isinstance(segment, Turn):
            ends.append(total)
        total += len(segment.ids)
    turns = [turn for turn in range(3) if turn == 0 or (number + turn) % 3]
    return 1000 * turns[ends.index(done)] + number


@pytest.mark.parametrize("cache_tokens", [1, 150, 400])
def test_a_limit_of_the_cache_changes_no_turn(make, cache_tokens, rounding):
    expected, rows = play(make(max_new_tokens=90), CHAT)
    policy = make(max_new_tokens=90, cache_tokens=cache_tokens)
    kept = []
    with policy.session():
        contexts, _ = play(policy, CHAT)
        kept = {id(own.part): own.part for own in policy._prefixes._prefixes.values()}
    assert sum(part.tokens for part in kept.values()) <= cache_tokens
    assert ids_of(contexts) == ids_of(expected)
    ours, theirs = [policy.assemble(rows, own) for own in (contexts, expected)]
    log_probs = [own.sampler_log_probs for own in (ours, theirs)]
    rounding.same(lambda: policy(ours).log_probs * ours.mask, *log_probs)


@pytest.mark.parametrize("settings", [{}, {"lora": {"rank": 2}}], ids=str)
def test_other_weights_are_never_continued_from_a_cache(make, settings, rounding):
    policy = make(max_new_tokens=90, **settings)
    rows = [{"prompt": "ab"}, {"prompt": "a longer one"}]
    with policy.session():
        contexts, _ = play_texts(policy, rows)
        with torch.no_grad():
            for parameter in kept_parameters(policy).values():
                parameter.add_(0.05 * torch.randn(parameter.shape))
        later = [policy.extend(context, " and") for context in contexts]
        turns = policy.draw(later, seeds=[5, 6], limits=[6, 6])
        with torch.no_grad():
            rollouts = policy.assemble(
                rows, [c.with_turn(t) for c, t in zip(later, turns, strict=True)]
            )
    allowed = rounding.bounds(lambda: policy(rollouts).log_probs)
    ours = policy(rollouts).log_probs
    for row, turn in enumerate(turns):
        places = rollouts.mask[row].nonzero().flatten()[-len(turn.ids) :]
        expected = torch.tensor(turn.log_probs)
        assert rounding.excess(ours[row, places], expected, allowed) <= 1


def play_texts(policy, rows):
    contexts = policy.encode(rows)
    turns = policy.draw(contexts, seeds=range(len(rows)), limits=[5] * len(rows))
    return [c.with_turn(t) for c, t in zip(contexts, turns, strict=True)], turns


# ---- cost


def test_a_cache_goes_on_after_a_reply(make, batch_shapes):
    policy = make(max_new_tokens=90)
    assert policy.ability.continues
    shapes = batch_shapes(policy)
    contexts = policy.encode([row for row in CHAT for _ in range(2)])
    with policy.session():
        drawn = policy.draw(contexts, seeds=range(6), limits=[4, 5, 6, 7, 8, 9])
        longest = max(len(context.prompt_ids) for context in contexts)
        assert shapes[0] == (3, longest)  # each prompt once
        assert shapes[1] == (6, 1)
        later = [
            policy.extend(context.with_turn(turn), reply(n))
            for n, (context, turn) in enumerate(zip(contexts, drawn, strict=True))
        ]
        del shapes[:]
        # Two go on beside one that begins; the other ones wait.
        policy.draw([later[0], contexts[0], later[3]], seeds=range(3), limits=[3] * 3)
        new = [len(own.segments[-1].ids) + 1 for own in (later[0], later[3])]
        assert shapes[:2] == [(2, max(new)), (1, len(contexts[0].prompt_ids))]
        assert shapes[2:] == [(3, 1)] * 2
        del shapes[:]
        policy.draw([later[n] for n in (5, 4, 2, 1)], seeds=range(4), limits=[3] * 4)
        assert shapes[0][0] == 4
        assert shapes[0][1] < longest
        assert shapes[1:] == [(4, 1)] * 2
        assert len(policy._prefixes) == 7
    assert policy._prefixes is None
    del shapes[:]
    policy.draw([later[0]], seeds=[0], limits=[1])
    assert shapes == [(1, len(later[0].ids))]


def test_branches_of_a_turn_share_its_cache(make, batch_shapes):
    policy = make(max_new_tokens=90)
    shapes = batch_shapes(policy)
    with policy.session():
        (context,) = policy.encode(CHAT[:1])
        (turn,) = policy.draw([context], seeds=[1], limits=[5])
        after = context.with_turn(turn)
        branches = [policy.extend(after, reply(0)), policy.extend(after, reply(1))]
        del shapes[:]
        drawn = policy.draw([branches[0], *branches], seeds=[1, 2, 2], limits=[4] * 3)
    assert shapes[0] == (2, max(len(own.segments[-1].ids) for own in branches) + 1)
    assert shapes[1] == (3, 1)
    fresh = policy.draw([branches[0], *branches], seeds=[1, 2, 2], limits=[4] * 3)
    assert [turn.ids for turn in drawn] == [turn.ids for turn in fresh]


def test_sliding_windows_are_computed_anew(make):
    """Their cache does not keep every token."""
    assert not make("gemma3").ability.continues


# ---- limits and ends


def test_each_turn_has_its_limit(make, rounding):
    policy = make(max_new_tokens=20)
    contexts = policy.encode([{"prompt": "ab"}] * 3)
    turns = policy.draw(contexts, seeds=[7] * 3, limits=[1, 9, 4])
    assert [len(turn.ids) for turn in turns] == [1, 9, 4]
    assert {turn.ended for turn in turns} == {"length"}
    assert turns[1].ids[:4] == turns[2].ids
    assert turns[2].ids[:1] == turns[0].ids
    rounding.same(
        lambda: policy.draw(contexts, seeds=[7] * 3, limits=[1, 9, 4])[1].log_probs[:4],
        turns[2].log_probs,
    )
    after = contexts[1].with_turn(turns[1])
    assert policy.room(after) == 11
    for limit in (0, 12):
        with pytest.raises(ValueError, match=f"a limit of {limit} tokens, expected 1 to 11"):
            policy.draw([after], seeds=[1], limits=[limit])
    assert policy.draw([], seeds=[], limits=[]) == []


def test_stop_strings_of_a_turn(make):
    policy = make(max_new_tokens=40, stop=["q"])
    contexts = policy.encode([{"prompt": "ab"}, {"prompt": "cd"}])
    plain = policy.draw(contexts, seeds=[1, 2], limits=[20, 20])
    string = next(one for one in plain[0].text[2:] if one.isascii() and one.isprintable())
    stopped = policy.draw(contexts, seeds=[1, 2], limits=[20, 20], stop=[string])
    assert stopped[0].ended == "stop"
    assert stopped[0].ids == plain[0].ids[: len(stopped[0].ids)]
    assert string in stopped[0].text
    assert string not in policy.tokenizer.decode(stopped[0].ids[:-1])
    again = policy.draw(contexts, seeds=[1, 2], limits=[20, 20])
    assert [turn.ids for turn in again] == [turn.ids for turn in plain]


def test_a_turn_whose_logits_are_not_finite_fails(make):
    policy = make()
    with torch.no_grad():
        next(policy.model.parameters()).fill_(float("nan"))
    with policy.session():
        contexts = policy.encode(CHAT[:2])
        turns = policy.draw(contexts, seeds=[1, 2], limits=[3, 3])
    rollouts = policy.assemble(
        CHAT[:2], [c.with_turn(t) for c, t in zip(contexts, turns, strict=True)]
    )
    assert [turn.ended for turn in turns] == ["failed"] * 2
    assert rollouts.failed.all()
    assert not rollouts.truncated.any()


def test_turns_of_sample(make, rows):
    """A turn is the completion that `sample` draws with its seed."""
    policy = make()
    rollouts = policy.sample(rows, group_size=2, seeds=range(6))
    contexts = policy.encode([row for row in rows for _ in range(2)])
    turns = policy.draw(contexts, seeds=range(6), limits=[12] * 6)
    assert [list(turn.ids) for turn in turns] == rollouts.facts["completion_ids"]
    assert [turn.text for turn in turns] == rollouts.completions
