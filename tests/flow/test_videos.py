"""Models of videos: frames, memory, two transformers, and what is saved of them."""

from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline
from tests.command_line import call
from tests.flow.stand_ins import MODELS

import groupwise
from groupwise import testing
from groupwise.kit.errors import UserError
from groupwise.kit.memory import Workload
from groupwise.scoring.reward_result import excerpt
from groupwise_flow.adapter.lora_files import LoraFiles
from groupwise_flow.adapters.wan import WanAdapter
from groupwise_flow.model.unused_parameters import UnusedParameters
from groupwise_flow.policy import FlowPolicy
from groupwise_flow.testing.case import Case
from groupwise_messages.video import Video

ROWS = [{"prompt": "a cat"}, {"prompt": "two dogs"}]


def case_of(lab, name, **sizes):
    pipeline = DiffusionPipeline.from_pretrained(lab.folders[name])
    pipeline.set_progress_bar_config(disable=True)
    return Case(WanAdapter, pipeline, ROWS, {**MODELS[name].size, **sizes})


# ---- frames


def test_a_completion_is_a_video_of_the_frames_and_the_rate_that_are_set(lab):
    policy = lab.policy("wan21", frames=5, frame_rate=12.0)
    rollouts = policy.sample(ROWS[:1], group_size=2, seeds=[1, 2], purpose="evaluate")
    for video in rollouts.completions:
        assert isinstance(video, Video)
        assert (len(video), video.size, video.rate) == (5, (48, 16), 12.0)
    assert (policy.adapter.latent_frames, policy.adapter.video_tokens) == (3, 3 * 12)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("wan21", {"frames": 4}, r"policy\.frames: .* found 4; the nearest numbers are 3 and 5"),
        ("wan21", {"height": 25}, r"policy\.height, .* found 25 x 48; the nearest size is 24 x 48"),
        (
            "wan21",
            {"evaluation_size": {"frames": 4}},
            r"policy\.evaluation_size\.frames: .* found 4",
        ),
        (
            "sdxl",
            {"evaluation_size": {"height": 32}, "sde": "ddim"},
            r"policy\.evaluation_size: .* encoded with the size of the picture",
        ),
        ("sd3", {"frames": 5}, r"policy\.frames: a StableDiffusion3Pipeline draws pictures"),
        ("sd3", {"frame_rate": 8}, r"policy\.frame_rate: a StableDiffusion3Pipeline draws pictur"),
    ],
)
def test_impossible_frames_are_refused_with_the_possible_ones(lab, model, options, message):
    with pytest.raises(UserError, match=message):
        FlowPolicy.examine(lab.settings(model, **options), ROWS)


def test_evaluation_of_another_size_is_that_of_a_policy_of_this_size(lab):
    """Its levels, latents and pixels; training keeps its own."""
    size = {"height": 32, "frames": 5}
    policy = lab.policy("wan21", evaluation_size=size)
    alone = lab.policy("wan21", **size)
    drawn, other = (
        each.sample(ROWS, group_size=1, seeds=[1, 2], purpose="evaluate").completions
        for each in (policy, alone)
    )
    assert [*drawn] == [*other]
    trained = policy.sample(ROWS[:1], group_size=1, seeds=[1]).completions[0]
    assert (len(trained), trained.size) == (3, (48, 16))
    assert "num_frames=5" in policy.card["usage"]


@pytest.mark.slow
def test_evaluation_of_a_larger_size_takes_more_memory(lab):
    load = Workload(
        decisions=0, rollouts=4, group_size=2, sampled=4, training=True, reference=False, averages=0
    )
    taken = [
        FlowPolicy.estimate(lab.settings("wan21", evaluation_size=size), load)["decoding"]
        for size in (None, {"frames": 1}, {"height": 64})
    ]
    assert taken[0] == taken[1] < taken[2] / 3


def length(completions, **_):
    """A reward."""
    return [float(len(video)) for video in completions]


@pytest.mark.slow
def test_check_names_what_is_watched_by_default(lab, tmp_path):
    size = [f"policy.{key}={value}" for key, value in MODELS["wan21"].size.items()]
    rows = "".join(f'{{"prompt": "{letter} cat"}}\n' for letter in "abcdef")
    (tmp_path / "rows.jsonl").write_text(rows)
    (tmp_path / "run.yaml").write_text(
        f"policy: {{name: flow, model: {lab.folders['wan21']}}}\n"
        f"rewards: [{{name: '{__name__}:length'}}]\n"
        "prompts: {name: dataset, path: rows.jsonl, held_out: 0.5}\n"
    )
    for default, shown in ((True, "darkness, edges, color_entropy, motion"), (False, None)):
        setting = f"evaluation.default_watches={default}".lower()
        result = call("check", tmp_path / "run.yaml", *size, setting)
        line = "  watched by default at evaluations: "
        assert result.output.count(f"{line}{shown}") == int(default), result.output


def test_a_video_in_a_message_is_named_by_its_frames():
    video = Video(np.zeros((5, 16, 32, 3), np.uint8))
    assert excerpt(video) == "[5 pictures of 32 x 16]"
    assert excerpt(video[0]) == "[picture of 32 x 16]"


# ---- memory


