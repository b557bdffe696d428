"""The policy: laws 2, 3 and 4 for denoising steps, guidance, the reference, and kept weights."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from groupwise.kit.errors import UserError
from groupwise.weights import KeptWeights
from groupwise_flow import sde
from groupwise_flow.algorithms.flow_grpo import FlowGRPO
from groupwise_flow.passes import latents

WINDOWS = {
    "all": {},
    "fixed": {"size": 2, "start": 1},
    "random": {"size": 2},
    "sliding": {"size": 3, "every": 1},
}
SEEDS = [11, 12, 13, 14, 15, 16]


def rows_of(count):
    return [{"prompt": f"{letter} cat"} for letter in "abcdefgh"[:count]]


def sample(policy, rows=None, *, size=2, seeds=SEEDS, **more):
    rows = rows or rows_of(len(seeds) // size)
    return policy.sample(rows, group_size=size, seeds=seeds[: size * len(rows)], **more)


def log_probs(policy, rollouts):
    with torch.no_grad():
        return policy(rollouts).log_probs


def without_unconditional(rollouts):
    """The same rollouts without the sampler's unconditional velocities."""
    trajectory = {k: v for k, v in rollouts.trajectory.items() if k != "unconditional"}
    return replace(rollouts, trajectory=trajectory)


# ---- law 2: the ratio is one, however the batch is split


@pytest.mark.parametrize(
    ("kind", "window"),
    [*(("flow", window) for window in WINDOWS), ("cps", "random"), ("dance", "sliding")],
)
@pytest.mark.slow(after=1)
def test_forward_repeats_the_samplers_log_probs(lab, kind, window, rounding):
    for architecture, guidance, batch in [
        ("sd3", 1.0, 64),
        ("sd3", 4.0, 4),
        ("flux", 1.0, 4),
        ("flux", 4, 64),
    ]:
        policy = lab.policy(
            architecture,
            sde=kind,
            guidance=guidance,
            batch=batch,
            window={"kind": window, **WINDOWS[window]},
        )
        policy.begin(1)
        rollouts = sample(policy)
        steps = rollouts.mask.shape[1]
        assert rollouts.sampler_log_probs.shape == (6, steps) == (6, policy.max_decisions)
        assert not rollouts.sampler_log_probs.requires_grad
        microbatches = [
            *policy.microbatches(rollouts, 1000, cut_decisions=True),
            *policy.microbatches(rollouts, 7, cut_decisions=False),
            (torch.arange(6), slice(None)),
            (torch.tensor([4, 0, 3]), slice(1, steps)),
            (torch.tensor([5]), slice(steps - 1, steps)),
        ]
        allowed = rounding.bounds(partial(log_probs, policy, rollouts))
        for pieces, recompute in [(microbatches, False), (microbatches[-3:], True)]:
            for rows, decisions in pieces:
                piece = rollouts.select(rows)
                current = policy(without_unconditional(piece) if recompute else piece, decisions)
                expected = rollouts.sampler_log_probs[rows][:, decisions]
                assert current.log_probs.shape == expected.shape
                assert current.log_probs.requires_grad
                assert rounding.excess(current.log_probs, expected, allowed) <= 1


@pytest.mark.parametrize("guidance", [1.0, 4.5])
def test_in_bf16_the_error_of_the_ratio_is_a_tenth_of_the_smallest_clip_range(lab, guidance):
    """With the recipes' settings: LoRA, bf16, batches of one size and a clip range of 1e-5."""
    policy = lab.policy(precision="bf16", lora={"rank": 2}, guidance=guidance, batch=4)
    lab.nudge(policy)
    rollouts = policy.sample(lab.rows, group_size=4, seeds=range(8))
    for rows, decisions in policy.microbatches(rollouts, 16384, cut_decisions=True):
        assert len(rows) == 4
        current = policy(rollouts.select(rows), decisions).log_probs
        gap = (current - rollouts.sampler_log_probs[rows][:, decisions]).abs().max()
        assert gap < 0.1 * 1e-5


