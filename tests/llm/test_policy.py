"""The policy: prompts, errors, saving, references, a step of training, and other samplers."""

import warnings

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from groupwise.algorithms.grpo import GRPO
from groupwise.kit.errors import UserError
from groupwise.kit.memory import Workload
from groupwise.rewards import Scores
from groupwise.sampler import Sampler
from groupwise.testing import updater_of
from groupwise.weights import KeptWeights
from groupwise_llm.policy import LanguageModel
from groupwise_llm.probing import probes
from groupwise_llm.settings import Settings

ESTIMATE = {
    "decisions": 64,
    "rollouts": 64,
    "group_size": 8,
    "sampled": 64,
    "reference": False,
    "averages": 0,
}
MESSAGES = [{"role": "user", "content": "3+4?"}]
LORA = {"rank": 4, "alpha": 8}


def estimate(settings, training=True, **changes):
    load = Workload(training=training, **{**ESTIMATE, **changes})
    return LanguageModel.estimate(settings, load)


def perturbed(policy):
    """Adds noise to the trained weights, as an update would; returns the policy."""
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return policy


def test_messages_go_through_the_models_chat_template(make):
    policy = make()
    rollouts = policy.sample([{"prompt": MESSAGES}], group_size=2, seeds=[1, 2])
    expected = policy.tokenizer("user:3+4?<|turn|>assistant:")["input_ids"]
    assert rollouts.trajectory["prompt_ids"][0].tolist() == expected
    (message,) = rollouts.completions[0]
    assert message["role"] == "assistant"
    (ids, _) = rollouts.facts["completion_ids"]
    assert message["content"] == policy.tokenizer.decode(ids).removesuffix("<|end|>")


def test_chat_template_arguments_reach_the_template(make):
    policy = make(chat_template={"add_generation_prompt": False})
    rollouts = policy.sample([{"prompt": MESSAGES}], group_size=1, seeds=[1])
    assert policy.tokenizer.decode(rollouts.trajectory["prompt_ids"][0]) == "user:3+4?<|turn|>"


def test_messages_without_a_chat_template_are_a_user_error(make):
    with pytest.raises(UserError, match="has no chat template; use plain text"):
        make(model={"template": None}).sample([{"prompt": MESSAGES}], group_size=1, seeds=[1])


def test_a_prompt_that_the_template_refuses_is_a_user_error(make):
    policy = make(model={"template": "{{ raise_exception('no system role') }}"})
    with pytest.raises(UserError, match="its chat template refuses the prompt: no system role"):
        policy.sample([{"prompt": MESSAGES}], group_size=1, seeds=[1])


def test_a_prompt_that_leaves_no_room_for_a_completion_is_a_user_error(make):
    with pytest.raises(
        UserError,
        match=r"120 tokens is longer than the 116 that max_new_tokens=12 leaves of the 128",
    ):
        make().sample([{"prompt": "x" * 120}], group_size=1, seeds=[1])
    make().sample([{"prompt": "x" * 116}], group_size=1, seeds=[1])


def test_an_empty_prompt_is_a_user_error(make):
    with pytest.raises(UserError, match="no tokens"):
        make().sample([{"prompt": ""}], group_size=1, seeds=[1])


def test_a_model_that_cannot_be_loaded_is_a_user_error(tmp_path):
    settings = Settings(model=str(tmp_path))
    for use in (LanguageModel(settings).place, lambda _: estimate(settings)):
        with pytest.raises(UserError, match=r"it has no config\.json, .*; it is empty"):
            use("cpu")


def test_adapters_for_missing_modules_are_a_user_error(make):
    with pytest.raises(UserError, match=r"policy\.lora: .*nowhere"):
        make(lora={"targets": ["nowhere"]})


def test_a_model_without_an_end_token_is_a_user_error(make, monkeypatch):
    from groupwise_llm.files import loading

    policy = make()
    policy.model.config.eos_token_id = policy.model.generation_config.eos_token_id = None
    monkeypatch.setattr(type(policy.tokenizer), "eos_token_id", None, raising=False)
    with pytest.raises(UserError, match="states no end token"):
        loading.end_tokens(policy.model, policy.tokenizer)


