"""The cross-entropy of what an environment says, beside the loss of the policy's own tokens."""

import json
from dataclasses import replace

import pytest
import torch

from groupwise import Environment, train
from groupwise.algorithms.grpo import GRPO
from groupwise.rewards import Scores
from groupwise.testing import play_episodes, updater_of
from groupwise_algorithms.dppo import DPPO
from groupwise_llm.codec.contexts import Turn

CHAT = [{"prompt": [{"role": "user", "content": text}]} for text in ("12+34=", "Hi")]
TEXTS = [{"prompt": "12+34="}, {"prompt": "Hi "}]


class Answers(Environment):
    """Two turns with an answer between them, of a tool or as a bare text; one for some prompts."""

    async def play(self, row, players):
        (player,) = players.values()
        if isinstance(row["prompt"], str):
            reply = await player(row, limit=4)
            await player(row["prompt"] + reply.text + " (no)", limit=4)
            return
        reply = await player(row, limit=4)
        answer = {"role": "tool", "content": "it is 46"}
        await player([*row["prompt"], reply.message, answer], limit=4)


def played(policy, rows=CHAT):
    """Rollouts of episodes, for a run that reads the log-probs of observations."""
    policy.prepare(outputs=policy.provides, facts=frozenset())
    return play_episodes(Answers(), {"policy": policy}, rows, seed=5).rollouts("policy")


@pytest.fixture
def policy(make):
    return make("llama", max_new_tokens=60)


def scores_of(values):
    return Scores(
        names=("reward",),
        weights=(1.0,),
        values=torch.tensor(values, dtype=torch.float64).unsqueeze(1),
        failed=torch.zeros(len(values), dtype=torch.bool),
    )


def gradient(policy, algorithm, rollouts, rewards, budget=10_000):
    """The gradient of an update, and its metrics."""
    policy.zero_grad(set_to_none=True)
    inputs = {"observations": policy.observations(rollouts)} if algorithm.target_inputs else {}
    updater = updater_of(policy, algorithm, budget)
    metrics = updater.backward(scores=scores_of(rewards), rollouts=rollouts, outputs=inputs)
    return flat(policy), metrics


def flat(policy):
    return torch.cat([p.grad.flatten() for p in policy.parameters()]).double()


REWARDS = [1.0, 0.0, 0.5, 0.0, 0.0, 2.0, 1.0, 0.3]


@pytest.mark.parametrize(("rows", "said"), [(CHAT, "it is 46"), (TEXTS, " (no)")])
def test_observations_are_what_the_environment_said_and_not_the_template(policy, rows, said):
    rollouts = played(policy, rows)
    observed = policy.observations(rollouts)
    assert not bool((observed & rollouts.mask).any())
    for ids, own in zip(rollouts.trajectory["completion_ids"], observed, strict=True):
        assert policy.tokenizer.decode(ids[own]) == said


@pytest.mark.parametrize("answer", ["tool", "o", ":", "assistant", " 0 "])
def test_an_answer_that_the_template_also_writes_is_observed_in_its_own_place(policy, answer):
    policy.prepare(outputs=policy.provides, facts=frozenset())
    (context,) = policy.encode(CHAT[:1])
    (drawn,) = policy.tokenizer(["Hm"])["input_ids"]
    context = context.with_turn(Turn(ids=tuple(drawn), text="Hm", ended="length"))
    replies = [{"role": "tool", "content": answer}, {"role": "user", "content": answer}]
    context = policy.extend(context, replies)
    (observed,) = policy.observations(policy.assemble(CHAT[:1], [context]))
    texts = map(policy.tokenizer.decode, context.completion_ids)
    pairs = zip(texts, observed, strict=True)
    marked = "".join(f"[{text}]" if own else text for text, own in pairs)
    said = answer.replace(answer.strip(), "".join(f"[{own}]" for own in answer.strip()))
    assert marked == f"Hm<|turn|>tool:{said}<|turn|>user:{said}<|turn|>assistant:"