def test_extra_holds_mean_std_and_interval_of_the_sampled_steps(lab, rounding):
    policy = lab.policy(guidance=4.0, window={"kind": "fixed", "size": 2, "start": 1})
    rollouts = sample(policy)
    path = torch.stack(list(rollouts.trajectory["path"]))

    def noise():
        extra = policy(rollouts).extra
        return (path[:, 1:] - extra["mean"].detach()) / extra["std"].view(6, 2, 1, 1, 1)

    drawn = []
    for seed in SEEDS:
        generator = torch.Generator().manual_seed(seed)
        torch.randn(policy.adapter.latent_shape, generator=generator)
        drawn.append(torch.randn((2, *policy.adapter.latent_shape), generator=generator))
    rounding.same(noise, torch.stack(drawn))
    sigmas, extra = policy.sigmas, policy(rollouts).extra
    assert torch.equal(extra["interval"], (sigmas[1:3] - sigmas[2:4]).expand(6, 2))
    part = {name: value[3:4, 1:2] for name, value in extra.items()}
    rounding.same(lambda: policy(rollouts.select([3]), slice(1, 2)).extra, part)


def test_forward_returns_only_the_extras_that_are_needed(lab):
    policy = lab.policy(guidance=2.0)
    rollouts = sample(policy)
    complete = policy(rollouts)
    current = policy(rollouts, outputs=frozenset({"log_probs", "mean", "std"}))
    assert current.extra.keys() == {"mean", "std"}
    more = {"interval", "relative_std", "relative_slope"}
    assert complete.extra.keys() == {"mean", "std", *more}
    assert torch.equal(current.log_probs, complete.log_probs)
    for name, value in current.extra.items():
        assert torch.equal(value, complete.extra[name])


def test_other_weights_or_other_prompts_change_the_ratio(lab):
    policy = lab.policy(guidance=4.0)
    rollouts = sample(policy)
    swapped = rollouts.select([2, 3, 4, 5, 0, 1]).prompts
    other = replace(rollouts, prompts=swapped)
    assert (log_probs(policy, other) - rollouts.sampler_log_probs).abs().max() > 1e-3
    lab.nudge(policy)
    assert (log_probs(policy, rollouts) - rollouts.sampler_log_probs).abs().max() > 1e-3


@pytest.mark.parametrize("lora", [None, {"rank": 2, "options": {"lora_dropout": 0.0}}])
def test_dropout_stays_off_in_training(lab, lora):
    policy = lab.policy(lora=lora)
    for mode in (policy, policy.train()):
        assert not any(module.training for module in mode.modules())


@pytest.mark.parametrize("guidance", [1.0, 4.0])
def test_sampling_the_next_step_ahead_does_not_change_the_log_probs_of_this_one(
    lab, guidance, rounding
):
    """With a sliding window the next step samples other decisions before this one is trained."""
    settings = {"guidance": guidance, "window": {"kind": "sliding", "size": 2, "every": 1}}
    if guidance > 1:  # so that unconditional velocities are kept
        settings["guidance_gradient"] = "conditional"
    policy = lab.policy(**settings)
    policy.begin(0)
    rollouts = sample(policy)
    before = log_probs(policy, rollouts)
    policy.begin(1)
    ahead = sample(policy)
    assert not torch.equal(ahead.tensor("first"), rollouts.tensor("first"))
    assert torch.equal(log_probs(policy, rollouts), before)
    rounding.same(lambda: log_probs(policy, rollouts), rollouts.sampler_log_probs)
    lab.nudge(policy)
    for drawn in (rollouts, ahead, ahead.concat([rollouts, ahead])):
        assert torch.equal(
            log_probs(policy, drawn), log_probs(policy, without_unconditional(drawn))
        )
    assert (log_probs(policy, ahead) - ahead.sampler_log_probs).abs().max() > 1e-3


@pytest.mark.parametrize("precision", ["float32", "bf16", "fp16"])
def test_only_in_float32_is_it_an_exact_sampler(lab, precision):
    assert lab.policy(precision=precision).exact == (precision == "float32")