def test_full_training_saves_what_transformers_loads(make, tmp_path):
    policy = perturbed(make())
    policy.save_pretrained(tmp_path / "model")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    ids = torch.arange(20).unsqueeze(0)
    assert torch.equal(loaded(ids).logits, policy.model(ids).logits)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer.chat_template == policy.tokenizer.chat_template


@pytest.mark.parametrize("lora", [None, LORA])
def test_saving_is_tried_without_weights_and_refused_where_it_fails(make, lora, monkeypatch):
    policy, kinds = make(lora=lora), (peft.PeftModel, PreTrainedModel)
    policy.try_saving()
    written = []

    def fails(model, path, *, state_dict, **_):
        written.append(sum(tensor.numel() for tensor in state_dict.values()))
        raise TypeError("no place for the second head")

    monkeypatch.setattr(kinds[lora is None], "save_pretrained", fails)
    with pytest.raises(UserError, match=r"could not be saved by .*no place for the second head"):
        policy.try_saving()
    assert sum(written) < 100


def test_adapters_save_what_peft_loads(make, saved, tmp_path):
    policy = perturbed(make(lora=LORA))
    policy.save_pretrained(tmp_path / "model")
    base = AutoModelForCausalLM.from_pretrained(saved())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        loaded = peft.PeftModel.from_pretrained(base, tmp_path / "model").eval()
    ids = torch.arange(20).unsqueeze(0)
    assert torch.equal(loaded(input_ids=ids).logits, policy.model(input_ids=ids).logits)


def test_only_adapters_are_trained(make):
    policy = make(lora=LORA)
    assert all("lora_" in n for n, p in policy.named_parameters() if p.requires_grad)
    assert sum(p.requires_grad for p in policy.parameters()) > 0


@pytest.mark.parametrize("settings", [{}, {"lora": LORA}], ids=["copy", "adapters off"])
def test_the_reference_keeps_the_weights_of_the_start_of_training(make, rows, settings, rounding):
    policy = make(**settings)
    rollouts = policy.sample(rows, group_size=2, seeds=range(6))
    start = policy(rollouts).log_probs.detach()
    kept = KeptWeights(policy)
    kept.keep("reference")
    perturbed(policy)
    with kept.using("reference"):
        rounding.same(lambda: policy(rollouts).log_probs, start)
    assert (policy(rollouts).log_probs - start).abs().max() > 0.01
    assert all("reference" not in name for name, _ in policy.named_parameters())
    # As before, only trained weights get a gradient.
    policy(rollouts).log_probs.sum().backward()
    assert all((p.grad is not None) == p.requires_grad for p in policy.parameters())


@pytest.mark.parametrize("settings", [{}, {"lora": LORA}], ids=["full", "adapters"])
def test_weights_are_kept_under_any_name(make, rows, settings):
    policy = perturbed(make(**settings))
    rollouts = policy.sample(rows, group_size=1, seeds=range(3))
    start = policy(rollouts).log_probs.detach()
    kept = KeptWeights(policy)
    kept.keep("average")
    assert set(kept.copies("average")) == {
        n for n, p in policy.named_parameters() if p.requires_grad
    }
    perturbed(policy)
    present = policy(rollouts).log_probs.detach()
    with kept.using("average"):
        torch.testing.assert_close(policy(rollouts).log_probs, start, rtol=0, atol=0)
    torch.testing.assert_close(policy(rollouts).log_probs, present, rtol=0, atol=0)
    with pytest.raises(UserError, match="keeps no weights named 'ema'"), kept.using("ema"):
        pass


COPIED = {
    "full": None,
    "not initialised to zero": {**LORA, "options": {"init_lora_weights": False}},
    "biases of the model": {**LORA, "options": {"bias": "all"}},
}


