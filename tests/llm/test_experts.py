"""Mixtures of experts with adapters: one distribution in sampling, in training and for engines."""

from pathlib import Path
from runpy import run_path

import pytest
import torch
from peft.tuners.lora import ParamWrapper
from safetensors.torch import save_file
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from groupwise.kit.errors import UserError
from groupwise.weights import kept_parameters
from groupwise_llm.files.loading import outline
from groupwise_llm.model import merging
from groupwise_llm.model.adapters import routers_of
from groupwise_llm.policy import LanguageModel
from groupwise_llm.settings import Settings

TABLES = run_path(str(Path(__file__).with_name("architectures.py")))
TABLE = TABLES["ATTENTION"] | TABLES["RECURRENT"]
STACKED = ["experts.gate_up_proj", "experts.down_proj"]
EXPERTS = {"rank": 4, "options": {"target_parameters": STACKED}}
NAMED = ("gpt_oss", "granitemoe", "qwen2_moe")
"""Their experts get adapters only if they are named."""
BY_DEFAULT = ("mixtral", "qwen3_moe", "olmoe", "glm4_moe", "deepseek_v3", "qwen3_next", "minimax")


def config_of(name):
    return CONFIG_MAPPING[name](**TABLE[name])


def lora_of(name):
    return EXPERTS if name in NAMED else {"rank": 4}


def trained(policy):
    """Makes the adapters large enough to change every log-prob."""
    torch.manual_seed(3)
    with torch.no_grad():
        for weight in kept_parameters(policy).values():
            weight.add_(torch.randn_like(weight) * 0.1)
    return policy


@pytest.mark.parametrize("name", [*BY_DEFAULT, *NAMED])
@pytest.mark.slow(after=3)
def test_sampler_policy_and_merged_checkpoint_have_the_same_log_probs(
    make_of, rows, tmp_path, transformers_log_probs, name, rounding
):
    policy = trained(make_of(config_of(name), lora=lora_of(name)))
    wrapped = [x for x in policy.modules() if isinstance(x, ParamWrapper)]
    assert {x.parameter_name for x in wrapped} == {"gate_up_proj", "down_proj"}
    rollouts = policy.sample(rows, group_size=4, seeds=range(12))
    with torch.no_grad():
        log_probs = policy(rollouts).log_probs
    sampled = rollouts.sampler_log_probs
    rounding.same(lambda: policy(rollouts).log_probs * rollouts.mask, sampled)
    tensors = {key: value.contiguous() for key, value in policy.weights()}
    save_file(tensors, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    plain, report = AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", output_loading_info=True
    )
    assert not any(report.values())
    policy.causal.model = plain.eval()
    log_probs = log_probs * rollouts.mask
    rounding.same(lambda: transformers_log_probs(policy, rollouts), log_probs)


@pytest.mark.parametrize("name", ["mixtral", "gpt_oss"])
def test_sampling_computes_the_weights_of_adapted_experts_once(make_of, rows, monkeypatch, name):
    """Unmerged, peft computes those of all experts anew for every token."""
    policy, passes = make_of(config_of(name), lora=lora_of(name)), []
    forward = ParamWrapper.forward

    def counted(self, *values, **options):
        passes.append(1)
        return forward(self, *values, **options)

    monkeypatch.setattr(ParamWrapper, "forward", counted)
    rollouts = trained(policy).sample(rows, group_size=2, seeds=range(6))
    assert not passes
    policy(rollouts)
    assert passes


def test_probes_notice_an_adapter_that_is_not_merged(make_of, monkeypatch):
    monkeypatch.setattr(merging, "wrappers_of", lambda layer: [layer])  # the outermost alone
    with pytest.raises(UserError, match=r"cannot be sampled with the log-probs .*merge: false"):
        make_of(config_of("mixtral"), lora={"rank": 4})
    make_of(config_of("mixtral"), lora={"rank": 4, "merge": False})


def test_probes_leave_adapters_as_they_were(make_of):
    policy = make_of(
        config_of("mixtral"), lora={"rank": 4, "options": {"modules_to_save": ["norm"]}}
    )
    weights = kept_parameters(policy)
    for name, weight in weights.items():
        assert ("lora_B" in name) == (not weight.any()), name
    norm = policy.causal.causal.model.norm
    assert torch.equal(norm.modules_to_save.default.weight, norm.original_module.weight)