# ---- law 4: a sample depends only on its seed


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    ("architecture", "settings"),
    [("sd3", {"guidance": 4.0}), ("flux", {"window": {"kind": "random", "size": 2}})],
)
def test_a_sample_does_not_depend_on_its_batch(lab, architecture, settings, rounding):
    policy = lab.policy(architecture, **settings)
    together = sample(policy)

    def results(rollouts):
        path = torch.stack(list(rollouts.trajectory["path"]))
        return [rollouts.sampler_log_probs, path, lab.images_of(rollouts)]

    allowed = rounding.bounds(lambda: results(sample(policy)))

    def assert_equal(rollouts, rows):
        expected = results(together.select(rows))
        assert rounding.excess(results(rollouts), expected, allowed) <= 1

    prompts = rows_of(3)
    assert_equal(sample(policy, prompts[1:2], seeds=SEEDS[2:4]), [2, 3])
    assert_equal(sample(policy, prompts[::-1], seeds=[15, 16, 13, 14, 11, 12]), [4, 5, 2, 3, 0, 1])
    for batch in (1, 4):
        assert_equal(sample(lab.policy(architecture, batch=batch, **settings)), list(range(6)))
    if "window" not in settings:
        assert_equal(sample(policy, [prompts[0]] * 2, size=1, seeds=[11, 12]), [0, 1])
    images = lab.images_of(together).flatten(1)
    assert torch.pdist(images).min() > 0.05


def test_nothing_is_drawn_from_the_global_generator(lab):
    policy = lab.policy()
    state = torch.random.get_rng_state()
    first = sample(policy)
    torch.manual_seed(99)
    assert torch.equal(sample(policy).sampler_log_probs, first.sampler_log_probs)
    torch.random.set_rng_state(state)
    sample(policy)
    assert torch.equal(torch.random.get_rng_state(), state)


# ---- evaluation


def test_evaluation_has_neither_noise_nor_decisions(lab, rounding):
    policy = lab.policy(guidance=2.0, training_guidance=1.0)
    sizes = lab.calls(policy)
    first = sample(policy, purpose="evaluate")
    assert sizes == [6, 6] * 7
    assert first.mask.shape == first.sampler_log_probs.shape == (6, 0)
    assert first.trajectory == {}
    assert policy.greedy is False
    assert torch.equal(lab.images_of(sample(policy, purpose="evaluate")), lab.images_of(first))
    noisy = lab.policy(
        guidance=2.0,
        sde="dance",
        noise_level=0.9,
        shared_noise=True,
        steps=4,
        window={"kind": "all"},
    )
    images = lab.images_of(first)
    rounding.same(lambda: lab.images_of(sample(noisy, purpose="evaluate")), images)


@pytest.mark.parametrize("start", [0, 2])
def test_outside_the_window_steps_are_those_of_the_ode(lab, start, rounding):
    """Samples before the first decision and after the last are those of Euler's method."""
    policy = lab.policy(steps=6, window={"kind": "fixed", "size": 2, "start": start})
    rollouts = policy.sample(lab.rows[:1], group_size=2, seeds=[3, 4])
    conditions = policy.adapter.encode(lab.rows[:1])

    def euler(x, steps):
        for s, after in steps:
            with torch.no_grad():
                v = policy.adapter.velocity(
                    x,
                    s.expand(1),
                    conditions,
                    guidance=1.0,
                )
            x = x + (after - s) * v
        return x

    steps = list(zip(policy.sigmas[:-1], policy.sigmas[1:], strict=True))
    for row, seed in enumerate([3, 4]):
        noise = torch.randn(
            policy.adapter.latent_shape, generator=torch.Generator().manual_seed(seed)
        )
        path = rollouts.trajectory["path"][row]

        def ends(noise=noise, path=path):
            before = euler(noise.unsqueeze(0), steps[:start])
            after = euler(path[-1:], steps[start + 2 :])
            return before, policy.adapter.decode(after.detach()).clamp(0, 1)[0].detach()

        rounding.same(ends, (path[:1], rollouts.facts["pixels"][row]))
        drawn = euler(path[:1], steps[start : start + 1])
        assert (path[1] - drawn[0]).abs().max() > 0.1  # the decision itself has noise


