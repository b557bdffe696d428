"""A sharded model computes log-probs, trains, samples and saves as an unsharded one."""

import json
import shutil
import warnings
from functools import cache
from pathlib import Path

import peft
import pytest
import torch
import yaml
from tests import rounding
from tests.core.launching import launch
from tests.llm import shard_job
from tests.llm.architectures import ATTENTION, RECURRENT
from tests.llm.conftest import make_tokenizer
from torch.distributed import HashStore
from torch.distributed.device_mesh import init_device_mesh
from transformers import AutoModelForCausalLM, Qwen3_5TextConfig, Qwen3MoeConfig

import groupwise
from groupwise.kit.errors import UserError
from groupwise.weights import KeptWeights
from groupwise_llm.files import sharding
from groupwise_llm.files.adapter import factors
from groupwise_llm.policy import LanguageModel
from groupwise_llm.settings import Settings

pytestmark = pytest.mark.slow

JOB = Path(shard_job.__file__).read_text()
IMPORTS = ["groupwise_llm.policy"]
LORA = {"rank": 4, "alpha": 8}
HEAD = {**LORA, "targets": ["q_proj"], "options": {"modules_to_save": ["lm_head"]}}
MODELS = {
    "full": ("qwen2", {}),  # with tied embeddings
    "untied": ("llama", {"gradient_checkpointing": True}),
    "lora": ("qwen2", {"lora": LORA}),
}
REWARD = """
def ones(completions):
    return [text.count("1") - 0.1 * len(text) for text in completions]
"""
RUNS = {"full": {}, "lora": {"lora": LORA}}


def config_of(folder, model, settings):
    """Three groups and five held-out prompts, which two processes cannot share evenly."""
    (folder / "ones.py").write_text(REWARD)
    rows = [{"prompt": f"{n}+{m}="} for n in range(5) for m in range(3)]
    config = {
        "policy": {"name": "language_model", "model": str(model), "max_new_tokens": 10, **settings},
        "teacher": {"temperature": 0.8},
        "algorithm": {"name": "grpo", "beta": 0.2, "entropy": 0.01},
        "prompts": {"name": "rows", "rows": rows, "held_out": 0.4},
        "rewards": ["ones:ones"],
        "train": {
            "steps": 2,
            "groups_per_step": 3,
            "group_size": 4,
            "epochs": 2,
            "learning_rate": 1e-2,
            "ema": 0.5,
            "microbatch": 100,
        },
        "evaluation": {"prompts": 5},
    }
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(config))
    return str(path)


@pytest.fixture(scope="module")
def shared(saved, tmp_path_factory):
    """The folder with the results of two processes and of the same runs by one process."""
    folder = tmp_path_factory.mktemp("shared")
    models = {
        name: {"model": str(saved(of)), "max_new_tokens": 12, **more}
        for name, (of, more) in MODELS.items()
    }
    runs = []
    for name, settings in RUNS.items():
        home = folder / f"run {name}"
        home.mkdir()
        config = config_of(home, saved(), settings)
        groupwise.train(config, quiet=True, output=str(home / "one"))
        sharded = {"train.shard": True}
        runs.append({"config": config, "output": str(home / "two"), **sharded})
        if name == "full":
            shutil.copytree(home / "one", home / "to two")
            groupwise.train(**resumed(home / "one"), quiet=True)
            runs.append({**resumed(home / "to two"), **sharded})
    start(folder, 2, models=models, runs=runs, shard=True)
    return folder


def start(folder, count, **cases):
    (folder / "cases.json").write_text(json.dumps(cases))
    launch(JOB, folder, count, limit=200, imports=IMPORTS)


@pytest.fixture(scope="module")
def copies(shared):
    """The folder with the results of four processes, of which each two hold all weights."""
    folder = shared / "copies"
    folder.mkdir()
    cases = json.loads((shared / "cases.json").read_text())
    run = {"config": cases["runs"][0]["config"], "output": str(folder / "run"), "train.shard": 2}
    start(folder, 4, models={"full": cases["models"]["full"]}, runs=[run], shard=2)
    return folder


def resumed(folder):
    output = {"config": str(folder / "config.yaml"), "output": str(folder)}
    return {**output, "resume": True, "train.steps": 4}


