"""Loading: which weights are trained, their dtypes, dropout off, saving, and refused settings."""

import json
import shutil
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path
from runpy import run_path

import pytest
import torch
import transformers
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, Gemma3Config

from groupwise.kit.errors import UserError
from groupwise_llm.files.folder import config_of
from groupwise_llm.policy import LanguageModel
from groupwise_llm.settings import Settings

TABLES = run_path(str(Path(__file__).with_name("architectures.py")))
ROWS = [{"prompt": "12+34="}, {"prompt": "Hi"}]
LORA = {"rank": 4}


# ---- precision


def test_trained_weights_are_float32(make, rows):
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


def test_the_base_under_adapters_keeps_its_dtype(make, rows):
    policy = make(loading={"dtype": "bfloat16"}, lora=LORA)
    dtypes = {p.requires_grad: p.dtype for p in policy.parameters()}
    assert dtypes == {True: torch.float32, False: torch.bfloat16}
    rollouts = policy.sample(rows, group_size=2, seeds=range(6))
    gap = (policy(rollouts).log_probs - rollouts.sampler_log_probs)[rollouts.mask].abs()
    assert gap.max() < 0.1


def test_full_layers_beside_adapters_need_precision_bf16(make):
    settings = {"loading": {"dtype": "bfloat16"}, "model": {"tie_word_embeddings": False}}
    lora = {**LORA, "targets": ["q_proj"], "options": {"modules_to_save": ["lm_head"]}}
    with pytest.raises(UserError, match="set precision: bf16, or load it in float32"):
        make(**settings, lora=lora)
    policy = make(**settings, lora=lora, precision="bf16")
    rollouts = policy.sample(ROWS, group_size=2, seeds=range(4))
    policy(rollouts).log_probs.sum().backward()
    assert {p.dtype for p in policy.parameters() if p.requires_grad} == {torch.float32}


@pytest.mark.parametrize("lora", [None, LORA])
def test_adapters_on_a_float16_base_scale_the_loss(make, lora):
    assert make(loading={"dtype": "float16"}, lora=lora).scale_loss == (lora is not None)
    assert not make(lora=lora).scale_loss


# ---- heads


@pytest.mark.parametrize(
    "options", [{"targets": ["lm_head"]}, {"options": {"modules_to_save": ["lm_head"]}}], ids=str
)
@pytest.mark.slow(after=1)
def test_adapters_of_the_head_take_effect(make, transformers_log_probs, options, rounding):
    policy = make(model={"tie_word_embeddings": False}, lora={**LORA, **options})
    assert any("own logits" in note for note in policy.notes)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if parameter.requires_grad and "lm_head" in name:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    rollouts = policy.sample(ROWS, group_size=2, seeds=range(4))
    rounding.same(lambda: policy(rollouts).log_probs, transformers_log_probs(policy, rollouts))
    policy(rollouts).log_probs.sum().backward()
    head_parameters = [
        p for n, p in policy.named_parameters() if p.requires_grad and "lm_head" in n
    ]
    assert head_parameters
    assert all(p.grad.any() for p in head_parameters)


def hooked(head):
    head.register_forward_hook(lambda _, __, logits: logits * 0.5)


def parametrised(head):
    class Half(torch.nn.Module):
        def forward(self, weight):
            return weight * 0.5

    torch.nn.utils.parametrize.register_parametrization(head, "weight", Half())


@pytest.mark.parametrize("change", [hooked, parametrised])
@pytest.mark.slow(after=1)
def test_hooks_and_parametrizations_of_the_head_take_effect(
    make, transformers_log_probs, change, monkeypatch, rounding
):
    load = transformers.AutoModelForCausalLM.from_pretrained

    def changed(*args, **options):
        model, report = load(*args, **options)
        change(model.lm_head)
        return model, report

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", changed)
    policy = make("llama")
    rollouts = policy.sample(ROWS, group_size=2, seeds=range(4))
    assert not policy.ability.numerics.plain_head
    rounding.same(lambda: transformers_log_probs(policy, rollouts), rollouts.sampler_log_probs)