@pytest.mark.parametrize("kind", ["flow", "dance", "cps"])
def test_the_last_step_can_have_noise_without_being_a_decision(lab, kind, rounding):
    policies = [lab.policy(sde=kind, steps=3, last_step=last) for last in ("ode", "noise")]
    latents = []
    for policy in policies:
        decode = policy.guided.completions
        policy.guided.completions = lambda x, decode=decode, **_: latents.append(x) or decode(x)
    plain, noisy = (policy.sample(lab.rows[:1], group_size=1, seeds=[3]) for policy in policies)
    assert torch.equal(plain.sampler_log_probs, noisy.sampler_log_probs)
    last = torch.stack([path[-1] for path in noisy.trajectory["path"]])
    assert torch.equal(last[0], plain.trajectory["path"][0][-1])
    sigma, after = policies[0].sigmas[-2:]
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn((1 + 2 + 1, *last.shape[1:]), generator=generator)[-1:]

    def end():
        velocity = (last - latents[0]) / sigma  # solves the ODE's last step, x - sigma v, for v
        options = {"kind": kind, "noise_level": 0.7, "noise": noise}
        return sde.step(velocity, last, sigma, after, **options).next_sample

    rounding.same(end, latents[1])
    assert ((latents[1] - latents[0]).abs().max() > 0.01) == (kind != "cps")
    finals = [sample(policy, purpose="evaluate").facts["pixels"] for policy in policies]
    assert torch.equal(torch.stack(finals[0]), torch.stack(finals[1]))


def test_training_uses_its_own_number_of_steps_and_guidance(lab, rounding):
    policy = lab.policy(guidance=2.0, training_guidance=1.0, steps=3)
    sizes = lab.calls(policy)
    rollouts = sample(policy)
    assert sizes == [6] * 3
    assert "unconditional" not in rollouts.trajectory
    rounding.same(lambda: log_probs(policy, rollouts), rollouts.sampler_log_probs)
    strong = lab.policy(guidance=1.0, training_guidance=3.0, steps=3)
    sizes = lab.calls(strong)
    drawn = sample(strong)
    assert sizes == [6] * 6
    rounding.same(lambda: log_probs(strong, drawn), drawn.sampler_log_probs)


def test_completions_are_the_pictures_of_the_images_fact(lab):
    rollouts = sample(lab.policy())
    for image, picture in zip(rollouts.facts["pixels"], rollouts.completions, strict=True):
        assert picture.size == (16, 16)
        assert picture.mode == "RGB"
        top = (image[:, 0, 3] * 255).round().int().tolist()
        assert list(picture.getpixel((3, 0))) == top
        assert 0 <= float(image.min()) <= float(image.max()) <= 1


# ---- shared noise


@pytest.mark.parametrize("guidance", [1.0, 4.0])
def test_with_shared_noise_a_group_is_computed_once_until_its_first_decision(
    lab, guidance, monkeypatch, rounding
):
    policy = lab.policy(
        shared_noise=True, guidance=guidance, window={"kind": "fixed", "size": 2, "start": 2}
    )
    sizes = lab.calls(policy)
    shared = sample(policy, size=3)
    # Two rows until the first decision is drawn, then all six.
    each = 2 if guidance > 1 else 1
    assert sizes == [2] * 3 * each + [6] * 2 * each
    path = torch.stack(list(shared.trajectory["path"])).unflatten(0, (2, 3))
    assert torch.equal(path[:, 1:, 0], path[:, :1, 0].expand_as(path[:, 1:, 0]))
    assert (path[0, 0, 0] - path[1, 0, 0]).abs().max() > 0.1
    assert (path[:, 0, 1] - path[:, 1, 1]).abs().max() > 0.01

    def unshared(velocity, start, noise, plan, **more):
        plan = replace(plan, source=torch.arange(len(start)))
        return denoise(velocity, start, noise, plan, **more)

    denoise = latents.denoise
    monkeypatch.setattr(latents, "denoise", unshared)
    sample(policy, size=3)
    assert sizes[5 * each :] == [6] * 5 * each

    def drawn():
        rollouts = sample(policy, size=3)
        return rollouts.sampler_log_probs, lab.images_of(rollouts)

    rounding.same(drawn, (shared.sampler_log_probs, lab.images_of(shared)))
    rounding.same(lambda: log_probs(policy, shared), shared.sampler_log_probs)


def test_without_shared_noise_each_sample_starts_from_its_own(lab):
    rollouts = sample(lab.policy(), size=3)
    starts = torch.stack([path[0] for path in rollouts.trajectory["path"]])
    assert torch.pdist(starts.flatten(1)).min() > 1


# ---- encodings


def test_each_prompt_is_encoded_only_once(lab):
    policy = lab.policy(guidance=4.0, negative_prompt="blur")
    encode, prompts = policy.adapter.encode, []
    policy.adapter.encode = lambda rows: prompts.extend(r["prompt"] for r in rows) or encode(rows)
    rollouts = sample(policy)
    sample(policy, purpose="evaluate")
    policy(without_unconditional(rollouts))
    assert sorted(prompts) == ["a cat", "b cat", "blur", "c cat"]


