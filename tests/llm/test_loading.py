"""What is trained of a model and how it is held, what is switched off, and how it is saved."""

import json
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path
from runpy import run_path

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, Gemma3Config

from groupwise.errors import UserError
from groupwise_llm.files import loading
from groupwise_llm.policy import LanguageModel
from groupwise_llm.settings import Settings

TABLES = run_path(str(Path(__file__).with_name("architectures.py")))
ROWS = [{"prompt": "12+34="}, {"prompt": "Hi"}]
LORA = {"rank": 4}


# ---- precision


def test_what_is_trained_is_held_in_float32(make, rows):
    policy = make(loading={"dtype": "bfloat16"})
    assert {p.dtype for p in policy.parameters()} == {torch.float32}
    assert any("to compute in bf16 set precision: bf16" in note for note in policy.notes)
    rollouts = policy.sample(rows, group_size=2, seeds=range(6))
    before = torch.cat([p.detach().flatten().clone() for p in policy.parameters()])
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6, weight_decay=0.0)
    for _ in range(3):
        (-policy(rollouts).log_probs.sum()).backward()
        optimizer.step()
    after = torch.cat([p.detach().flatten() for p in policy.parameters()])
    touched = torch.cat([p.grad.flatten() for p in policy.parameters()]) != 0
    assert (after != before)[touched].float().mean() > 0.9


def test_under_adapters_the_base_stays_as_it_is_loaded(make, rows):
    policy = make(loading={"dtype": "bfloat16"}, lora=LORA)
    kinds = {p.requires_grad: p.dtype for p in policy.parameters()}
    assert kinds == {True: torch.float32, False: torch.bfloat16}
    rollouts = policy.sample(rows, group_size=2, seeds=range(6))
    gap = (policy(rollouts).log_probs - rollouts.sampler_log_probs)[rollouts.mask].abs()
    assert gap.max() < 0.1


def test_whole_layers_trained_beside_adapters_need_bf16(make):
    settings = {"loading": {"dtype": "bfloat16"}, "model": {"tie_word_embeddings": False}}
    lora = {**LORA, "targets": ["q_proj"], "options": {"modules_to_save": ["lm_head"]}}
    with pytest.raises(UserError, match=r"set precision: bf16, or leave loading\.dtype unset"):
        make(**settings, lora=lora)
    policy = make(**settings, lora=lora, precision="bf16")
    rollouts = policy.sample(ROWS, group_size=2, seeds=range(4))
    policy(rollouts).log_probs.sum().backward()
    assert {p.dtype for p in policy.parameters() if p.requires_grad} == {torch.float32}


@pytest.mark.parametrize("lora", [None, LORA])
def test_float16_says_that_gradients_may_underflow(make, lora):
    assert make(loading={"dtype": "float16"}, lora=lora).scale_loss == (lora is not None)
    assert not make(lora=lora).scale_loss


# ---- heads


@pytest.mark.parametrize(
    "options", [{"targets": ["lm_head"]}, {"options": {"modules_to_save": ["lm_head"]}}], ids=str
)
def test_what_wraps_the_head_counts(make, plain, options):
    policy = make(model={"tie_word_embeddings": False}, lora={**LORA, **options})
    assert any("own logits" in note for note in policy.notes)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if parameter.requires_grad and "lm_head" in name:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    rollouts = policy.sample(ROWS, group_size=2, seeds=range(4))
    answers = policy(rollouts).log_probs
    torch.testing.assert_close(answers, plain(policy, rollouts), rtol=0, atol=1e-4)
    answers.sum().backward()
    of_head = [p for n, p in policy.named_parameters() if p.requires_grad and "lm_head" in n]
    assert of_head
    assert all(p.grad.any() for p in of_head)


def hooked(head):
    head.register_forward_hook(lambda _, __, logits: logits * 0.5)


def parametrised(head):
    class Half(torch.nn.Module):
        def forward(self, weight):
            return weight * 0.5

    torch.nn.utils.parametrize.register_parametrization(head, "weight", Half())


@pytest.mark.parametrize("change", [hooked, parametrised])
def test_a_changed_head_is_not_read_past(make, plain, change, monkeypatch):
    load = loading.AutoModelForCausalLM.from_pretrained

    def changed(*args, **options):
        model = load(*args, **options)
        change(model.lm_head)
        return model

    monkeypatch.setattr(loading.AutoModelForCausalLM, "from_pretrained", changed)
    policy = make("llama")
    rollouts = policy.sample(ROWS, group_size=2, seeds=range(4))
    assert not policy.ability.numerics.plain_head
    torch.testing.assert_close(
        rollouts.sampler_log_probs, plain(policy, rollouts), rtol=0, atol=1e-4
    )


@pytest.mark.parametrize("cap", [10.0, None])
def test_a_head_that_caps_shows_under_rounded_weights(make, cap):
    # Off by 0.1 nats, less than bf16 may change in a pass.
    model = {"final_logit_softcapping": cap}
    policy = make("gemma2", model=model, lora=LORA, loading={"dtype": "bfloat16"})
    assert any("own logits" in note for note in policy.notes) == (cap is not None)