@pytest.mark.parametrize("cap", [10.0, None])
@pytest.mark.slow(after=1)
def test_softcapping_is_detected_with_bf16_weights(make, cap):
    # The difference of 0.1 nats is below the rounding errors of bf16.
    model = {"final_logit_softcapping": cap}
    policy = make("gemma2", model=model, lora=LORA, loading={"dtype": "bfloat16"})
    assert any("own logits" in note for note in policy.notes) == (cap is not None)


def test_adapters_without_effect_are_refused(make_of):
    config = CONFIG_MAPPING["jamba"](**TABLES["RECURRENT"]["jamba"])
    with pytest.raises(UserError, match=r"exclude_modules: \[dt_proj\]"):
        make_of(config, lora=LORA).sample(ROWS, group_size=1, seeds=[1, 2])
    policy = make_of(config, lora={**LORA, "options": {"exclude_modules": ["dt_proj"]}})
    rollouts = policy.sample(ROWS, group_size=1, seeds=[1, 2])
    policy(rollouts).log_probs.sum().backward()
    assert all(p.grad is not None for p in policy.parameters() if p.requires_grad)


@pytest.mark.slow
def test_modules_that_peft_refuses_can_be_left_out(make_of, rounding):
    config = CONFIG_MAPPING["mamba2"](**TABLES["RECURRENT"]["mamba2"])
    with pytest.raises(UserError, match="exclude_modules"):
        make_of(config, lora=LORA)
    policy = make_of(config, lora={**LORA, "options": {"exclude_modules": ["out_proj"]}})
    rollouts = policy.sample(ROWS, group_size=1, seeds=[1, 2])
    rounding.same(lambda: policy(rollouts).log_probs, rollouts.sampler_log_probs)


# ---- several modalities


@pytest.fixture
def multimodal(make_of):
    """multimodal(**settings) -> a policy with a vision tower, which text prompts do not use."""
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
@pytest.mark.slow(after=1)
def test_a_vision_tower_is_not_trained(multimodal, settings, rounding):
    policy = multimodal(**settings).train()
    assert any("model.vision_tower, model.multi_modal" in note for note in policy.notes)
    rollouts = policy.sample(ROWS, group_size=2, seeds=range(4))
    rounding.same(lambda: policy(rollouts).log_probs, rollouts.sampler_log_probs)
    policy(rollouts).log_probs.sum().backward()
    trained = [n for n, p in policy.named_parameters() if p.requires_grad]
    assert trained
    assert all(p.grad is not None for p in policy.parameters() if p.requires_grad)
    assert not any("vision" in name for name in trained)


def test_experts_that_no_token_was_routed_to_are_trained(make_of):
    config = CONFIG_MAPPING["mixtral"](**TABLES["ATTENTION"]["mixtral"])
    assert all(p.requires_grad for p in make_of(config).parameters())


# ---- dropout


@pytest.mark.parametrize(
    ("name", "dropout"),
    [
        ("opt", {"dropout": 0.5, "attention_dropout": 0.5, "layerdrop": 0.5}),
        ("falcon", {"hidden_dropout": 0.5, "attention_dropout": 0.5}),
        ("mixtral", {"attention_dropout": 0.5, "router_jitter_noise": 0.5}),
        ("gpt2", {"resid_pdrop": 0.5, "attn_pdrop": 0.5, "embd_pdrop": 0.5}),
    ],
)
def test_dropout_stays_off_under_gradient_checkpointing(make_of, name, dropout, tmp_path, rounding):
    config = CONFIG_MAPPING[name](**{**TABLES["ATTENTION"][name], **dropout})
    policy = make_of(config, gradient_checkpointing=True).train()
    rollouts = policy.sample(ROWS, group_size=2, seeds=range(4))
    rounding.same(lambda: policy(rollouts).log_probs, rollouts.sampler_log_probs)
    policy.save_pretrained(tmp_path / "saved")
    written = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert {key: written[key] for key in dropout} == dropout


