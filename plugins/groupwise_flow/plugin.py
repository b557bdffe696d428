"""Registers policies of images, their adapters, algorithms, drafts of configurations, and the
pipelines that stand for policies."""

from groupwise.hookspecs import Register, hookimpl


@hookimpl
def register_policies(register: Register) -> None:
    register("flow", "groupwise_flow.policy:FlowPolicy", extra="flow")
    register("forward_process", "groupwise_flow.forward_process:ForwardProcess", extra="flow")


@hookimpl
def register_adapters(register: Register) -> None:
    adapters = "groupwise_flow.adapters"
    register("StableDiffusionPipeline", f"{adapters}.sd15:SD15Adapter", extra="flow")
    register("StableDiffusionXLPipeline", f"{adapters}.sdxl:SDXLAdapter", extra="flow")
    register("StableDiffusion3Pipeline", f"{adapters}.sd3:SD3Adapter", extra="flow")
    register("FluxPipeline", f"{adapters}.flux:FluxAdapter", extra="flow")
    register("FluxKontextPipeline", f"{adapters}.flux_kontext:FluxKontextAdapter", extra="flow")
    register("Flux2Pipeline", f"{adapters}.flux2:Flux2Adapter", extra="flow")
    register("Flux2KleinPipeline", f"{adapters}.flux2:Flux2KleinAdapter", extra="flow")
    register("Lumina2Pipeline", f"{adapters}.lumina2:Lumina2Adapter", extra="flow")
    register("QwenImagePipeline", f"{adapters}.qwen_image:QwenImageAdapter", extra="flow")
    register(
        "QwenImageEditPlusPipeline",
        f"{adapters}.qwen_image_edit:QwenImageEditPlusAdapter",
        extra="flow",
    )
    register("SanaPipeline", f"{adapters}.sana:SanaAdapter", extra="flow")
    register("LTXPipeline", f"{adapters}.ltx:LTXAdapter", extra="flow")
    register(
        "HunyuanVideo15Pipeline",
        f"{adapters}.hunyuan_video15:HunyuanVideo15Adapter",
        extra="flow",
    )
    register("WanPipeline", f"{adapters}.wan:WanAdapter", extra="flow")
    register("ZImagePipeline", f"{adapters}.z_image:ZImageAdapter", extra="flow")


@hookimpl
def register_algorithms(register: Register) -> None:
    register("flow_grpo", "groupwise_flow.algorithms.flow_grpo:FlowGRPO")
    register("flow_guard", "groupwise_flow.algorithms.flow_guard:FlowGuard")
    register("flow_dppo", "groupwise_flow.algorithms.flow_dppo:FlowDPPO")
    register("flash_grpo", "groupwise_flow.algorithms.flash_grpo:FlashGRPO")
    register("tempflow", "groupwise_flow.algorithms.tempflow:TempFlow")
    register("nft", "groupwise_flow.algorithms.nft:NFT")
    register("awm", "groupwise_flow.algorithms.awm:AWM")
    register("elbo_grpo", "groupwise_flow.algorithms.elbo_grpo:ElboGRPO")


@hookimpl
def register_drafts(register: Register) -> None:
    register("image", "groupwise_flow.draft:FlowDraft")
    register("video", "groupwise_flow.video_draft:VideoDraft")


@hookimpl
def register_objects(register: Register) -> None:
    name = "diffusers.pipelines.pipeline_utils.DiffusionPipeline"
    register(name, "groupwise_flow.stands:PIPELINE", extra="flow")
