"""Published figures, each with its source, to compare with the calculation."""

from collections.abc import Callable
from dataclasses import dataclass

import machines
import steps
from machines import H100, H200, H800
from models import Image, Text
from steps import ImageBatch, TextBatch

NEMO4 = "[NeMo RL 0.4](https://github.com/NVIDIA-NeMo/RL/blob/06beed9/docs/about/performance-summary.md)"
NEMO5 = "[NeMo RL 0.5](https://docs.nvidia.com/nemo/rl/0.5.0/about/performance-summary.html)"
OMNI = (
    "[VeRL-Omni](https://github.com/verl-project/verl-omni/blob/0324b39/docs/algo/performance.md)"
)
DANCE = "[DanceGRPO, issue 7](https://github.com/XueZeyue/DanceGRPO/issues/7)"
LAMBDA = (
    "[Lambda, vLLM 0.6.0](https://github.com/LambdaLabsML/vllm-benchmark/blob/main/benchmark_v0.md)"
)
VLLM = "[vllm#7117](https://github.com/vllm-project/vllm/pull/7117)"
TT = "[tt-inference-server#143](https://github.com/tenstorrent/tt-inference-server/issues/143)"

Texts = Callable[[str], Text]
Images = Callable[[str, int, int], Image]


@dataclass(frozen=True)
class Row:
    """A published figure with its source, and the calculated one in the same unit."""

    what: str
    source: str
    published: float
    predicted: float

    @property
    def ratio(self) -> float:
        return self.predicted / self.published


def runs(text: Texts, image: Images) -> list[Row]:
    """Seconds of a step.

    NeMo RL and VeRL-Omni make a further pass over all rollouts for log-probs of the policy, and
    NeMo RL one for the reference; both are counted. Activations of Qwen3-32B are not recomputed. As
    in their recipes, half of the GPUs sample if a step is sampled ahead.
    """
    llama, qwen = text("Llama-3.1-8B"), text("Qwen3-32B")
    math = TextBatch(groups=64, group_size=32, prompt=150, longest=4096)
    short, long = [TextBatch(**{**vars(math), "mean": mean - math.prompt}) for mean in (1060, 3206)]
    picture = image("Qwen-Image", 512, 256)
    omni = ImageBatch(groups=32, group_size=16, steps=10, decisions=2, together=16)
    # Their batches are divided by image and not by group, so all 64 GPUs have images.
    wide = ImageBatch(**{**vars(omni), "groups": 64, "group_size": 8, "together": 8})
    guided = ImageBatch(**{**vars(omni), "guided": True})
    dance = ImageBatch(groups=16, group_size=12, steps=16, decisions=9, together=1)
    apart = {"engines": 8, "gpus": 8}
    apart32 = {"engines": 32, "gpus": 32, "tensor": 4}
    return [
        Row(
            "Llama-3.1-8B, 16 H100, 2048 rollouts of 1,060 tokens",
            NEMO4,
            97.7,
            steps.text_step(llama, short, gpus=16, passes=6).seconds,
        ),
        Row(
            "the same, sampled a step ahead, 8 GPUs each",
            f"{NEMO4}; 0.5: 64.8 s",
            74.6,
            max(steps.ahead_step(llama, short, passes=6, **apart)),
        ),
        Row(
            "Qwen3-32B, 32 H100, 2048 rollouts of 3,206 tokens",
            NEMO4,
            393,
            steps.text_step(qwen, long, gpus=32, tensor=4, passes=5).seconds,
        ),
        Row(
            "the same, sampled a step ahead, 32 GPUs each",
            NEMO4,
            215,
            max(steps.ahead_step(qwen, long, passes=5, **apart32)),
        ),
        Row(
            "Qwen-Image, full, 4 H200, 512 images, 10 steps, 2 trained",
            OMNI,
            250,
            steps.image_step(picture, omni, gpus=4, lora=False, passes=5, machine=H200).seconds,
        ),
        Row(
            "Qwen-Image, LoRA, 4 H800, guided",
            OMNI,
            420,
            steps.image_step(picture, guided, gpus=4, lora=True, passes=8, machine=H800).seconds,
        ),
        Row(
            "Qwen-Image, full, 64 H100",
            OMNI,
            105,
            steps.image_step(picture, wide, gpus=64, lora=False, passes=5).seconds,
        ),
        Row(
            "FLUX.1-dev, full, 16 H800, 192 images of 720x720, 16 steps, 9 trained",
            f"{DANCE}: 200 steps in 12 hours",
            12 * 3600 / 200,
            steps.image_step(
                image("FLUX.1-dev", 720, 512), dance, gpus=16, lora=False, machine=H800
            ).seconds,
        ),
    ]


def engines(text: Texts, image: Images) -> list[Row]:
    """Tokens a second, and seconds a picture."""
    chat = TextBatch(prompt=230, mean=203)
    equal = TextBatch(prompt=256, mean=256)
    flux = image("FLUX.1-dev", 1024, 512)
    picture = 50 * flux.flops / (machines.IMAGES * H100.flops)
    ort = machines.ORT
    return [
        Row(
            "Llama-3-8B, one H100, 256 tokens after 256, tokens/s",
            VLLM,
            12453 / 2,
            serving(text("Llama-3.1-8B"), equal, gpus=1),
        ),
        Row(
            "Llama-3.1-8B, one H100, chats, tokens/s",
            LAMBDA,
            8088,
            serving(text("Llama-3.1-8B"), chat, gpus=1),
        ),
        Row(
            "Llama-3.1-70B, four H100, chats, tokens/s",
            LAMBDA,
            3543,
            serving(text("Llama-3.1-70B"), chat, gpus=4),
        ),
        Row(
            "Qwen2.5-72B, two H100, one sequence, tokens/s",
            TT,
            32.4,
            1 / steps.decode(text("Qwen2.5-72B"), 1, 600, gpus=2),
        ),
        Row("FLUX.1-dev, one H100, 50 steps of 1024x1024, s", ort, 12.339, picture),
    ]


def serving(model: Text, batch: TextBatch, *, gpus: int) -> float:
    """Completed tokens a second of an engine with enough prompts, none of them shared."""
    sequences = steps.capacity(model, batch.prompt + batch.mean, gpus=gpus)
    context = batch.prompt + batch.mean / 2
    token = steps.decode(model, sequences, context, gpus=gpus)
    prompt = model.forward(batch.prompt, batch.prompt / 2) / gpus / (machines.SERVING * H100.flops)
    return batch.mean / (batch.mean * token / sequences + prompt)
