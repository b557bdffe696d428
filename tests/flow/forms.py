"""Forms: settings of image policies, in which each option is set to another value somewhere."""

from groupwise_flow.forward_process import ForwardProcess

OTHER_POLICY = {"kind": ForwardProcess}
FORMS = {
    "checkpointing": {"gradient_checkpointing": True},
    "a window that starts anywhere": {"window": {"kind": "random", "size": 2}},
    "a share of the steps": {"window": {"share": 0.5}},
    "a sliding window": {"window": {"kind": "sliding", "size": 2, "every": 1}},
    "shared noise": {"shared_noise": True, "window": {"kind": "fixed", "size": 2, "start": 1}},
    "cps": {"sde": "cps"},
    "dance": {"sde": "dance", "noise_level": 0.3},
    "a last step with noise": {"last_step": "noise"},
    "guidance, full": {"guidance": 4.5},
    "guidance, one branch": {"guidance": 4.5, "guidance_gradient": "conditional"},
    "guidance, one branch, lora": {
        "guidance": 4.5,
        "guidance_gradient": "conditional",
        "lora": {"rank": 2},
    },
    "guidance, checkpointing, lora": {
        "architecture": "sd3.5",
        "guidance": 4.5,
        "gradient_checkpointing": True,
        "lora": {"rank": 2},
    },
    "guidance of training alone": {"training_guidance": 3.0},
    "bf16": {"precision": "bf16", "lora": {"rank": 2}},
    "flux, lora": {"architecture": "flux", "guidance": 3.5, "lora": {"rank": 2}},
    "flux, unguided": {"architecture": "flux unguided", "gradient_checkpointing": True},
    "fp16, guidance": {"precision": "fp16", "guidance": 4.5},
    "noise": {"architecture": "sd15", "sde": "ddim", "noise_level": 1.0, "guidance": 3.0},
    "v": {"architecture": "sd15 v", "sde": "ddim", "noise_level": 1.0, "lora": {"rank": 2}},
    "xl": {
        "architecture": "sdxl",
        "sde": "ddim",
        "noise_level": 1.0,
        "guidance": 3.0,
        "lora": {"rank": 2},
        "gradient_checkpointing": True,
    },
    "sizes": {"height": 24, "width": 24, "steps": 4, "window": {"kind": "fixed", "size": 1}},
    "videos": {
        "architecture": "wan21",
        "frames": 5,
        "frame_rate": 8.0,
        "tiled_decoding": True,
        "evaluation_size": {"frames": 3},
        "window": {"kind": "fixed", "size": 1},
    },
    "prompts": {
        "prompt_tokens": 9,
        "long_prompts": "cut",
        "negative_prompt": "blurry",
        "guidance": 3.0,
        "encoders": "offload",
        "keep_prompts": 1,
    },
    "passes of their own": {
        "adapter": "StableDiffusion3Pipeline",
        "loading": {"variant": None},
        "batch": 1,
        "evaluation_steps": 3,
        "keep_graph": True,
    },
    "noised images": {**OTHER_POLICY, "decisions": 2, "sde": "cps"},
    "noised images, weighed by sigma": {
        **OTHER_POLICY,
        "likelihood": "sigma",
        "sde": "flow",
        "noise_level": 0.4,
        "guidance": 3.0,
    },
}
"""Of `lab.policy`, by name."""
