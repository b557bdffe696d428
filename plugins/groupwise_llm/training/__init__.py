"""Training passes over completions: packing into micro-batches, and prompts shared by groups.

A training pass is one row [1, N]: the different prompts, then their completions. For its time, the
model's configuration names an attention that Groupwise has registered with transformers: it knows
where the sequences are (`Layout`) and computes causal attention of each, and that of completions to
their prompts. A mask other than plain causal, or any argument of attention that it does not know,
raises an error, since a trial of few tokens would not notice a window of thousands; what a model
does beside transformers' interface shows in the log-probs. The probes then take the pass by a cache
(`Ability.training`), or whole rows. Layers that are recomputed switch attention again.
"""
