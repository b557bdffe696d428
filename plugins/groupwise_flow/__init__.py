"""Groupwise's policies of image models, over diffusers' flow-matching pipelines.

A decision is a denoising step, or a noised copy of a final latent. From top to bottom; a module or
subpackage imports only those below it (nothing imports `algorithms` and `adapters`):

testing: `check_adapter`: the laws of adapters, by themselves and against the pipeline's own call.
policy, forward_process: `FlowPolicy`, whose decisions are stochastic steps; `ForwardProcess`, whose
    decisions are noised copies of final latents.
algorithms: for decisions that are Gaussian: `gaussian.py`, what they share; `flow_grpo.py`,
    `flow_guard.py`, `flow_dppo.py`; `flash_grpo.py`, `tempflow.py` and `single_step.py`. For
    finished latents: `velocities.py`, what they share; `following.py`, a copy of the weights that
    follows them; `nft.py`, `awm.py`, `elbo_grpo.py`.
adapters: one file for each model that is built in; `noise_prediction.py`, diffusion models as
    flows.
diffusion, noising: `DiffusionPolicy`, their base: how a rollout of training is denoised (`plan`),
    what a decision is (`with_trajectory`) and which outputs there are (`forward`) is left to the
    policy; noise levels and noise by each rollout's seed.
preflight: the checks of a run's start that need no weights.
estimates: the memory estimate of `groupwise check`: `memory.py`, the whole; `sampling_memory.py`,
    what sampling takes beside the weights; `activations.py`, what training keeps; `counting.py`
    runs the model's code on tensors without data.
passes: `guidance.py`, velocities with guidance, and pictures from latents; `latents.py`, rows and
    seeds to latents; `transitions.py`, log-probs of decisions from the stored path; `graphs.py`,
    passes of sampling that are kept with their graph; `rounding.py`, the error of log-probs in half
    precision.
prompts: `encodings.py`, a cache of encoded prompts; `encoders.py`, where the text encoders are
    between encodings; `columns.py`, columns that look like settings.
files: `folder.py`, what a pipeline's folder holds, and the adapter for it; `outline.py`, the
    pipeline without weights; `loading.py`, `saving.py`; `sharding.py`, each process reads its
    shard; `card.py`, the saved model's card; `messages.py`, those of diffusers, hidden or turned
    into errors.
model: `trainable.py`, which weights have gradients; `lora.py`, `precision.py`; `sharding.py`,
    blocks divided among processes; `versions.py`, numbers that tell when weights have changed;
    `unused_parameters.py`, gradients for DDP.
settings: the configurations of the base and of each policy.
effect: `Effect`, what another value of an option changes: whether a teacher may have it.
process: from noise to data: `schedules.py`, an adapter's noise levels, checked; `windows.py`, which
    steps are decisions; `denoising.py`, a batch from noise to latents; `seeds.py`, for draws
    independent of the first noise.
named_adapter: `NamedAdapter`: the adapter that a configuration names, with its options.
adapter: `Adapter`, the base class: all code that depends on a pipeline's architecture; `sizes.py`
    and `noise_levels.py`, its parts about pixels and about the scheduler; `conditions.py`,
    `limit.py`.
sde, activations: `Noise`, the formula of a step, and its log-prob; activations of a transformer,
    for estimates.

`adapter`, `activations`, `noising`, `sde` and `testing` are public, and `policy` for subclasses of
`FlowPolicy`. An adapter names its laws as "module:function" (`Adapter.laws`), so that
`groupwise.testing.check_adapter` finds them and the base class need not import what is built on it.
"""