class Pair:
    """The results of several processes for a model, and the policy of one process."""

    def __init__(self, folder, name, settings, count):
        self.parts = [torch.load(folder / f"{name}-{rank}.pt") for rank in range(count)]
        torch.manual_seed(0)
        self.alone = LanguageModel(Settings(**settings))
        self.alone.place("cpu")
        self.prompts, self.seeds = shard_job.rows(0, 1)
        self.rollouts = self.alone.sample(
            self.prompts, group_size=shard_job.PER_PROMPT, seeds=self.seeds
        )
        self.trained = {k: p for k, p in self.alone.named_parameters() if p.requires_grad}

    def check(self, name, expected, bound):
        """The rows of all processes are `expected` [B, T], but for rounding."""
        rows = [row for part in self.parts for row in part[name]]
        for ours, theirs, mask in zip(rows, expected, self.rollouts.mask, strict=True):
            width = len(ours)
            assert rounding.excess(ours * mask[:width], theirs[:width], [bound]) <= 1, name

    def check_sampled(self):
        (bound,) = rounding.bounds(lambda: self.alone(self.rollouts).log_probs * self.rollouts.mask)
        self.check("sampled", self.rollouts.sampler_log_probs, bound)


@pytest.fixture
def pair(shared):
    """pair(name) -> the `Pair` of the model of that name."""
    cases = json.loads((shared / "cases.json").read_text())["models"]
    return lambda name: Pair(shared, name, cases[name], 2)


def check_trained(pair):
    """Log-probs, gradient, a step of the optimizer and kept weights are those of one process."""
    expected = trained_alone(pair)
    first = pair.parts[0]
    ours = {name: first[name] for name in ("gradient", "weights", "moved")}
    assert first["gradient"].keys() == first["weights"].keys() == pair.trained.keys()
    allowed = rounding.bounds(lambda: trained_alone(pair), result=expected, unit=1e-6)
    assert (
        rounding.excess(ours, {name: expected[name] for name in ours}, allowed[: -len(ROWS)]) <= 1
    )
    for name, bound in zip(ROWS, allowed[-len(ROWS) :], strict=True):
        pair.check(name, expected[name], bound)


ROWS = ("log_probs", "entropy", "after", "reference", "average", "mixed")
"""What processes have of their own rows."""


def trained_alone(pair):
    """What `shard_job.run` computes, by one process, which has its weights of before again."""
    policy, rollouts = pair.alone, pair.rollouts
    policy.train()
    policy.zero_grad()
    before = {name: p.detach().clone() for name, p in pair.trained.items()}
    kept = KeptWeights(policy)
    kept.keep("reference")
    kept.keep("average")
    current = policy(rollouts)
    rows = {"log_probs": current.log_probs, "entropy": current.entropy}
    optimizer = shard_job.optimizer_of(policy)
    shard_job.loss(policy, rollouts).backward()
    results = {"gradient": {name: p.grad.clone() for name, p in pair.trained.items()}}
    optimizer.step()
    results["weights"] = {name: p.detach().clone() for name, p in pair.trained.items()}
    kept.blend("average", 0.75)
    with torch.no_grad():
        rows["after"] = policy(rollouts).log_probs
        for name in ("reference", "average"):
            with kept.using(name):
                rows[name] = policy(rollouts).log_probs
        results["moved"] = kept.distance("reference")
        kept.blend("reference", 0.75)
        with kept.using("reference"):
            rows["mixed"] = policy(rollouts).log_probs
        for name, parameter in pair.trained.items():
            parameter.copy_(before[name])
    return results | {name: rows[name] * rollouts.mask for name in ROWS}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.rounding
def test_two_processes_have_the_log_probs_and_updates_of_one(pair, name):
    pair = pair(name)
    size = sum(p.numel() * p.element_size() for p in pair.alone.parameters())
    for part in pair.parts:
        assert part["local bytes"] == size / 2
        assert part["unsharded at once"] == 1  # while the weights were loaded
        assert part["notes"] == pair.alone.notes
    check_trained(pair)
    # With LoRA the reference is the model without adapters, so nothing is copied.
    assert bool(pair.parts[0]["kept"]) == (name != "lora")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.rounding