def test_adapters_that_have_no_effect_are_refused(make_of):
    config = CONFIG_MAPPING["jamba"](**TABLES["RECURRENT"]["jamba"])
    with pytest.raises(UserError, match=r"exclude_modules: \[dt_proj\]"):
        make_of(config, lora=LORA).sample(ROWS, group_size=1, seeds=[1, 2])
    policy = make_of(config, lora={**LORA, "options": {"exclude_modules": ["dt_proj"]}})
    rollouts = policy.sample(ROWS, group_size=1, seeds=[1, 2])
    policy(rollouts).log_probs.sum().backward()
    assert all(p.grad is not None for p in policy.parameters() if p.requires_grad)


def test_modules_that_peft_refuses_can_be_left_out(make_of):
    config = CONFIG_MAPPING["mamba2"](**TABLES["RECURRENT"]["mamba2"])
    with pytest.raises(UserError, match="exclude_modules"):
        make_of(config, lora=LORA)
    policy = make_of(config, lora={**LORA, "options": {"exclude_modules": ["out_proj"]}})
    rollouts = policy.sample(ROWS, group_size=1, seeds=[1, 2])
    torch.testing.assert_close(
        policy(rollouts).log_probs.detach(), rollouts.sampler_log_probs, rtol=0, atol=1e-4
    )


# ---- several modalities


@pytest.fixture
def seeing(make_of):
    """A model with a vision tower that no text reaches."""
    vision = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 16,
        "patch_size": 4,
    }
    config = Gemma3Config(
        text_config=TABLES["ATTENTION"]["gemma3_text"], vision_config=vision, mm_tokens_per_image=4
    )
    config.eos_token_id = 0
    return lambda **settings: make_of(config, **settings)


@pytest.mark.parametrize(
    "settings", [{}, {"lora": LORA}, {"gradient_checkpointing": True}], ids=str
)
def test_what_no_text_reaches_is_not_trained(seeing, settings):
    policy = seeing(**settings).train()
    assert any("model.vision_tower, model.multi_modal" in note for note in policy.notes)
    rollouts = policy.sample(ROWS, group_size=2, seeds=range(4))
    torch.testing.assert_close(
        policy(rollouts).log_probs.detach(), rollouts.sampler_log_probs, rtol=0, atol=1e-4
    )
    policy(rollouts).log_probs.sum().backward()
    trained = [n for n, p in policy.named_parameters() if p.requires_grad]
    assert trained
    assert all(p.grad is not None for p in policy.parameters() if p.requires_grad)
    assert not any("vision" in name for name in trained)


def test_experts_that_no_token_chose_are_trained(make_of):
    config = CONFIG_MAPPING["mixtral"](**TABLES["ATTENTION"]["mixtral"])
    assert all(p.requires_grad for p in make_of(config).parameters())


# ---- nothing drawn at random


@pytest.mark.parametrize(
    ("name", "dropout"),
    [
        ("opt", {"dropout": 0.5, "attention_dropout": 0.5, "layerdrop": 0.5}),
        ("falcon", {"hidden_dropout": 0.5, "attention_dropout": 0.5}),
        ("mixtral", {"attention_dropout": 0.5, "router_jitter_noise": 0.5}),
        ("gpt2", {"resid_pdrop": 0.5, "attn_pdrop": 0.5, "embd_pdrop": 0.5}),
    ],
)
def test_dropout_stays_off_under_gradient_checkpointing(make_of, name, dropout, tmp_path):
    config = CONFIG_MAPPING[name](**{**TABLES["ATTENTION"][name], **dropout})
    policy = make_of(config, gradient_checkpointing=True).train()
    rollouts = policy.sample(ROWS, group_size=2, seeds=range(4))
    torch.testing.assert_close(
        policy(rollouts).log_probs.detach(), rollouts.sampler_log_probs, rtol=0, atol=1e-4
    )
    policy.save_pretrained(tmp_path / "saved")
    written = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert {key: written[key] for key in dropout} == dropout


# ---- saving


def run_elsewhere(code, folder):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("lora", [None, LORA])
def test_the_card_says_how_to_load_from_any_folder(saved, lora, tmp_path, monkeypatch):
    base = saved("llama")
    monkeypatch.chdir(base.parent)
    settings = Settings(model=base.name, lora=lora, loading={"dtype": "float32"}, max_new_tokens=12)
    policy = LanguageModel(settings)
    policy.place("cpu")
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    policy.save_pretrained(tmp_path / "model")
    card = policy.card
    assert card["base_model"] == str(base)
    assert card["pipeline_tag"] == "text-generation"
    assert card["library_name"] == ("peft" if lora else "transformers")
    code = card["usage"].replace("{path}", str(tmp_path / "model"))
    code += """
import torch
logits = model.eval()(input_ids=torch.arange(20).unsqueeze(0)).logits[0, -1].tolist()
"""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    if lora:
        theirs = run_elsewhere(code + "import json; print(json.dumps(logits))", elsewhere)
    else:
        monkeypatch.chdir(elsewhere)
        names = {}
        exec(code, names)
        theirs = names["logits"]
    ours = policy.model(input_ids=torch.arange(20).unsqueeze(0)).logits[0, -1]
    torch.testing.assert_close(torch.tensor(theirs), ours)


