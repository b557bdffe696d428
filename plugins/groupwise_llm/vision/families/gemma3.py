"""Gemma 3: tokens of a picture attend to one another both ways (arXiv 2503.19786)."""

from collections.abc import Mapping
from typing import Any

from torch.nn.functional import pad

from groupwise_llm.vision.families.tiles import Tiles
from groupwise_llm.vision.family import Pictured


class Gemma3(Tiles):
    """Pictures of one size, which have the same number of tokens."""

    def arguments(
        self, model: Any, call: Mapping[str, Any], pictured: Pictured
    ) -> Mapping[str, Any]:
        """The masks of transformers' own forward; those of sliding windows have both ways, too."""
        cache = call.get("past_key_values")
        before = 0 if cache is None else cache.get_seq_length()
        masks = model.create_masks_for_generate(
            config=model.config,
            inputs_embeds=call["inputs_embeds"],
            attention_mask=call.get("attention_mask"),
            past_key_values=cache,
            position_ids=call.get("position_ids"),
            # From the first token in the cache on. Pictures in it are whole, so none is continued.
            token_type_ids=pad(pictured.places.long(), (before, 0)),
        )
        return {**call, "attention_mask": masks}