def test_two_processes_draw_the_completions_of_one(pair, name):
    pair = pair(name)
    parts = pair.parts
    tokens = [row for part in parts for row in part["tokens"]]
    assert tokens == pair.rollouts.facts["completion_ids"]
    pair.check_sampled()
    greedy = pair.alone.sample(
        pair.prompts, group_size=1, seeds=pair.seeds[::2], purpose="greedy"
    ).completions
    assert [text for part in parts for text in part["greedy"]] == greedy
    for rank, part in enumerate(parts):
        own, _ = shard_job.rows(rank, len(parts))
        assert part["turns"] == shard_job.turns(pair.alone, own, 1 + rank)
    # One process decodes 12 tokens, the other 1: neither waits for the other.
    assert [part["passes"] for part in parts] == [12, 1]


@pytest.mark.parametrize("name", MODELS)
def test_the_first_process_saves_the_full_model(shared, pair, name):
    pair = pair(name)
    weights = pair.parts[0]["weights"]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        if name == "lora":
            base = AutoModelForCausalLM.from_pretrained(pair.alone.config.model)
            loaded = peft.PeftModel.from_pretrained(base, shared / name)
        else:
            loaded = AutoModelForCausalLM.from_pretrained(shared / name)
    saved = {f"causal.model.{key}": weight for key, weight in loaded.named_parameters()}
    assert weights.keys() <= saved.keys()
    assert all(torch.equal(saved[key], weight) for key, weight in weights.items())
    assert not (shared / f"{name} of another").exists()


@pytest.mark.rounding
def test_three_processes_with_uneven_shards_and_fused_experts(tmp_path):
    """32 and 64 rows among three processes; four experts, which files hold one by one."""
    torch.manual_seed(7)
    config = Qwen3MoeConfig(**ATTENTION["qwen3_moe"], tie_word_embeddings=True)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "experts")
    make_tokenizer().save_pretrained(tmp_path / "experts")
    settings = {"model": str(tmp_path / "experts"), "max_new_tokens": 12}
    start(tmp_path, 3, models={"odd": settings}, runs=[], shard=True)
    pair = Pair(tmp_path, "odd", settings, 3)
    check_trained(pair)
    assert [part["passes"] for part in pair.parts] == [12, 1, 1]


@pytest.mark.rounding
def test_two_copies_of_two_shards_are_as_one_process(copies):
    settings = json.loads((copies / "cases.json").read_text())["models"]["full"]
    pair = Pair(copies, "full", settings, 4)
    size = sum(p.numel() * p.element_size() for p in pair.alone.parameters())
    for part in pair.parts:
        assert part["local bytes"] == size / 2
        assert part["unsharded at once"] == 1
    check_trained(pair)
    tokens = [row for part in pair.parts for row in part["tokens"]]
    assert tokens == pair.rollouts.facts["completion_ids"]
    pair.check_sampled()
    assert [part["passes"] for part in pair.parts] == [12, 1, 1, 1]


# ---- whole runs


NAMES = ("reward", "loss", "kl", "entropy", "grad_norm", "length", "trained_decisions")


def steps(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: line[name] for name in NAMES} for line in lines if "loss" in line]


def end(folder):
    """The reward in the end, and logits by the saved weights, which are the moving average."""
    after = json.loads((folder / "result.json").read_text())["after"]
    with torch.no_grad():
        model = AutoModelForCausalLM.from_pretrained(folder / "model")
        return [after["reward"], model(torch.arange(20).unsqueeze(0)).logits]


@pytest.fixture(scope="module")
def allowed(shared, tmp_path_factory):
    """allowed(name) -> what rounding explains in the steps and the end of a run, in this order;
    of LoRA in the two steps that are compared."""

    @cache
    def bounds(name):
        home = shared / f"run {name}"

        def outcome(folder):
            return [*steps(folder), *(end(folder) if name == "full" else [])]

        def run():
            folder = tmp_path_factory.mktemp("trial") / "run"
            groupwise.train(str(home / "run.yaml"), quiet=True, output=str(folder))
            if name == "full":
                groupwise.train(**resumed(folder), quiet=True)
            return outcome(folder)

        # The terms of losses and KL, of about 1, may cancel.
        return rounding.bounds(run, result=outcome(home / "one"), unit=1.0, digits=6)

    return bounds


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.rounding
def test_a_run_on_two_processes_has_the_metrics_of_one(shared, allowed, name):
    home = shared / f"run {name}"
    alone, two = steps(home / "one"), steps(home / "two")
    assert (len(alone), len(two)) == (4 if name == "full" else 2, 2)
    assert alone[1]["kl"] > 0
    assert rounding.excess(alone[:2], two, allowed(name)[: 2 * len(NAMES)]) <= 1


