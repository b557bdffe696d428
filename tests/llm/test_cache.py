"""The cache with room against transformers' own, which copies everything at every token."""

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


def test_it_holds_what_transformers_own_holds(monkeypatch):
    monkeypatch.setattr(cache, "LEAST", 3)
    ours, theirs = with_room(DynamicCache()), DynamicCache()
    rows = 2
    for step in range(12):
        new = states(rows, 5 if step == 0 else 1 + step % 2)
        for layer in (0, 1):
            seen = ours.update(*new, layer)
            for mine, right in zip(seen, theirs.update(*new, layer), strict=True):
                torch.testing.assert_close(mine, right, rtol=0, atol=0)
        assert ours.get_seq_length() == theirs.get_seq_length()
        if step in {0, 5}:
            order = torch.tensor([0, 0, 1, 1] if step == 0 else [3, 0, 1])
            ours.reorder_cache(order)
            theirs.reorder_cache(order)
            rows = len(order)


def test_a_token_is_written_in_its_place():
    layer = RoomyLayer()
    layer.update(*states(2, 5))
    places = {layer.update(*states(2, 1))[0].data_ptr() for _ in range(1 + cache.LEAST)}
    assert len(places) == 1
    layer.update(*states(2, 1))
    assert layer.keys.data_ptr() not in places
    assert layer.get_seq_length() == 7 + cache.LEAST


def test_windows_stay_transformers_own():
    window = DynamicSlidingWindowLayer(sliding_window=4)
    mixed = DynamicCache()
    mixed.layers = [window, RoomyLayer()]
    assert with_room(mixed).layers[0] is window


def test_a_model_that_needs_a_mask_beside_its_cache_does_without_the_cache(make):
    """Prompts of one length are passed without a mask, so that, too, is tried on the model."""
    model = make("llama").model
    forward = model.model.forward

    @wraps(forward)
    def needs(*, attention_mask=None, past_key_values=None, position_ids=None, **inputs):
        if past_key_values is not None and attention_mask is None:
            position_ids = torch.zeros_like(position_ids)
        inputs |= {"attention_mask": attention_mask, "past_key_values": past_key_values}
        return forward(position_ids=position_ids, **inputs)

    model.model.forward = needs
    allowed = ability(CausalModel(model), precision="float32", head=None, share=True, name="it")
    assert not allowed.decoding.cached