def test_an_adapter_names_its_base_and_revision(saved, tmp_path, monkeypatch):
    base = saved("llama")
    monkeypatch.chdir(base.parent)
    settings = Settings(model=base.name, lora=LORA, loading={"revision": "v2"}, max_new_tokens=12)
    policy = LanguageModel(settings)
    policy.place("cpu")
    policy.save_pretrained(tmp_path / "model")
    written = json.loads((tmp_path / "model" / "adapter_config.json").read_text())
    assert written["base_model_name_or_path"] == str(base)
    assert written["revision"] == "v2"
    assert "revision='v2'" in policy.card["usage"]
    monkeypatch.chdir(tmp_path)
    from peft import AutoPeftModelForCausalLM

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        AutoPeftModelForCausalLM.from_pretrained("model")


def test_the_card_names_what_the_base_was_loaded_with(tmp_path):
    from groupwise_llm.card import card_of

    options = {"gguf_file": "model.gguf", "token": "secret", "subfolder": "q8"}
    usage = card_of(Settings(model="org/name", lora=LORA, loading=options))["usage"]
    assert "from_pretrained('org/name', gguf_file='model.gguf', subfolder='q8')" in usage
    assert "secret" not in usage


def test_quantised_weights_are_not_trained(make, monkeypatch):
    load = AutoModelForCausalLM.from_pretrained

    def quantised(*args, **options):
        model = load(*args, **options)
        model.is_quantized = True
        return model

    monkeypatch.setattr(loading.AutoModelForCausalLM, "from_pretrained", quantised)
    with pytest.raises(UserError, match="train adapters beside them"):
        make()


# ---- settings that cannot be met: known before weights are read

LOADINGS = [
    ({"dtype": "flaot"}, r"policy\.loading\.dtype: expected a dtype of torch .* found 'flaot'"),
    ({"dtyp": "float32"}, r"policy\.loading\.dtyp: .*from_pretrained has no such argument"),
]
ADAPTERS = [
    ({"targets": ["nowhere"]}, r"policy\.lora: Target modules \{'nowhere'\} not found"),
    ({"options": {"modules_to_save": ["nowhere"]}}, "modules_to_save: .* no module 'nowhere'"),
    ({"options": {"modules_to_save": "lm_head"}}, "modules_to_save: expected a list"),
    ({"options": {"lora_dropuot": 0.1}}, r"policy\.lora\.options: .*'lora_dropuot'"),
    ({"options": {"r": 3}}, r"policy\.lora\.options: set policy\.lora\.rank instead of r"),
    ({"options": {"init_lora_weights": "bad"}}, "policy.lora: .*init_lora_weights='bad'"),
    ({"options": {"bias": "al"}}, "policy.lora: .*bias: al"),
    ({"targets": ["mlp"]}, r"not supported(.|\n)*exclude_modules: \[\.\.\.\]"),
]


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"loading": part}, text) for part, text in LOADINGS]
    + [({"lora": part}, text) for part, text in ADAPTERS],
    ids=str,
)
def test_check_refuses_what_a_run_refuses(saved, settings, message):
    settings = Settings(model=str(saved()), max_new_tokens=12, **settings)
    run = partial(LanguageModel(settings).place, "cpu")
    for refused in (run, partial(LanguageModel.examine, settings, ROWS)):
        with pytest.raises(UserError, match=message) as raised:
            refused()
        assert ("exclude_modules" in str(raised.value)) == ("exclude_modules" in message)


def test_check_refuses_whole_layers_beside_rounded_adapters(saved):
    lora = {**LORA, "targets": ["q_proj"], "options": {"modules_to_save": ["lm_head"]}}
    settings = Settings(
        model=str(saved("llama")), lora=lora, max_new_tokens=12, loading={"dtype": "bfloat16"}
    )
    with pytest.raises(UserError, match=r"policy\.precision: weights beside the adapters"):
        LanguageModel.examine(settings, ROWS)


def test_arguments_that_loading_knows_pass_check(saved):
    known = {
        "attn_implementation": "eager",
        "dtype": "auto",
        "device_map": "cpu",
        "low_cpu_mem_usage": True,
        "local_files_only": True,
        "use_safetensors": True,
        "variant": None,
        "quantization_config": {"load_in_8bit": True},
        "max_position_embeddings": 64,
    }
    settings = Settings(model=str(saved()), max_new_tokens=12, loading=known)
    assert LanguageModel.examine(settings, ROWS) == []