@pytest.mark.parametrize("lora", [*COPIED.values(), LORA], ids=[*COPIED, "adapters"])
def test_a_reference_is_copied_unless_it_is_the_model_without_adapters(make, rows, lora, rounding):
    policy = make("gpt2", lora=lora)
    rollouts = policy.sample(rows, group_size=1, seeds=range(3))
    start = policy(rollouts).log_probs.detach()
    kept = KeptWeights(policy)
    kept.keep("reference")
    assert bool(kept.copies("reference")) == (lora is not LORA)
    perturbed(policy)
    with kept.using("reference"):
        rounding.same(lambda: policy(rollouts).log_probs, start)


def test_a_changed_reference_is_restored_from_a_checkpoint(make, rows, rounding):
    policy, resumed = make(lora=LORA), make(lora=LORA)
    kept = KeptWeights(policy)
    kept.keep("reference")
    perturbed(policy)
    kept.keep("reference")
    rollouts = policy.sample(rows, group_size=1, seeds=range(3))
    restored = KeptWeights(resumed)
    restored.keep("reference")
    restored.restore("reference", kept.copies("reference"))
    with kept.using("reference"), restored.using("reference"):
        rounding.same(lambda: resumed(rollouts).log_probs, policy(rollouts).log_probs)


SAVES_NORM = {**LORA, "options": {"modules_to_save": ["norm"]}}


@pytest.mark.parametrize("settings", [{}, {"precision": "bf16"}], ids=["float32", "bf16"])
@pytest.mark.parametrize("lora", [LORA, SAVES_NORM], ids=["adapters", "and a module"])
def test_a_reference_without_adapters_can_be_blended_with_the_policy(
    make, rows, lora, settings, rounding
):
    policy = make(lora=lora, **settings)
    rollouts = policy.sample(rows, group_size=1, seeds=range(3))
    kept = KeptWeights(policy)
    kept.keep("reference")
    perturbed(policy)
    assert kept.distance("reference") > 0
    kept.blend("reference", 0.75)
    with torch.no_grad():
        with kept.using("reference"):
            blended = policy(rollouts).log_probs
        # Blended by 0.75: a quarter of the adapters and of the module's change remains.
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:
                parameter.mul_(0.25)
            elif "modules_to_save" in name:
                original = policy.get_parameter(
                    name.replace("modules_to_save.default", "original_module")
                )
                parameter.copy_(torch.lerp(original, parameter, 0.25))
        if policy.exact:
            rounding.same(lambda: policy(rollouts).log_probs, blended)
        else:  # the same weights in the same passes, whose rounding error is near a tenth
            assert torch.equal(policy(rollouts).log_probs, blended)
        kept.blend("reference", 0.0)
        with kept.using("reference"):
            current = policy(rollouts).log_probs
        torch.testing.assert_close(current, policy(rollouts).log_probs, rtol=0, atol=0)
    assert kept.distance("reference") == 0
    kept.keep("reference")
    assert kept.copies("reference")


@pytest.mark.slow(after=2)
@pytest.mark.parametrize(
    ("architecture", "lora"), [("qwen2", None), ("gpt2", None), ("gemma3", None), ("qwen2", LORA)]
)
def test_the_estimate_counts_the_parameters_exactly(make, architecture, lora):
    policy = make(architecture, lora=lora)
    sizes = estimate(policy.config)
    assert sizes["weights"] == sum(p.numel() * 4 for p in policy.parameters())
    trained = sum(p.numel() * 4 for p in policy.parameters() if p.requires_grad)
    assert sizes["gradients"] == trained
    assert sizes["optimizer"] == 2 * trained
    copies = set() if lora is None else {"merged adapters while sampling"}
    sizes = estimate(policy.config, training=False)
    assert sizes.keys() == {"weights", "cache of the sampler"} | copies
    kept = estimate(policy.config, reference=True, averages=2)
    assert kept.get("reference", 0) == (trained if lora is None else 0)
    assert kept["moving average"] == 2 * trained


