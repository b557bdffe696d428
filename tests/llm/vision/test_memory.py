"""The estimate of the memory that pictures take is what the tower allocates."""

import math

import pytest
import torch
from PIL import Image
from tests.llm.vision import reference, standins
from torch.profiler import ProfilerActivity, profile

from groupwise.kit.memory import Workload
from groupwise_llm.vision_language_model import VisionLanguageModel, VisionSettings

GROUPS = 3
FAMILIES = {"qwen2_5_vl": 1024, "qwen3_vl": 1600, "gemma3": None, "idefics3": None}
"""The setting `max_pixels`; None for families that choose sizes themselves."""
PIXELS, ACTIVATIONS = "pixels of pictures", "activations of the vision tower"


def estimate(family, *, training, **settings):
    """What pictures take while `GROUPS` prompts are sampled, or an update has a micro-batch of as
    many."""
    load = Workload(
        decisions=10_000 if training else 0,
        rollouts=4 * GROUPS,
        group_size=4,
        sampled=0 if training else 4 * GROUPS,
        training=True,
        reference=False,
        averages=0,
    )
    config = VisionSettings(model=str(standins.folder(family)), max_new_tokens=8, **settings)
    sizes = VisionLanguageModel.estimate(config, load)
    return {n.partition(" (")[0]: size for n, size in sizes.items() if "tower" in n or "pict" in n}


def peak(call):
    """Bytes that a call allocates, at most at once, and its result."""
    call()  # what is allocated once
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = call()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most, result


def saved_bytes(model, call):
    storages = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        storages[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        _result = call()
    for weight in (*model.parameters(), *model.buffers()):
        storages.pop(weight.untyped_storage()._cdata, None)
    return sum(storage.nbytes() for storage in storages.values())


@pytest.mark.parametrize(("family", "pixels"), FAMILIES.items())
@pytest.mark.slow(after=1)
def test_pixels_features_and_activations_are_what_the_tower_allocates(family, pixels):
    config = VisionSettings(model=str(standins.folder(family)), max_pixels=pixels)
    reader = VisionLanguageModel.make_codec(config, None, (), positions=None).reader
    side = math.isqrt(pixels or 2**20)
    picture = reader.album.picture(Image.new("RGB", (side, side)))
    model = reference.loaded(family)[1]

    def run():
        return reader.family.features(model, [picture])

    with torch.no_grad():
        most, features = peak(run)
    one = sum(t.nbytes for t in (features.embeds, features.layers) if t is not None)
    saved, inputs = saved_bytes(model, run), sum(t.nbytes for t in picture.inputs.values())
    tokens = GROUPS * len(picture)

    frozen = estimate(family, training=False, max_pixels=pixels, feature_tokens=tokens + 1)
    assert frozen[PIXELS] == inputs  # one picture after the other
    features = frozen[f"features of {tokens + 1} tokens of pictures"]
    assert features == one * (tokens + 1) // len(picture)
    assert frozen[ACTIVATIONS] == pytest.approx(most, rel=0.1)
    trained = estimate(family, training=True, max_pixels=pixels, vision="trained")
    assert trained.keys() == {PIXELS, ACTIVATIONS}
    assert trained[PIXELS] == GROUPS * inputs
    assert trained[ACTIVATIONS] == pytest.approx(GROUPS * saved, rel=0.03)


def test_a_tower_whose_code_reads_pixels_is_reported_as_not_counted(monkeypatch):
    def reads(*_, **__):
        raise RuntimeError("a value is needed")

    monkeypatch.setattr("groupwise_llm.vision.families.qwen2_vl.Qwen2VL.features", reads)
    sizes = estimate("qwen2_5_vl", training=False)
    assert sizes["vision tower: not counted"] == 0


@pytest.mark.slow
def test_an_estimate_says_where_it_assumes_how_large_pictures_are():
    load = Workload(
        decisions=0,
        rollouts=1,
        group_size=1,
        sampled=1,
        training=False,
        reference=False,
        averages=0,
    )
    # The processor of the second one reduces all pictures to 1024 pixels.
    for family, size in (("gemma3", "1024 x 1024, assumed"), ("qwen2_5_vl", "32 x 32")):
        config = VisionSettings(model=str(standins.folder(family)))
        assert f"{PIXELS} (1 of {size})" in VisionLanguageModel.estimate(config, load)