def test_dropout_of_adapters_is_refused_since_it_stays_off(make):
    with pytest.raises(ValidationError, match="lora_dropout is never applied: with dropout"):
        make(lora={**LORA, "options": {"lora_dropout": 0.05}})
    make(lora={**LORA, "options": {"lora_dropout": 0.0}})


# ---- saving


def run_elsewhere(code, folder):
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not process.returncode, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


@pytest.mark.parametrize("lora", [None, LORA])
@pytest.mark.slow
def test_the_code_of_the_card_loads_the_model_from_any_folder(
    saved, lora, tmp_path, monkeypatch, rounding
):
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
import transformers
logits = model.eval()(input_ids=torch.arange(20).unsqueeze(0)).logits[0, -1].tolist()
"""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    if lora:
        loaded = run_elsewhere(code + "import json; print(json.dumps(logits))", elsewhere)
    else:
        monkeypatch.chdir(elsewhere)
        names = {}
        exec(code, names)
        loaded = names["logits"]
    ids = torch.arange(20).unsqueeze(0)
    rounding.same(lambda: policy.model(input_ids=ids).logits[0, -1], torch.tensor(loaded))


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


def test_the_card_names_the_loading_options_but_no_token(tmp_path):
    from groupwise_llm.card import card_of

    options = {"gguf_file": "model.gguf", "token": "secret", "subfolder": "q8"}
    usage = card_of(Settings(model="org/name", lora=LORA, loading=options))["usage"]
    assert "from_pretrained('org/name', gguf_file='model.gguf', subfolder='q8')" in usage
    assert "secret" not in usage


def test_training_quantised_weights_is_refused(make, monkeypatch):
    load = AutoModelForCausalLM.from_pretrained

    def quantised(*args, **options):
        model, report = load(*args, **options)
        model.is_quantized = True
        return model, report

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", quantised)
    with pytest.raises(UserError, match="train adapters beside them"):
        make()


def cut(file):
    file.write_bytes(file.read_bytes()[:-5])


def without_the_head(file):
    weights = load_file(file)
    del weights["lm_head.weight"]
    save_file(weights, file, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (cut, r"model\.safetensors is cut off: it has [\d,]+ of [\d,]+ bytes; copy"),
        (Path.unlink, r"it has no weights: there is no model\.safetensors in"),
        (without_the_head, r"lacks 1 weights of Llama\w+, 'lm_head\.weight' for example"),
    ],
)
def test_weights_that_are_not_whole(saved, tmp_path, change, message):
    folder = shutil.copytree(saved("llama", tie_word_embeddings=False), tmp_path / "model")
    change(folder / "model.safetensors")
    settings = Settings(model=str(folder), max_new_tokens=4)
    with pytest.raises(UserError, match=message) as raised:
        LanguageModel(settings).place("cpu")
    assert "pickled" not in str(raised.value)
    if change is not without_the_head:  # `check` reads no weights
        with pytest.raises(UserError, match=message):
            LanguageModel.examine(settings, ROWS)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["adapter_config.json", "adapter_model.safetensors", "tokenizer.json"], "merge them into"),
        (["config.json", "adapter_config.json", "model.safetensors"], "merge them into"),
        (["small.Q4.gguf"], r"loading: \{gguf_file: small\.Q4\.gguf\}"),
        (["model.safetensors"], r"it has no config\.json.*; it holds model\.safetensors"),
        ([], r"it has no config\.json, .*; it is empty"),
    ],
)
def test_folders_that_are_not_a_model(tmp_path, files, message):
    for name in files:
        (tmp_path / name).write_text("{}", encoding="utf-8")
    settings = Settings(model=str(tmp_path), max_new_tokens=4)
    run = partial(LanguageModel(settings).place, "cpu")
    for call in (run, partial(LanguageModel.examine, settings, ROWS)):
        with pytest.raises(UserError, match=message):
            call()


def test_a_file_in_the_place_of_a_folder(tmp_path):
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"")
    with pytest.raises(UserError, match=r"it is a file, and a model is a folder with config\.json"):
        LanguageModel.examine(Settings(model=str(file), max_new_tokens=4), ROWS)


def test_pickled_weights_are_read_only_where_the_configuration_says_so(saved, tmp_path):
    folder = shutil.copytree(saved(), tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    settings = {"model": str(folder), "max_new_tokens": 4}
    with pytest.raises(UserError, match=r"no weights as safetensors.*use_safetensors: false"):
        LanguageModel(Settings(**settings)).place("cpu")
    allowed = LanguageModel(Settings(**settings, loading={"use_safetensors": False}))
    allowed.place("cpu")
    (loaded,) = (p for name, p in allowed.named_parameters() if name.endswith("model.norm.weight"))
    assert torch.equal(loaded, weights["model.norm.weight"])


# ---- invalid settings: refused before weights are loaded

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
    ({"targets": "(q_proj"}, r"policy\.lora: missing \)"),
]
UNUSED_NAMES = [
    ({"targets": ["q_proj", "qq_proj"]}, r"lora\.targets: 'qq_proj' .*did you mean 'q_proj'"),
    ({"targets": ["v_proj", "proj"]}, r"lora\.targets: 'proj' applies to no layer"),
    ({"options": {"rank_pattern": {"q_proj": 2, "qq": 3}}}, "rank_pattern: 'qq' applies to no"),
    ({"options": {"alpha_pattern": {r"layers\.9\..*": 3}}}, "alpha_pattern: 'layers.* no layer"),
    (
        {"targets": ["q_proj"], "options": {"rank_pattern": {"v_proj": 2}}},
        "rank_pattern: 'v_proj' applies to no layer",
    ),
    ({"options": {"exclude_modules": ["qq_proj"]}}, "exclude_modules: 'qq_proj' applies to no"),
    ({"options": {"exclude_modules": ["self_attn"]}}, "exclude_modules: 'self_attn' applies to"),
    ({"options": {"exclude_modules": "q_proj"}}, "exclude_modules: 'q_proj' applies to no layer"),
    ({"options": {"target_parameters": ["nowhere"]}}, "target_parameters: 'nowhere' applies to"),
    (
        {"targets": ["q_proj"], "options": {"layers_to_transform": [0, 9]}},
        "layers_to_transform: 9 applies to no layer",
    ),
]
"""Names beside others that apply: peft takes them, and trains without them."""


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"loading": part}, text) for part, text in LOADINGS]
    + [({"lora": part}, text) for part, text in [*ADAPTERS, *UNUSED_NAMES]],
    ids=str,
)
def test_check_refuses_the_settings_that_a_run_refuses(saved, settings, message):
    settings = Settings(model=str(saved()), max_new_tokens=12, **settings)
    run = partial(LanguageModel(settings).place, "cpu")
    for call in (run, partial(LanguageModel.examine, settings, ROWS)):
        with pytest.raises(UserError, match=message) as raised:
            call()
        assert ("exclude_modules" in str(raised.value)) == ("exclude_modules" in message)


def test_check_refuses_full_layers_beside_adapters_on_a_bf16_base(saved):
    lora = {**LORA, "targets": ["q_proj"], "options": {"modules_to_save": ["lm_head"]}}
    settings = Settings(
        model=str(saved("llama")), lora=lora, max_new_tokens=12, loading={"dtype": "bfloat16"}
    )
    with pytest.raises(UserError, match=r"policy\.precision: weights beside the adapters"):
        LanguageModel.examine(settings, ROWS)


def test_check_accepts_known_loading_arguments(saved):
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


def test_a_misspelt_folder_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    with pytest.raises(UserError, match="no folder has this name, did you mean 'model'"):
        config_of(Settings(model="modle", max_new_tokens=4))
    with pytest.raises(UserError) as raised:
        config_of(Settings(model="someone/something", max_new_tokens=4))
    assert "no folder" not in str(raised.value)
