"""Decoding: completions sampled token by token, in process.

Within a `session`, the keys and values of a finished turn are kept, at most `policy.cache_tokens`
together with those of the batch being decoded, the oldest dropped first. A context is looked up by
its token ids, so branches share a prefix and contexts are plain data. Rows of several earlier
batches are gathered into one, padded on the left; one pass over their new tokens follows, and one
over contexts that have nothing cached; then all are decoded side by side. After a change of weights
nothing is found. Models with sliding windows or recurrent layers, whose caches do not keep every
token, compute a context as a whole in each turn; the probes decide it (`Ability.continues`).

A token on a GPU is one launch, of a CUDA graph (`graphs`). On a CPU, and where a model cannot be
captured, the same `Slots.choose` follows a pass over the filled part of the cache. A graph is
replayed until a tensor is replaced: where rows leave the batch or join it, or the room grows.
`tests/device` has a stand-in for graphs, which records operations and runs them again: a number of
the host that differs from token to token, memory that has been released and a wait while capturing
are errors there, as with CUDA. The host checks every 16 tokens how many rows have ended; those that
ended between two checks are decoded further, and the extra tokens are dropped.

Where the completions of a step do not fit into `policy.cache_tokens` at once, they wait, by the
length of their prompts. When ended rows leave the batch, as many as now fit are computed by a pass
over their prompts and join it (`_Batch._join`): both caches become one, padded on the left, as that
of several turns does. Each slot has a length, limit and uniforms of its own, so nothing depends on
when a row began.
"""
