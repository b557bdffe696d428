"""Groupwise's language-model policy, over transformers' causal language models.

From top to bottom; a module or subpackage imports only those below it. The mechanisms are explained
in the docstrings of the subpackages `codec`, `decoding`, `training`, `vision` and `model`.

policy, settings, card, preflight, rehearsal: `LanguageModel`, the policy, made of the parts below;
    its configuration; the saved model's card; the checks of a run's start that need no weights;
    what the model reads, for `groupwise check`.
vision_language_model: `VisionLanguageModel`: the same with what is in `vision/` in the place of
    some parts.
sampler, in_process: `TextSampler`: `encode`, `draw`, `extend`, `assemble`, the same for the policy
    and vLLM; how the policy draws with its own weights.
log_probs: `TokenLogProbs`: the policy's training passes, and how an update is cut into them.
vllm: a sampler: `generation.py`, the requests of a step, all in flight; `fleet.py`, servers that
    replace each other, `roster.py`, a file that names them, and `load.py`, which of them gets a
    request; `server.py` (requests to a server, sent by `client.py`), `files.py`,
    `nccl.py` and `adapters.py` (transfer of weights; of adapters alone), `request.py`, `prompt.py`
    (a context as a server reads it, with its pictures) and `completion.py`, `sleep.py`,
    `launch.py`; `probe.py`, whether servers compute with the policy's weights.
estimates: the memory estimate of `groupwise check`: `memory.py`; `counting.py` runs the model's
    code on tensors without data; `tower.py`, what pictures take.
vision: `picture.py`, `album.py`: a picture, prepared once, whose tokens have ids of their own;
    `images.py`, `reader.py`: what users give as pictures, and their places in prompts and replies;
    `tokenizer.py`, `codec.py`: texts with pictures to ids and back; `family.py`, `families/`: what
    differs between architectures; `features.py`, `model.py`: passes over ids of which some are
    pictures'; `loading.py`, `settings.py`; `probe.py`, whether a picture is read as by
    transformers' own code.
codec: between rows and token ids: `prompts.py`, `template.py`; `contexts.py`, a prompt and the
    turns after it; `suffixes.py`, what the chat template puts between turns; `cutter.py`, as much
    of a long text as has to be encoded; `calls/`, the calls of tools in a turn, a file for each
    form, `detection.py`, which finds the template's, and `schema.py`, which values a tool's schema
    allows; `completions.py` and `characters.py`, what rewards read, and where in it each token
    ends; `observations.py`, which tokens an environment said; `codec.py`, all of them, and
    contexts to rollouts.
probing: `trial.py`, `probes.py`: run the model on a few short rows to see what it supports
    (`Ability`); `ways.py`, the fastest way of decoding that is right; `capturing.py`, whether a GPU
    may run a token as a CUDA graph, and compile its norms for that.
decoding: sampling token by token: `batches.py`, the loop; `decoder.py`, what is the same for all
    turns; `work.py`, the turns to draw and their batches; `slots.py`, the rows of a batch, and
    drawing a token of each; `graphs.py`, tokens captured and replayed; `prefill.py`, the pass over
    contexts; `stepping.py`, that over a token; `way.py`, the choices among these; `cache.py`, keys
    and values written in place; `prefixes.py`, those of contexts that may go on; `drawing.py`,
    seeds to tokens.
training: `passes.py`, from sequences to hidden states: packed in one row, by a cache, or every row
    whole; `packing.py`, which rollouts share a pass.
files: `folder.py`, what a model's folder holds; `loading.py`, `saving.py`; `quantization.py`,
    weights of a few bits; `sharding.py`, cuts each weight to this process's shard while it is read;
    for engines: `weights.py`, the whole model's weights by their names in a checkpoint, and
    `adapter.py`, adapters alone.
model: `causal.py`: `CausalModel`, the module whose `forward` reads every weight; `attention.py`, of
    packed rows, in place of a model's own during training passes; `kernels.py`, torch's kernels
    below it, with logsumexps; `likelihood.py`, log-probs and entropy without holding all logits;
    `copies.py`, bf16 copies of weights for passes; `merging.py`, `adapters.py`; `recomputation.py`,
    layers recomputed in the backward pass; `modes.py`.

What a model supports is determined by running it on the run's device, not looked up by its name:
`place` loads or moves the weights there and runs the probes; the result holds for the whole run.
"""
