"""The preallocated cache against transformers' own, which is copied at every token."""

from functools import wraps

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicSlidingWindowLayer

from groupwise_llm.decoding import cache
from groupwise_llm.decoding.cache import RoomyLayer, with_room
from groupwise_llm.model.causal import CausalModel
from groupwise_llm.probing.probes import ability


def states(rows, tokens):
    return torch.randn(rows, 2, tokens, 4), torch.randn(rows, 2, tokens, 3)


def test_it_holds_the_keys_and_values_of_transformers_cache(monkeypatch):
    monkeypatch.setattr(cache, "LEAST", 3)
    ours, theirs = with_room(DynamicCache()), DynamicCache()
    rows = 2
    for step in range(12):
        new = states(rows, 5 if step == 0 else 1 + step % 2)
        for layer in (0, 1):
            values = ours.update(*new, layer)
            for actual, expected in zip(values, theirs.update(*new, layer), strict=True):
                torch.testing.assert_close(actual, expected, rtol=0, atol=0)
        assert ours.get_seq_length() == theirs.get_seq_length()
        if step in {0, 5}:
            order = torch.tensor([0, 0, 1, 1] if step == 0 else [3, 0, 1])
            ours.reorder_cache(order)
            theirs.reorder_cache(order)
            rows = len(order)


def test_a_token_is_written_without_copying_the_cache():
    layer = RoomyLayer()
    layer.update(*states(2, 5))
    addresses = {layer.update(*states(2, 1))[0].data_ptr() for _ in range(1 + cache.LEAST)}
    assert len(addresses) == 1
    layer.update(*states(2, 1))
    assert layer.keys.data_ptr() not in addresses
    assert layer.get_seq_length() == 7 + cache.LEAST


def test_sliding_window_layers_stay_those_of_transformers():
    window = DynamicSlidingWindowLayer(sliding_window=4)
    mixed = DynamicCache()
    mixed.layers = [window, RoomyLayer()]
    assert with_room(mixed).layers[0] is window


def test_a_model_that_needs_a_mask_with_its_cache_is_sampled_without_the_cache(make):
    """Prompts of equal length are passed without a mask, so the trial run covers that case, too."""
    model = make("llama").model
    forward = model.model.forward

    @wraps(forward)
    def forward_with_mask_only(
        *, attention_mask=None, past_key_values=None, position_ids=None, **inputs
    ):
        if past_key_values is not None and attention_mask is None:
            position_ids = torch.zeros_like(position_ids)
        inputs |= {"attention_mask": attention_mask, "past_key_values": past_key_values}
        return forward(position_ids=position_ids, **inputs)

    model.model.forward = forward_with_mask_only
    abilities = ability(
        CausalModel(model), precision="float32", head=None, share=True, name="it", longest=16
    )
    assert not abilities.decoding.cached
