"""Codec: rows to contexts of token ids, and contexts to what training and rewards read.

`completion_ids` [B, T] holds all tokens after the prompt, including a tool's answer between two
turns; `attention` [B, T] is True where there is a token, and `mask` where the model chose it. All
tokens of `attention` are attended to, have positions and count in the micro-batch budget; log-probs
and gradients exist only at `mask`. Positions without a token, also between others, are removed
before a pass. A pass computes a prompt once for all rows whose `prompt_ids` are equal, whatever
their groups: a sampler may give the rollouts of a group different contexts.

The fact `completion_ids` has the tokens of `attention`, which decode to the completion's text;
`completion_mask` says for each of them whether it is a decision; `character_ends` has an entry for
each decision, in characters of the whole text. `LanguageModel.completions_and_facts` makes all of
them from token ids, for any sampler; `tests/llm/test_completions.py` compares them with each other
and with the log-probs. The completion of a chat is the list of messages after the prompt, and its
whole text their contents one after the other.

A *context* is a prompt and the segments after it: turns that the model drew, and what tools or
users replied. `draw` gives the next turn of each context, with a seed and a limit of its own;
`sample` is `encode`, one `draw` and `assemble`. `extend` appends what the chat template puts after
a turn, as token ids: found by rendering a short conversation with a placeholder in the turn's
place. A conversation is never rendered or encoded again, since a turn's text may encode to other
tokens than those drawn. The end token of a turn is in the context once, drawn or appended. A
template that writes an earlier turn differently once something follows it (most drop its thinking)
is refused, for those roles that it does this before: Qwen3's keeps turns before a tool's message,
not before a user's.
"""
