"""Vision-language policies of stand-ins, and what transformers computes for their rollouts."""

import pytest
import torch
from tests.llm.vision import reference, standins

from groupwise_llm.vision.picture import BEYOND
from groupwise_llm.vision_language_model import VisionLanguageModel, VisionSettings


@pytest.fixture
def make(placed_once):
    """make(family, **settings) -> a policy on the CPU."""

    def policy(family="qwen2_5_vl", **settings):
        settings = {"model": str(standins.folder(family)), "max_new_tokens": 6, **settings}
        return placed_once(VisionLanguageModel(VisionSettings(**settings)), family)

    return policy


@pytest.fixture
def transformers_log_probs():
    """f(policy, rollouts) -> [B, T] log-probs of all tokens after the prompts but those of
    pictures, by the forward of a model that saw all pictures of the rollout as pixels."""

    @torch.no_grad()
    def of(policy, rollouts):
        family, album = policy.causal.family, policy.codec.reader.album
        model = reference.loaded(policy.model.config.model_type)[1]
        answers = torch.zeros(rollouts.mask.shape)
        for number, prompt in enumerate(rollouts.trajectory["prompt_ids"]):
            present = rollouts.trajectory["attention"][number]
            completion = rollouts.trajectory["completion_ids"][number, present]
            ids = torch.cat([prompt, completion]).unsqueeze(0)
            packed = rollouts.trajectory["pictures"][number]
            pictures = [*map(album.complete, album.unpacked(packed))]
            pixels = {
                name: torch.cat([own.inputs[name] for own in pictures])
                for name in (pictures[0].inputs if pictures else ())
            }
            places = ids >= BEYOND
            model.model.rope_deltas = None
            logits = model(
                input_ids=ids.where(~places, family.image_id),
                mm_token_type_ids=places.int(),
                **pixels,
            ).logits[0, len(prompt) - 1 : -1]
            logits = logits / policy.config.temperature
            logits[:, sorted(family.excluded)] = -torch.inf
            text = ~places[0, len(prompt) :]
            own = logits.log_softmax(-1).gather(1, completion.where(text, 0).unsqueeze(1))
            answers[number, present] = own.squeeze(1).where(text, 0.0)
        return answers

    return of