@pytest.mark.parametrize("unmerged", ["gate_up_proj", "down_proj"])
def test_an_adapter_that_is_not_merged_is_refused(make_of, monkeypatch, unmerged):
    policy, merge = trained(make_of(config_of("mixtral"), lora={"rank": 2})), ParamWrapper.merge

    def partly(self, *values, **options):
        if self.parameter_name != unmerged:
            merge(self, *values, **options)

    monkeypatch.setattr(ParamWrapper, "merge", partly)
    with pytest.raises(UserError, match=r"adapters of model\.layers\.0\.mlp\.experts cannot be"):
        dict(policy.weights())


def test_a_trained_weight_that_no_engine_would_get_is_refused(make):
    policy = make(
        "llama", lora={"targets": ["q_proj"], "options": {"modules_to_save": ["lm_head"]}}
    )
    dict(policy.weights())
    policy.causal.causal.lm_head.original_module.weight.requires_grad_(True)
    with pytest.raises(UserError, match=r"lm_head\.original_module\.weight is trained, but"):
        dict(policy.weights())


@pytest.mark.parametrize("name", ["mixtral", "gpt_oss"])
def test_experts_with_adapters_train_in_bf16(make_of, rows, name):
    policy = make_of(config_of(name), lora=lora_of(name), precision="bf16")
    rollouts = trained(policy).sample(rows, group_size=2, seeds=range(6))
    policy(rollouts).log_probs.sum().backward()
    trainable = kept_parameters(policy)
    assert all(weight.grad.any() for weight in trainable.values())
    assert {weight.dtype for weight in trainable.values()} == {torch.float32}


ADAPTED = [name for name in TABLE if name in {*BY_DEFAULT, *NAMED, "jamba"}]


@pytest.mark.parametrize("name", ADAPTED)
def test_routers_have_no_adapters_by_default(name):
    options = {"options": {"exclude_modules": ["dt_proj"]}} if name == "jamba" else {}
    settings = Settings(model="unused", lora={"rank": 2, **options})
    model = outline(settings, config_of(name))
    routers = routers_of(model.get_base_model())
    assert len(routers) == sum(type(x).__name__.lower().endswith("router") for x in model.modules())
    assert routers
    trained_weights = [p for p in model.parameters() if p.requires_grad]
    of_routers = {id(p) for router in routers.values() for p in router.parameters()}
    assert trained_weights
    assert not any(id(p) in of_routers for p in trained_weights)


def test_a_router_that_is_named_has_adapters(make_of, rows):
    options = {"target_parameters": ["gate.weight"]}
    policy = trained(make_of(config_of("deepseek_v3"), lora={"rank": 2, "options": options}))
    assert any(".gate.lora" in name for name in kept_parameters(policy))
    # Merged, the router keeps its buffer, which is no parameter.
    assert any(name.endswith("e_score_correction_bias") for name, _ in policy.weights())


def test_targets_by_the_names_that_experts_had_before_they_were_stacked():
    targets = ["q_proj", "w1", "w2", "w3"]
    settings = Settings(model="unused", lora={"rank": 2, "targets": targets})
    wrapped = [m for m in outline(settings, config_of("mixtral")).modules() if hasattr(m, "lora_A")]
    assert any(isinstance(module, ParamWrapper) for module in wrapped)
    settings = Settings(model="unused", lora={"rank": 2, "targets": [*targets, "w4"]})
    with pytest.raises(UserError, match="'w4' applies to no layer"):
        outline(settings, config_of("mixtral"))


def test_check_states_which_weights_have_adapters(make_of):
    policy = make_of(config_of("gpt_oss"), lora={"rank": 4})
    total = sum(p.numel() for n, p in policy.model.named_parameters() if "lora" not in n)
    experts = sum(p.numel() for n, p in policy.model.named_parameters() if p.ndim == 3)
    adapted, hint = LanguageModel.examine(policy.config, [{"prompt": "1+1="}])
    assert adapted.startswith(
        "policy.lora: adapters on self_attn.k_proj, self_attn.o_proj, self_attn.q_proj, "
        "self_attn.v_proj: "
    )
    assert f"{experts / total:.0%} of the weights, have no adapters and are not trained" in hint
    assert hint in policy.notes
    targets = hint.partition("target_parameters: [")[2].partition("]")[0].split(", ")
    options = {"rank": 4, "options": {"target_parameters": targets}}
    settings = Settings(model=policy.config.model, max_new_tokens=12, lora=options)
    (adapted,) = LanguageModel.examine(settings, [{"prompt": "1+1="}])
    assert "mlp.experts.gate_up_proj" in adapted.partition("without adapters")[0]