def test_a_video_takes_three_bytes_a_pixel_and_fifteen_where_a_reward_takes_tensors(lab):
    """As the estimate says, which would else be 93 GB for 8 groups of 24 videos of Wan's size."""
    policy = lab.policy("wan21")
    pixels = 3 * 16 * 48
    more = {"rollouts": 4, "prompts": 2, "references": 0}
    for facts, bytes_a_pixel in ((frozenset(), 3), (frozenset({"pixels"}), 15)):
        policy.prepare(outputs=policy.provides, facts=facts)
        rollouts = policy.sample(ROWS, group_size=2, seeds=range(4))
        arrays = {id(v.pixels.base): v.pixels.base.nbytes for v in rollouts.completions}
        tensors = sum(image.nbytes for image in rollouts.facts.get("pixels", ()))
        assert sum(arrays.values()) + tensors == 4 * pixels * bytes_a_pixel
        estimated = FlowPolicy.estimate_cpu(policy.config, facts=facts, **more)
        assert estimated["pictures of a step"] == 4 * pixels * bytes_a_pixel


# ---- laws


@pytest.mark.parametrize(
    ("name", "lora"), [("wan21", None), ("wan21", {"rank": 2}), ("wan22", {"rank": 2})]
)
@pytest.mark.slow(after=1)
def test_policies_of_videos_keep_the_laws(lab, name, lora):
    policy = lab.policy(name, lora=lora, guidance=2.0, steps=3)
    lab.nudge(policy)
    testing.check_policy(policy, ROWS, group_size=2)


# ---- two transformers


def test_each_row_is_computed_by_the_transformer_of_its_level(lab, rounding):
    """Also beside rows of the other one; each runs on its own rows only."""
    case = case_of(lab, "wan22")
    adapter, sizes = case.adapter, []
    for name, model in adapter.models.items():
        model.register_forward_pre_hook(
            lambda module, args, named, name=name: sizes.append((name, len(named["timestep"]))),
            with_kwargs=True,
        )
    start, conditions = case.start.repeat(2, 1, 1, 1, 1), case.conditions
    both = conditions.select(torch.tensor([0, 1, 0, 1]), [0, 1, 0, 1])
    levels = torch.tensor([0.5, 0.9, 0.875, 0.3])

    @torch.no_grad()
    def velocity(rows):
        some = both.select(torch.tensor(rows), rows)
        return adapter.velocity(start[rows], levels[rows], some, guidance=1.0)

    alone = torch.cat([velocity([row]) for row in range(4)])
    assert [name for name, _ in sizes] == [
        *("transformer_2", "transformer", "transformer", "transformer_2")
    ]
    sizes.clear()
    rounding.same(partial(velocity, [0, 1, 2, 3]), alone)
    assert {*sizes} == {("transformer", 2), ("transformer_2", 2)}
    swapped = adapter.models["transformer_2"](
        hidden_states=start[1:2],
        timestep=1000 * levels[1:2],
        encoder_hidden_states=both["embeds"][1:2],
        return_dict=False,
    )[0]
    assert (swapped - alone[1:2]).abs().max() > 1e-2


def test_each_transformer_has_its_guidance_as_in_the_pipeline(lab, rounding):
    options = WanAdapter.Config(guidance_2=2.0)
    case = case_of(lab, "wan22", options=options)
    rounding.same(lambda: case.latents(4.0), case.drawn(4.0, "latent"))
    assert (case.latents(4.0) - case_of(lab, "wan22").latents(4.0)).abs().max() > 1e-3
    with pytest.raises(UserError, match=r"policy\.adapter\.guidance_2: this model has one"):
        _ = case_of(lab, "wan21", options=options).adapter


def test_what_is_unused_is_looked_for_in_each_pass_where_passes_differ(monkeypatch):
    """DDP waits forever for a parameter without a gradient: with two transformers that is another
    one in each pass."""
    monkeypatch.setattr("groupwise_flow.model.unused_parameters._distributed", lambda: True)
    one, other = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    for alike in (False, True):
        unused = UnusedParameters(alike=alike)
        for used in (one, other):
            one.grad = other.grad = None
            unused.connect(used.sum(), [one, other]).backward()
            reached = [p.grad is not None for p in (one, other)]
            assert all(reached) or (alike and used is other)


# ---- saving


def test_a_run_that_could_not_save_stops_before_its_first_step(lab, tmp_path, monkeypatch):
    """As diffusers' own `save_lora_weights` of Wan 2.2 could not."""
    monkeypatch.setattr(WanAdapter, "save_lora", LoraFiles.save_lora)
    size = {**MODELS["wan22"].size, "steps": 3, "evaluation_steps": 1, "lora": {"rank": 2}}
    with pytest.raises(UserError, match=r"could not be saved, .*transformer_2_lora_layers"):
        groupwise.train(
            policy={"name": "flow", "model": str(lab.folders["wan22"]), **size},
            prompts=ROWS * 2,
            rewards=[lambda completions, **_: [float(len(each)) for each in completions]],
            output=str(tmp_path / "run"),
            quiet=True,
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("lora", [None, {"rank": 2}])
def test_saving_is_tried_without_weights(lab, lora, monkeypatch, tmp_path):
    policy = lab.policy("wan22", lora=lora)
    folder = nullcontext(str(tmp_path / "tried"))
    monkeypatch.setattr("groupwise_flow.files.saving.TemporaryDirectory", lambda: folder)
    (tmp_path / "tried").mkdir()
    policy.try_saving()
    tried = {path.name: path.stat().st_size for path in (tmp_path / "tried").rglob("*.safetensors")}
    assert len(tried) == (2 if lora else 0)
    policy.save_pretrained(tmp_path / "model")  # its own way of saving is back
    saved = {path.name: path.stat().st_size for path in (tmp_path / "model").rglob("*.safetensors")}
    assert all(size < saved[name] for name, size in tried.items())
    assert len(saved) == 2
