"""The language model with its critic: laws, values, memory, saving."""

from pathlib import Path
from typing import Any

import pytest
import torch
from groupwise_ppo.policy import LanguageModelWithCritic
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from groupwise import Rollouts, testing
from groupwise.kit.errors import UserError
from groupwise.kit.memory import Workload
from groupwise.weights import kept_parameters
from groupwise_llm.policy import LanguageModel
from groupwise_llm.settings import Settings

Rows = list[dict[str, Any]]
Config = LanguageModelWithCritic.Config


def placed(**settings: Any) -> LanguageModelWithCritic:
    policy = LanguageModelWithCritic(Config(max_new_tokens=8, **settings))
    policy.place("cpu")
    return policy


def sampled(policy: LanguageModel, rows: Rows) -> Rollouts:
    with torch.no_grad():
        return policy.sample(rows, group_size=2, seeds=list(range(2 * len(rows))))


def test_laws(policy: LanguageModelWithCritic, rows: Rows) -> None:
    def load(path: Path) -> LanguageModelWithCritic:
        return placed(model=str(path), critic=str(path / "critic"))

    testing.check_policy(policy, rows, load=load)


def test_a_pickled_critic_is_not_read(policy: LanguageModelWithCritic, tmp_path: Path) -> None:
    policy.save_pretrained(tmp_path)
    folder = tmp_path / "critic"
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match="no weights as safetensors"):
        placed(model=str(tmp_path), critic=str(folder))


def test_values_are_those_of_the_classifier(policy: LanguageModelWithCritic, rows: Rows) -> None:
    """By transformers' own forward of one row, its head applied before each sampled token."""
    rollouts = sampled(policy, rows)
    value = policy(rollouts).extra["value"]
    assert policy.critic is not None
    classifier = policy.critic.body.causal
    for row in range(len(rollouts)):
        prompt, length = rollouts.trajectory["prompt_ids"][row], int(rollouts.lengths[row])
        ids = torch.cat([prompt, rollouts.tensor("completion_ids")[row, :length]])
        hidden = classifier.model(input_ids=ids.unsqueeze(0)).last_hidden_state[0]
        expected = classifier.score(hidden).squeeze(-1)[len(prompt) - 1 : -1]
        torch.testing.assert_close(value[row, :length], expected, atol=1e-5, rtol=1e-4)


def test_it_answers_what_it_is_asked(policy: LanguageModelWithCritic, rows: Rows) -> None:
    rollouts = sampled(policy, rows)
    whole = policy(rollouts)
    alone = policy(rollouts, outputs=frozenset({"value"}))
    assert alone.log_probs is alone.entropy is None
    assert torch.equal(alone.extra["value"], whole.extra["value"])
    assert not policy(rollouts, outputs=frozenset({"log_probs"})).extra


def test_the_model_is_that_of_a_language_model(
    policy: LanguageModelWithCritic, model: Path, rows: Rows
) -> None:
    """The critic changes neither samples nor log-probs, and shares no weight with the policy."""
    usual = LanguageModel(Settings(model=str(model), max_new_tokens=8))
    usual.place("cpu")
    one, other = sampled(policy, rows), sampled(usual, rows)
    assert one.completions == other.completions
    assert torch.equal(policy(one).log_probs, usual(other).log_probs)
    named = {name: p.data_ptr() for name, p in policy.named_parameters()}
    assert len(set(named.values())) == len(named)
    assert [name for name, _ in usual.named_parameters()] == [*kept_parameters(policy)]
    assert [name for name, _ in usual.weights()] == [name for name, _ in policy.weights()]


def test_no_critic_is_loaded_for_an_algorithm_without(model: Path) -> None:
    policy = LanguageModelWithCritic(Config(model=str(model), max_new_tokens=8))
    policy.prepare(outputs=frozenset({"log_probs"}), facts=frozenset())
    policy.place("cpu")
    assert policy.critic is None


def test_values_begin_at_zero_and_have_a_gradient(model: Path, rows: Rows) -> None:
    policy = placed(model=str(model))
    value = policy(sampled(policy, rows)).extra["value"]
    assert not value.any()
    value.sum().backward()
    assert policy.critic is not None
    assert policy.critic.head.weight.grad is not None
    assert policy.critic.head.weight.grad.any()


@pytest.mark.parametrize("settings", [{"precision": "bf16"}, {"lora": {"rank": 2}}])
def test_in_bf16_and_beside_adapters_it_is_held_in_float32(
    model: Path, rows: Rows, settings: dict[str, Any]
) -> None:
    policy = placed(model=str(model), **settings)
    assert policy.critic is not None
    weights = [*policy.critic.parameters()]
    assert all(p.dtype == torch.float32 and p.requires_grad for p in weights)
    with torch.no_grad():
        policy.critic.head.weight.fill_(0.1)
    answer = policy(sampled(policy, rows))
    answer.extra["value"].sum().backward()
    assert answer.extra["value"].dtype == torch.float32
    assert all(p.grad is not None for p in weights)


def test_saved_it_is_a_model_and_a_critic_beside_it(
    policy: LanguageModelWithCritic, model: Path, tmp_path: Path
) -> None:
    policy.save_pretrained(tmp_path)
    read, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert type(read).__name__ == "Qwen2ForCausalLM"
    begun = AutoModelForSequenceClassification.from_pretrained(tmp_path / "critic")
    assert policy.critic is not None
    assert torch.equal(begun.score.weight, policy.critic.head.weight)
    again = placed(model=str(model), critic=str(tmp_path / "critic"))
    assert again.critic is not None
    assert torch.equal(again.critic.head.weight, policy.critic.head.weight)


def test_the_estimate_counts_the_critic(model: Path) -> None:
    run: dict[str, Any] = {
        "decisions": 256,
        "rollouts": 8,
        "group_size": 2,
        "sampled": 8,
        "training": True,
    }
    load = Workload(**run, reference=True, averages=1)
    usual = LanguageModel.estimate(Settings(model=str(model), max_new_tokens=8), load)
    sizes = LanguageModelWithCritic.estimate(Config(model=str(model), max_new_tokens=8), load)
    policy = placed(model=str(model))
    assert policy.critic is not None
    weights = sum(4 * p.numel() for p in policy.critic.parameters())
    assert sizes["critic"] == weights
    assert sizes["critic's gradients and optimizer"] == 3 * weights
    assert {name: sizes[name] for name in usual} == usual  # kept weights have no critic


def test_a_critic_that_is_none(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"policy\.critic: cannot load a critic from 'nowhere'"):
        placed(model=str(model), critic="nowhere")
    few = AutoModelForCausalLM.from_pretrained(model)
    few.resize_token_embeddings(5)
    few.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"it has 5 tokens, and the policy's model 10"):
        placed(model=str(model), critic=str(tmp_path))
    with pytest.raises(UserError, match=r"train\.shard: the critic .* cannot be sharded"):
        LanguageModelWithCritic(Config(model=str(model))).shard(None)  # type: ignore[arg-type]