@pytest.mark.rounding
def test_a_run_of_copies_has_the_metrics_of_one_process_and_resumes_with_one(
    shared, copies, allowed
):
    alone = steps(shared / "run full" / "one")
    groupwise.train(**resumed(copies / "run"), **{"train.shard": False}, quiet=True)
    assert rounding.excess(alone, steps(copies / "run"), allowed("full")[:-2]) <= 1


@pytest.mark.rounding
def test_a_run_resumes_with_another_number_of_processes(shared, allowed):
    home = shared / "run full"
    groupwise.train(**resumed(home / "two"), **{"train.shard": False}, quiet=True)
    one, two, to_two = ([*steps(home / of), *end(home / of)] for of in ("one", "two", "to two"))
    assert rounding.excess(one, two, allowed("full")) <= 1
    assert rounding.excess(one, to_two, allowed("full")) <= 1


# ---- a mesh of one process


@pytest.fixture
def mesh():
    torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


@pytest.fixture
def sharded_policy(saved, mesh):
    """sharded_policy(architecture, **settings) -> a policy sharded on a mesh of one process."""

    def policy(architecture="qwen2", **settings):
        settings = {"model": str(saved(architecture)), "max_new_tokens": 12, **settings}
        torch.manual_seed(0)
        policy = LanguageModel(Settings(**settings))
        policy.shard(mesh)
        policy.place("cpu")
        return policy

    return policy


@pytest.mark.rounding
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"lora": LORA},
        {"share_prompt": False},
        {"lora": HEAD, "architecture": "llama"},
        {"lora": LORA, "architecture": "mixtral"},
    ],
    ids=str,
)
def test_a_sharded_policy_of_one_process_has_the_gradients_of_an_unsharded_one(
    make, sharded_policy, rows, settings
):
    plain, policy = make(**settings), sharded_policy(**settings)
    assert policy.notes == plain.notes
    rollouts = policy.sample(rows, group_size=2, seeds=range(6))
    for ours, theirs in zip(policy.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours.full_tensor(), theirs)
    rounding.same(lambda: gradients(plain, rollouts), gradients(policy, rollouts))


def gradients(policy, rollouts):
    policy.zero_grad()
    policy(rollouts).log_probs.sum().backward()
    own = [p.grad for p in policy.parameters() if p.grad is not None]
    return torch.cat([getattr(g, "full_tensor", lambda g=g: g)().flatten() for g in own])


def test_adapters_of_a_sharded_policy_are_sent_whole(make, sharded_policy):
    plain, policy = (dict(factors(made(lora=LORA).model)) for made in (make, sharded_policy))
    assert plain.keys() == policy.keys()
    assert all(torch.equal(plain[name], tensor) for name, tensor in policy.items())


@pytest.mark.rounding
def test_a_failed_trial_of_the_cache_leaves_no_state_behind(mesh, make_of, tmp_path, rows):
    """The backward pass over shared prompts fails in these recurrent layers."""
    plain = make_of(Qwen3_5TextConfig(**RECURRENT["qwen3_5_text"]))
    policy = LanguageModel(Settings(model=str(tmp_path / "model"), max_new_tokens=12))
    policy.shard(mesh)
    policy.place("cpu")
    (note,) = policy.notes
    assert "prompts are not shared in training: a pass with this model's cache fails" in note
    rollouts = plain.sample(rows, group_size=1, seeds=range(3))
    rounding.same(lambda: gradients(plain, rollouts), gradients(policy, rollouts))


