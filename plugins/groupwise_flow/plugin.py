"""Registers policies of images, their adapters, algorithms and drafts of configurations."""

from groupwise.hookspecs import Register, hookimpl


@hookimpl
def register_policies(register: Register) -> None:
    register("flow", "groupwise_flow.policy:FlowPolicy", extra="flow")
    register("forward_process", "groupwise_flow.forward_process:ForwardProcess", extra="flow")


@hookimpl
def register_adapters(register: Register) -> None:
    register("StableDiffusion3Pipeline", "groupwise_flow.adapters.sd3:SD3Adapter", extra="flow")
    register("FluxPipeline", "groupwise_flow.adapters.flux:FluxAdapter", extra="flow")


@hookimpl
def register_algorithms(register: Register) -> None:
    register("flow_grpo", "groupwise_flow.algorithms.flow_grpo:FlowGRPO")
    register("flow_guard", "groupwise_flow.algorithms.flow_guard:FlowGuard")
    register("nft", "groupwise_flow.algorithms.nft:NFT")


@hookimpl
def register_drafts(register: Register) -> None:
    register("image", "groupwise_flow.draft:FlowDraft")