def test_a_prompt_that_is_too_long_is_refused_rather_than_cut(lab):
    with pytest.raises(UserError, match=r"policy\.prompt_tokens allows 12"):
        lab.policy().sample([{"prompt": "cat " * 20}], group_size=1, seeds=[0])


# ---- what is trained, and the reference


def test_full_training_trains_only_the_transformer(lab):
    policy = lab.policy()
    names = [name for name, p in policy.named_parameters() if p.requires_grad]
    expected = [f"transformer.{n}" for n, _ in policy.adapter.model.named_parameters()]
    assert sorted(names) == sorted(expected)
    parts = {"transformer", "vae", "text_encoder", "text_encoder_2", "text_encoder_3"}
    assert {name.partition(".")[0] for name in policy.state_dict()} == parts


@pytest.mark.parametrize("architecture", ["sd3", "flux"])
def test_lora_trains_adapters_of_attention_layers_and_starts_as_the_base_model(lab, architecture):
    policy = lab.policy(architecture, lora={"rank": 2, "alpha": 4})
    names = [name for name, p in policy.named_parameters() if p.requires_grad]
    assert all(".lora_" in name and ".attn." in name for name in names)
    full = lab.policy(architecture)
    count = sum(
        2 * (module.in_features + module.out_features)
        for name, module in full.adapter.model.named_modules()
        if isinstance(module, torch.nn.Linear) and ".attn." in name
    )
    assert sum(p.numel() for p in lab.trained(policy)) == count > 0
    layers = [module for module in policy.modules() if hasattr(module, "lora_A")]
    assert {layer.scaling["default"] for layer in layers} == {4 / 2}
    rollouts = sample(full)
    assert torch.equal(log_probs(policy, rollouts), log_probs(full, rollouts))
    narrow = lab.policy(
        architecture, lora={"rank": 2, "targets": ["attn.to_q"], "options": {"bias": "none"}}
    )
    names = [name for name, p in narrow.named_parameters() if p.requires_grad]
    assert all(".attn.to_q.lora_" in name for name in names)


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("lora", [None, {"rank": 2}])
@pytest.mark.parametrize("guidance", [1.0, 4.0])
def test_the_reference_gives_the_log_probs_of_the_start_of_training(lab, lora, guidance, rounding):
    policy = lab.policy(lora=lora, guidance=guidance)
    rollouts = sample(policy)
    before = log_probs(policy, rollouts)
    ids = {id(p) for p in policy.parameters()}
    kept = KeptWeights(policy)
    kept.keep("reference")
    lab.nudge(policy)
    trained = {id(p) for p in lab.trained(policy)}
    moved = log_probs(policy, rollouts)
    assert (moved - before).abs().max() > 1e-3
    for _ in range(2):
        with kept.using("reference"):
            again = sample(policy).sampler_log_probs
            rounding.same(lambda: log_probs(policy, rollouts), before, again)
    with pytest.raises(ZeroDivisionError), kept.using("reference"):
        raise ZeroDivisionError
    assert torch.equal(log_probs(policy, rollouts), moved)
    assert {id(p) for p in policy.parameters()} == ids
    assert {id(p) for p in lab.trained(policy)} == trained


@pytest.mark.parametrize("lora", [None, {"rank": 2}])
def test_using_weights_that_were_never_kept_is_refused(lab, lora):
    message = r"keeps no weights named 'old' \(kept are: reference\)"
    policy = lab.policy(lora=lora)
    kept = KeptWeights(policy)
    kept.keep("reference")
    with pytest.raises(UserError, match=message), kept.using("old"):
        pass