@pytest.mark.parametrize("settings", [{}, {"lora": LORA}, {"precision": "bf16"}])
def test_an_update_makes_the_rewarded_completion_likelier(make, rows, settings):
    policy = make(**settings).train()
    rollouts = policy.sample(rows[:1], group_size=4, seeds=range(4))
    values = torch.tensor([[1.0], [0.0], [0.0], [0.0]])
    scores = Scores(
        names=("r",),
        weights=(1.0,),
        values=values.double(),
        failed=torch.zeros(4, dtype=torch.bool),
    )
    before = rewarded_log_prob(policy, rollouts)
    optimizer = torch.optim.AdamW([p for p in policy.parameters() if p.requires_grad], lr=1e-3)
    metrics = updater_of(policy, GRPO(), 100).backward(scores=scores, rollouts=rollouts, outputs={})
    optimizer.step()
    assert metrics["mismatch/max"] < (0.1 if settings.get("precision") else 1e-4)
    assert rewarded_log_prob(policy, rollouts) > before


@torch.no_grad()
def rewarded_log_prob(policy, rollouts):
    return float(policy(rollouts).log_probs[0].sum())


def test_training_mode_keeps_dropout_off(make, rounding):
    policy = make("gpt2", model={"resid_pdrop": 0.5, "embd_pdrop": 0.5}).train()
    rollouts = policy.sample([{"prompt": "ab"}], group_size=2, seeds=[1, 2])
    assert policy.training
    rounding.same(lambda: policy(rollouts).log_probs, rollouts.sampler_log_probs)


def test_the_trial_run_of_a_model_is_made_once_on_its_device(make, saved, rows, monkeypatch):
    devices, original = [], probes.ability

    def ability(model, **options):
        devices.append(model.device)
        return original(model, **options)

    monkeypatch.setattr(probes, "ability", ability)
    policy = LanguageModel(Settings(model=str(saved()), max_new_tokens=12)).train()
    with pytest.raises(RuntimeError, match=r"place\(device\) comes before"):
        policy.sample(rows, group_size=1, seeds=range(3))
    # Some kernels run only on the device that the policy has yet to be moved to.
    assert not devices
    policy.place("cpu")
    assert policy.training
    policy(policy.sample(rows, group_size=1, seeds=range(3)))
    assert policy.notes == []
    assert devices == [torch.device("cpu")]


def test_only_float32_is_exact(make):
    assert make().exact
    assert not make(precision="bf16").exact
    assert not make(lora=LORA, loading={"dtype": "bfloat16"}).exact
    torch.set_float32_matmul_precision("high")
    try:
        assert not make().exact
    finally:
        torch.set_float32_matmul_precision("highest")


class Engine(Sampler):
    def sample(self, prompts, *, group_size, seeds, purpose="train"):
        raise NotImplementedError

    def follow(self, policy, name, version):
        pass


@pytest.mark.parametrize(
    "filtering",
    [{"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}, {"repetition_penalty": 1.2}],
    ids=str,
)
def test_another_sampler_must_draw_from_the_full_distribution(make, filtering):
    policy = make(**filtering)
    policy.check_sampler(policy)
    ((name, value),) = filtering.items()
    with pytest.raises(UserError, match=rf"policy\.{name} {value}: Engine states log-probs of"):
        policy.check_sampler(Engine())
    make(evaluation=filtering).check_sampler(Engine())


def test_a_model_that_does_not_run_is_a_user_error(make, monkeypatch):
    def broken(**_):
        raise IndexError("no such layer")

    policy = make()
    monkeypatch.setattr(policy.model, "forward", broken)
    with pytest.raises(UserError, match="the model does not run: no such layer"):
        policy.place("cpu")


def test_a_model_that_attends_to_later_tokens_is_refused(make):
    policy = make()
    embed = policy.model.model.embed_tokens
    embed.register_forward_hook(lambda _, __, output: output + output.mean(dim=1, keepdim=True))
    with pytest.raises(UserError, match="so it is no causal language model"):
        policy.place("cpu")