@pytest.mark.parametrize("lora", [None, LORA])
def test_bf16_computes_in_bf16_and_trains_float32(make, sharded_policy, rows, lora):
    settings = {"precision": "bf16", "lora": lora}
    settings["loading"] = {"dtype": "bfloat16"} if lora else {}
    plain, policy = make(**settings), sharded_policy(**settings)
    assert not policy.exact
    dtypes = set()
    layer = policy.causal.causal.model.layers[0].mlp
    layer.register_forward_pre_hook(lambda _, inputs: dtypes.add(inputs[0].dtype))
    rollouts = policy.sample(rows, group_size=2, seeds=range(6))
    current = policy(rollouts)
    assert dtypes == {torch.bfloat16}
    assert (current.log_probs - plain(rollouts).log_probs).abs().max() < 0.2
    torch.testing.assert_close(
        current.log_probs * rollouts.mask, rollouts.sampler_log_probs, rtol=0, atol=0.1
    )
    current.log_probs.sum().backward()
    trained = [p for p in policy.parameters() if p.requires_grad]
    assert {(p.dtype, p.grad.dtype) for p in trained} == {(torch.float32, torch.float32)}


@pytest.mark.parametrize("lora", [None, LORA])
def test_no_gathered_copies_remain_after_a_pass(sharded_policy, rows, lora):
    """Merged adapters and the float32 copy of the head are made from gathered weights."""
    policy = sharded_policy(precision="bf16", head_precision="float32", lora=lora)
    rollouts = policy.sample(rows, group_size=2, seeds=range(6))
    assert not [*policy.causal.copies.tensors()]
    policy(rollouts).log_probs.sum().backward()
    assert not [*policy.causal.copies.tensors()]


def test_weights_missing_in_the_files_are_refused_as_in_one_process(make_of, mesh, tmp_path):
    from safetensors.torch import load_file, save_file
    from tests.llm.conftest import CONFIGS

    make_of(CONFIGS["llama"]())
    file = tmp_path / "model" / "model.safetensors"
    weights = load_file(file)
    del weights["lm_head.weight"]
    save_file(weights, file, metadata={"format": "pt"})
    for shared in (False, True):
        policy = LanguageModel(Settings(model=str(tmp_path / "model"), max_new_tokens=4))
        if shared:
            policy.shard(mesh)
        with pytest.raises(UserError, match=r"lacks 1 weights of .*, 'lm_head\.weight'"):
            policy.place("cpu")


def test_weights_that_do_not_fit_when_gathered_point_to_vllm(sharded_policy, rows, monkeypatch):
    policy = sharded_policy()

    def full(self):
        raise torch.OutOfMemoryError("Tried to allocate 20.00 GiB")

    monkeypatch.setattr(type(policy.causal), "unshard", full)
    with pytest.raises(UserError, match=r"gathers the weights.*20\.00 GiB.*name: vllm"):
        policy.sample(rows, group_size=1, seeds=range(3))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loading": {"gguf_file": "a.gguf"}}, "gguf_file: GGUF files are unpacked whole"),
        ({"loading": {"device_map": "auto"}}, "device_map: train.shard decides where weights lie"),
        ({"loading": {"use_safetensors": False}}, "use_safetensors: pickled weights"),
        (
            {"lora": {**LORA, "options": {"use_dora": True}}},
            r"from the model's own weights",
        ),
        (
            {"lora": {**LORA, "options": {"init_lora_weights": "pissa"}}},
            r"from the model's own weights",
        ),
    ],
)
def test_options_that_prevent_sharded_loading_are_refused(sharded_policy, settings, message):
    with pytest.raises(UserError, match=rf"{message}(.|\n)*leave out train\.shard"):
        sharded_policy(**settings)


def test_pickled_and_quantised_weights_are_refused(sharded_policy, tmp_path, saved):
    folder = tmp_path / "model"
    shutil.copytree(saved(), folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"no weights as safetensors"):
        sharded_policy(model=str(folder))
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="quantised weights cannot be sharded"):
        sharded_policy(model=str(folder))
    with pytest.raises(UserError, match=r"policy\.quantize: .* leave out train\.shard"):
        sharded_policy(model=str(saved()), quantize="4bit", lora={"rank": 2})


@pytest.mark.parametrize(
    ("layers", "message"),
    [([], "has no list of layers"), (["same", "same"], "has layers that share weights")],
)
def test_a_model_without_separate_layers_is_refused(make, mesh, layers, message):
    causal = make().causal
    layer = torch.nn.Linear(2, 2)
    causal.model = torch.nn.Sequential(torch.nn.ModuleList(layer for _ in layers))
    with pytest.raises(UserError, match=rf"tiny {message}.*leave out train\.shard"):
        sharding.Share(mesh).shard_model(causal, precision="float32", name="tiny")
