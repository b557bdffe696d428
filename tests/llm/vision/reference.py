"""What transformers itself makes of prompts with pictures: ids, and log-probs by its forward."""

from functools import cache

import torch
from tests.llm.vision import standins
from transformers import AutoModelForImageTextToText, AutoProcessor

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


def inputs(model_type, row):
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
    return loaded(model_type)[0].apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
    )


@torch.no_grad()
def log_probs(model_type, row, completion, *, excluded=(), temperature=1.0):
    """[t] log-probs of the completion's ids after the row's prompt, by a pass over this row alone,
    among the tokens that are not excluded."""
    given = inputs(model_type, row)
    size, ids = given["input_ids"].shape[1], torch.as_tensor(completion).unsqueeze(0)
    whole = {
        name: torch.cat([tensor, tensor.new_full(ids.shape, name == "attention_mask")], dim=1)
        if tensor.shape[:2] == (1, size)
        else tensor
        for name, tensor in given.items()
    }
    whole["input_ids"][:, size:] = ids
    model = loaded(model_type)[1]
    if hasattr(model.model, "rope_deltas"):
        model.model.rope_deltas = None  # of the pass before, which had other pictures
    logits = model(**whole).logits[0, size - 1 : -1] / temperature
    logits[:, sorted(excluded)] = -torch.inf
    return logits.log_softmax(dim=-1).gather(1, ids.T).squeeze(1)