@pytest.mark.parametrize("init", ["gaussian", False])
def test_adapters_are_disabled_only_where_the_kept_ones_are_zero(lab, init, rounding):
    """Adapters kept later, blended ones, and those not initialised to zero are swapped in."""
    policy = lab.policy(lora={"rank": 2, "options": {"init_lora_weights": init}})
    rollouts = sample(policy)
    disabled, model = [], policy.adapter.model
    disable = model.disable_adapters
    model.disable_adapters = lambda: disabled.append(1) or disable()

    def log_probs_by(name):
        with kept.using(name):
            return log_probs(policy, rollouts)

    first = log_probs(policy, rollouts)
    kept = KeptWeights(policy)
    kept.keep("reference")
    lab.nudge(policy)
    by_reference = log_probs_by("reference")
    assert len(disabled) == (init == "gaussian")
    rounding.same(lambda: log_probs_by("reference"), first, by_reference)
    disabled.clear()
    later = log_probs(policy, rollouts)
    kept.keep("later")
    kept.blend("reference", 0.0)
    lab.nudge(policy, seed=3)
    for name in ("later", "reference"):
        rounding.same(lambda name=name: log_probs_by(name), later)
    assert (later - first).abs().max() > 1e-3
    assert disabled == []


def test_flow_grpo_mixes_the_policy_into_the_reference(lab, rounding):
    policy = lab.policy()
    rollouts = sample(policy)
    algorithm = FlowGRPO(FlowGRPO.Config(beta=0.1, reference_every=2, reference_mix=0.5))
    kept = KeptWeights(policy)
    kept.keep("reference")
    initial = [p.detach().clone() for p in lab.trained(policy)]
    lab.nudge(policy)
    for step in (1, 2):
        algorithm.end_step(kept, step)
    with torch.no_grad():
        with kept.using("reference"):
            mean = policy(rollouts).extra["mean"]
        for parameter, first in zip(lab.trained(policy), initial, strict=True):
            parameter.copy_((parameter + first) / 2)
        rounding.same(lambda: policy(rollouts).extra["mean"], mean)


def test_adapters_are_not_mixed_into_the_reference(lab):
    """The mean of the factors A and B of two adapters is not the mean of the products B A."""
    options = {"beta": 0.1, "reference_every": 2}
    policy = lab.policy(lora={"rank": 2})
    kept = KeptWeights(policy)
    with pytest.raises(UserError, match=r"reference_mix: 0.5 with LoRA: .*set reference_mix: 1"):
        FlowGRPO(FlowGRPO.Config(**options, reference_mix=0.5)).prepare(policy, kept)
    FlowGRPO(FlowGRPO.Config(**options)).prepare(policy, kept)


# ---- guidance


def adamw(policy, lab):
    optimizer = torch.optim.AdamW(lab.trained(policy), lr=0.05)
    for parameter in lab.trained(policy):
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def averaged(policy, lab):
    """Replaces the weights by their moving average, as at the end of a run."""
    kept = KeptWeights(policy)
    kept.keep("average")
    lab.nudge(policy)
    kept.blend("average", 0.5)
    with torch.no_grad():
        for parameter, average in zip(
            lab.trained(policy), kept.copies("average").values(), strict=True
        ):
            parameter.copy_(average)


@pytest.mark.parametrize("change", [adamw, averaged])
@pytest.mark.parametrize("lora", [None, {"rank": 2}])
def test_unconditional_velocities_are_reused_until_the_weights_change(lab, lora, change, rounding):
    policy = lab.policy(lora=lora, guidance=4.0, guidance_gradient="conditional")
    rollouts = sample(policy)
    kept = KeptWeights(policy)
    kept.keep("reference")
    sizes = lab.calls(policy)
    reused = log_probs(policy, rollouts.select([1, 2, 5]))
    assert sizes == [12]  # three rows of four decisions, only the conditional pass
    some = without_unconditional(rollouts.select([1, 2, 5]))
    fresh = log_probs(policy, some)
    assert sizes == [12, 12, 12]
    rounding.same(lambda: log_probs(policy, some), reused, fresh)
    change(policy, lab)
    sizes.clear()
    recomputed = log_probs(policy, rollouts)
    assert sizes == [24, 24]
    assert torch.equal(recomputed, log_probs(policy, without_unconditional(rollouts)))
    # By the reference's weights they are computed anew, even before the first update.
    later = sample(policy)
    with kept.using("reference"):
        reference = log_probs(policy, later)
        assert torch.equal(reference, log_probs(policy, without_unconditional(later)))
    sizes.clear()
    log_probs(policy, later)
    assert sizes == [24]