@pytest.mark.parametrize("algorithm", [GRPO, DPPO])
def test_the_gradient_is_that_of_the_mean_cross_entropy_added(
    policy, transformers_log_probs, algorithm, rounding
):
    rollouts = played(policy)
    alone, _ = gradient(policy, algorithm(), rollouts, REWARDS)
    config = algorithm.Config(observation_weight=0.1)
    ours, metrics = gradient(policy, algorithm(config), rollouts, REWARDS)
    # Plainly: transformers' log-probs of these tokens, averaged over all of them.
    observed = policy.observations(rollouts)

    def stated():
        log_probs = transformers_log_probs(policy, replace(rollouts, mask=observed))
        surprise = -log_probs[observed].mean()
        policy.zero_grad(set_to_none=True)
        (0.1 * surprise).backward()
        return alone + flat(policy), surprise

    rounding.same(stated, (ours, metrics["observation_loss"]))


@pytest.mark.parametrize("budget", [1, 50])
def test_no_split_into_microbatches_changes_the_gradient(policy, budget, rounding):
    rollouts, algorithm = played(policy), GRPO(GRPO.Config(observation_weight=0.1))

    def results(*options):
        own, metrics = gradient(policy, algorithm, rollouts, REWARDS, *options)
        return own, metrics["observation_loss"]

    rounding.same(results, results(budget))


def test_episodes_of_equal_reward_teach_what_was_observed(policy):
    rollouts, algorithm = played(policy), GRPO(GRPO.Config(observation_weight=0.1))
    equal, _ = gradient(policy, algorithm, rollouts, [1.0] * 8)
    assert float(equal.norm()) > 0


def test_truncated_episodes_teach_no_observations_if_they_are_masked(policy, rounding):
    rollouts = played(policy)
    cut = torch.arange(8) % 3 == 0
    rollouts = replace(rollouts, truncated=cut)
    config = GRPO.Config(observation_weight=0.1, mask_truncated=True)
    ours, _ = gradient(policy, GRPO(config), rollouts, [1.0] * 8)
    rest = rollouts.select(~cut)
    expected, _ = gradient(policy, GRPO(config), rest, [1.0] * len(rest))
    assert float(expected.norm()) > 0
    rounding.same(lambda: gradient(policy, GRPO(config), rest, [1.0] * len(rest))[0], ours)


def test_decisions_have_the_same_outputs_with_and_without_observations(policy, rounding):
    rollouts = played(policy)
    with torch.no_grad():
        every = policy(rollouts)
        alone = policy(rollouts, outputs=frozenset({"log_probs", "entropy"}))
    assert alone.extra == {}
    allowed = rounding.bounds(lambda: (policy(rollouts).log_probs, policy(rollouts).entropy))
    pairs = [(own.log_probs, own.entropy) for own in (every, alone)]
    assert rounding.excess(*pairs, allowed) <= 1


def test_nothing_is_kept_where_no_algorithm_reads_it(policy):
    policy.prepare(outputs=frozenset({"log_probs"}), facts=frozenset())
    rollouts = play_episodes(Answers(), {"policy": policy}, CHAT, seed=5).rollouts("policy")
    assert "observations" not in rollouts.trajectory
    # Of rollouts whose sampler does not tell, all tokens that were not drawn are observations.
    holes = rollouts.trajectory["attention"] & ~rollouts.mask
    assert torch.equal(policy.observations(rollouts), holes)


def run(policy, tmp_path, *, steps=4, quiet=True, **sections):
    return train(
        policy=policy,
        prompts={"name": TEXTS, "held_out": 0.0},
        rewards=[lambda completions, **_: [1.0] * len(completions)],
        algorithm={"name": "grpo", "observation_weight": 1.0},
        train={"steps": steps, "groups_per_step": 2, "group_size": 2, "learning_rate": 0.01},
        evaluation={"prompts": 0},
        output=tmp_path / "run",
        quiet=quiet,
        **sections,
    )


def test_a_run_learns_to_predict_its_environment(policy, tmp_path):
    run(policy, tmp_path, environment=Answers())
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["observation_loss"] for line in lines]
    assert losses[-1] < losses[0] / 2


def test_a_run_without_observations_says_so(policy, tmp_path, capsys):
    run(policy, tmp_path, steps=1, quiet=False)
    printed = capsys.readouterr()
    assert "observation_weight: in this step no tool" in printed.out + printed.err
