"""An agent with the `openai` client, unmodified, is trained on the tokens that were sampled."""

import json
import random
import time

import pytest
import torch
from tests.agents.requests import ADD, played, says, user
from tests.tiny_model import folder

import groupwise
from groupwise.testing import play_episodes
from groupwise_agents.agent import Agent
from groupwise_llm.policy import LanguageModel
from groupwise_llm.settings import Settings

openai = pytest.importorskip("openai")

TEMPLATE = (
    "{% for m in messages %}{{ m['role'][0] + m['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'a' }}{% endif %}"
)
ROWS = [{"prompt": "12+3=", "answer": "15"}, {"prompt": "2+2=", "answer": "4"}]


def policy(**settings):
    chat_template = {"chat_template": TEMPLATE}
    settings = {"max_new_tokens": 48, "chat_template": chat_template, **settings}
    return LanguageModel(Settings(model=str(folder()), **settings))


def agent(base_url, api_key, model, prompt):
    """Asks again twice, after pauses of any length."""
    with openai.OpenAI(base_url=base_url, api_key=api_key) as client:
        messages = [{"role": "user", "content": prompt}]
        for _ in range(3):
            completion = client.chat.completions.create(
                model=model, messages=messages, max_tokens=8
            )
            messages += [completion.choices[0].message, {"role": "user", "content": "2+1="}]
            time.sleep(random.random() / 50)
    return sum(len({*message.content}) for message in messages[1::2])


def trained(output):
    result = groupwise.train(
        policy=policy(),
        environment=Agent(agent),
        prompts=ROWS,
        rewards=[returned],
        train={"steps": 2, "groups_per_step": 2, "group_size": 3, "learning_rate": 1e-2},
        evaluation={"prompts": 0},
        output=output,
        quiet=True,
    )
    lines = (result.folder / "metrics.jsonl").read_text().splitlines()
    return [step for step in map(json.loads, lines) if "reward" in step]


def returned(reward):
    return reward


@pytest.mark.slow
def test_the_same_run_twice_trains_the_same_tokens(tmp_path, rounding):
    one, two = (trained(tmp_path / name) for name in ("one", "two"))
    for name in ("reward", "entropy", "loss", "grad_norm"):
        assert [step[name] for step in one] == [step[name] for step in two]
    model = policy()
    model.place(torch.device("cpu"))
    assert one[0]["mismatch/max"] <= rounding.ratio_bound(model, ROWS[0])  # the ratio is one
    assert one[0]["grad_norm"] > 0


def test_the_decisions_are_those_that_the_agent_received(rounding):
    model = policy()
    model.place(torch.device("cpu"))
    episodes = play_episodes(Agent(agent), {"policy": model}, ROWS, size=2)
    rollouts = episodes.rollouts("policy")
    assert len(rollouts) == 4  # an episode each, with three turns
    assert episodes.judged.facts["turns"] == [3.0] * 4
    holes = rollouts.extents - rollouts.mask.sum(1)
    assert int(holes.min()) >= 2 * len("u2+1=\na")
    mask = rollouts.mask
    rounding.same(lambda: model(rollouts).log_probs[mask], rollouts.sampler_log_probs[mask])


def test_what_a_stream_brought_is_recognised_when_it_comes_back():
    reasons = []

    def streams(base_url, api_key, model):
        messages = [user("Hi")]
        with openai.OpenAI(base_url=base_url, api_key=api_key) as client:
            for _ in range(2):
                with client.chat.completions.stream(model=model, messages=messages) as events:
                    choice = events.get_final_completion().choices[0]
                reasons.append(choice.finish_reason)
                messages.append(choice.message)
            messages.append(user("Why?"))
            client.chat.completions.create(model=model, messages=messages)

    replies = says("<add>", ADD, content=""), says("It is 3.")
    outcome, player = played(streams, *replies)
    assert reasons == ["tool_calls", "stop"]
    assert outcome["drifts"] == 0
    assert player.contexts[-1] == [user("Hi"), *(reply.message for reply in replies), user("Why?")]