@pytest.mark.parametrize("lora", [None, {"rank": 2}])
def test_unconditional_velocities_of_other_weights_are_not_reused(lab, lora):
    policy = lab.policy(lora=lora, guidance=4.0, guidance_gradient="conditional")
    kept = KeptWeights(policy)
    kept.keep("average")
    lab.nudge(policy)
    with kept.using("average"):
        drawn = sample(policy)
    for _ in range(3):  # also after as many writes as swapping the average in and out takes
        assert torch.equal(
            log_probs(policy, drawn), log_probs(policy, without_unconditional(drawn))
        )
        lab.nudge(policy, size=0.01)


@pytest.mark.parametrize(("kind", "passes"), [("both", 2), ("conditional", 1)])
def test_unconditional_velocities_are_not_kept_where_they_need_a_gradient(lab, kind, passes):
    policy = lab.policy(guidance=4.0, guidance_gradient=kind)
    rollouts = sample(policy)
    assert ("unconditional" in rollouts.trajectory) == (kind == "conditional")
    sizes = lab.calls(policy)
    assert policy(rollouts).log_probs.requires_grad
    assert sizes == [24] * passes
    sizes.clear()
    log_probs(policy, rollouts)
    assert sizes == [24] * passes


@pytest.mark.parametrize("kind", ["both", "conditional"])
def test_constants_of_the_gradient_are_reused_with_any_weights(lab, kind, rounding):
    policy = lab.policy(guidance=4.0, guidance_gradient=kind)
    rollouts = sample(policy)
    constant = policy.with_constants(rollouts)
    assert (constant is rollouts) == (kind == "both")
    before = log_probs(policy, constant)
    rounding.same(lambda: log_probs(policy, rollouts), before)
    lab.nudge(policy)
    sizes = lab.calls(policy)
    moved = log_probs(policy, constant)
    assert sizes == ([24, 24] if kind == "both" else [24])
    assert ((moved - log_probs(policy, rollouts)).abs().max() > 1e-3) == (kind == "conditional")


@pytest.mark.parametrize("kind", ["both", "conditional"])
def test_the_unconditional_velocity_has_a_gradient_where_it_is_configured(lab, kind, rounding):
    window = {"kind": "fixed", "size": 1, "start": 1}
    policy = lab.policy(guidance=4.0, guidance_gradient=kind, window=window)
    rollouts = sample(policy)
    with torch.no_grad():
        prompts = policy.adapter.encode(rollouts.prompts)
        empty = policy.adapter.encode([{"prompt": ""}] * 6)
    path = torch.stack(list(rollouts.trajectory["path"]))
    sigma, after = policy.sigmas[1:3]
    factors = torch.linspace(-1, 1, path[0, 0].numel()).view_as(path[0, 0])

    def velocity_of(conditions):
        level = torch.full((6,), float(sigma))
        return policy.adapter.velocity(path[:, 0], level, conditions, guidance=4.0)

    def gradient(name):
        detached = name == "conditional"
        without = velocity_of(empty).detach() if detached else velocity_of(empty)
        velocity = without + 4.0 * (velocity_of(prompts) - without)
        policy.zero_grad()
        step = sde.step(velocity, path[:, 0], sigma, after, next_sample=path[:, 1])
        (step.log_prob.sum() + (step.mean * factors).sum()).backward()
        return lab.gradient(policy)

    assert lab.gap(gradient("both"), gradient("conditional")) > 0.05
    gradients = []
    for batch in (rollouts, without_unconditional(rollouts)):
        policy.zero_grad()
        current = policy(batch)
        (current.log_probs.sum() + (current.extra["mean"] * factors).sum()).backward()
        gradients.append(lab.gradient(policy))
        assert not current.extra["std"].requires_grad
    rounding.same(lambda: gradient(kind), *gradients)


# ---- micro-batches


@pytest.mark.parametrize(("budget", "batch"), [(1, 64), (3, 64), (1000, 64), (1000, 4), (5, 2)])
@pytest.mark.parametrize("cut", [True, False])
def test_microbatches_cover_every_decision_once(lab, budget, batch, cut):
    policy = lab.policy(batch=batch)
    rollouts = sample(policy)
    covered = torch.zeros(6, 4, dtype=torch.int64)
    for rows, decisions in policy.microbatches(rollouts, budget, cut_decisions=cut):
        width = len(range(4)[decisions])
        assert width == (1 if cut else 4)
        assert len(rows) * width <= max(width, min(budget, batch))
        covered[rows, decisions] += 1
    assert (covered == 1).all()
