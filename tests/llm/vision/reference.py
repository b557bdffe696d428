"""What transformers itself makes of prompts with pictures: ids, and log-probs by its forward."""

from functools import cache

import torch
from tests.llm.vision import standins
from transformers import AutoModelForImageTextToText, AutoProcessor

from groupwise_llm.vision.picture import BEYOND

SIZES = [[], [(16, 16)], [(40, 16), (12, 28)], [(48, 48), (8, 12), (28, 16)]]
"""Width and height of the pictures of a prompt, none to three."""


def rows():
    """Prompts with none to three pictures, before the text and within it."""
    made = []
    for sizes in SIZES:
        pictures = [standins.picture(*size, seed) for seed, size in enumerate(sizes)]
        blocks = [block("Look: "), *({"type": "image"} for _ in pictures), block("What is it?")]
        if len(pictures) > 1:
            blocks.insert(2, block(" or "))
        message = {"role": "user", "content": blocks}
        made.append({"prompt": [message], "images": pictures})
    return made


def block(text):
    return {"type": "text", "text": text}


@cache
def loaded(model_type):
    """The processor and the model of a stand-in."""
    folder = standins.folder(model_type)
    model = AutoModelForImageTextToText.from_pretrained(folder)
    return AutoProcessor.from_pretrained(folder), model.eval()


def inputs(processor, row):
    """The processor's inputs of a row, as its documentation has it: pictures in the messages."""
    pictures = iter(row["images"])
    messages = [
        {
            "role": message["role"],
            "content": [
                {**part, "image": next(pictures)} if part["type"] == "image" else part
                for part in message["content"]
            ],
        }
        for message in row["prompt"]
    ]
    return processor.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
    )


@torch.no_grad()
def log_probs(model_type, ids, pictures, *, excluded=(), temperature=1.0):
    """[t - 1] log-probs of ids [t] after the first, among the tokens that are not excluded, by one
    pass over them alone. pictures: PIL images, whose image tokens are among the ids."""
    processor, model = loaded(model_type)
    ids = torch.as_tensor(ids).unsqueeze(0)
    given = {"attention_mask": torch.ones_like(ids)}
    if pictures:
        text = " ".join([processor.image_token] * len(pictures))
        given = processor(text=[text], images=[pictures], return_tensors="pt")
        tokens = given.pop("input_ids").shape
        places = (ids == model.config.image_token_id).long()
        kinds = {"attention_mask": torch.ones_like(ids)}
        kinds |= dict.fromkeys(("mm_token_type_ids", "token_type_ids"), places)
        given = {key: kinds[key] if own.shape == tokens else own for key, own in given.items()}
    if hasattr(model.model, "rope_deltas"):
        model.model.rope_deltas = None  # of the pass before, which had other pictures
    logits = model(input_ids=ids, **given).logits[0, :-1] / temperature
    logits[:, sorted(excluded)] = -torch.inf
    return logits.log_softmax(dim=-1).gather(1, ids[0, 1:].unsqueeze(1)).squeeze(1)


def of_rollouts(policy, rollouts, pictures):
    """[B, T] log-probs of the rollouts' decisions by transformers, row by row, 0 elsewhere.

    policy: of a stand-in; pictures: the PIL images of each rollout.
    """
    model_type, family = policy.model.config.model_type, policy.causal.family
    result = torch.zeros(rollouts.mask.shape)
    for row, own in enumerate(pictures):
        tokens = rollouts.trajectory["attention"][row]
        prompt = rollouts.trajectory["prompt_ids"][row]
        ids = torch.cat([prompt, rollouts.trajectory["completion_ids"][row, tokens]])
        expected = log_probs(
            model_type,
            ids.where(ids < BEYOND, family.image_id),
            own,
            excluded=family.excluded,
            temperature=policy.config.temperature,
        )
        result[row, tokens] = expected[len(prompt) - 1 :]
    return result.masked_fill(~rollouts.mask, 0.0)
