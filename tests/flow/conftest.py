"""Tiny random pipelines of each architecture, saved as folders, and policies made of them."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import (
    DiffusionPipeline,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
)
from PIL import ImageStat
from tests.flow.shelf import Shelf
from tests.flow.stand_ins import MODELS, unet
from tests.flow.stand_ins.text import LETTERS, clip_tokenizer, text_encoder
from tests.flow.stand_ins.weights import autoencoder, awake
from transformers import (
    CLIPTokenizer,
    T5Config,
    T5EncoderModel,
    T5Tokenizer,
)

from groupwise import Rollouts
from groupwise.rewards import Scores
from groupwise.testing import updater_of
from groupwise_flow.algorithms.flow_grpo import FlowGRPO
from groupwise_flow.diffusion import DiffusionPolicy
from groupwise_flow.policy import FlowPolicy


def t5_tokenizer() -> T5Tokenizer:
    names = ["<pad>", "</s>", "<unk>", *(f"▁{c}" for c in LETTERS), *LETTERS]
    return T5Tokenizer(vocab=[(name, -float(i)) for i, name in enumerate(names)], extra_ids=0)


def clip() -> tuple[CLIPTokenizer, Any]:
    tokenizer = clip_tokenizer()
    return tokenizer, text_encoder(tokenizer, projection=False)


def t5(tokenizer: T5Tokenizer, width: int) -> T5EncoderModel:
    config = T5Config(
        vocab_size=len(tokenizer), d_model=width, d_kv=8, d_ff=16, num_layers=1, num_heads=2
    )
    return T5EncoderModel(config)


def sd3(
    *, with_t5: bool = True, parts: dict[str, Any] | None = None, **schedule: Any
) -> StableDiffusion3Pipeline:
    """parts: further arguments of the transformer; schedule: of the scheduler."""
    tokenizer, long_tokenizer = clip_tokenizer(), t5_tokenizer()
    transformer = SD3Transformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=16,
        caption_projection_dim=16,
        pooled_projection_dim=16,
        pos_embed_max_size=8,
        **(parts or {}),
    )
    return StableDiffusion3Pipeline(
        transformer=awake(transformer),
        vae=autoencoder(),
        text_encoder=text_encoder(tokenizer, projection=True),
        text_encoder_2=text_encoder(tokenizer, projection=True),
        text_encoder_3=t5(long_tokenizer, 16) if with_t5 else None,
        tokenizer=tokenizer,
        tokenizer_2=tokenizer,
        tokenizer_3=long_tokenizer if with_t5 else None,
        scheduler=FlowMatchEulerDiscreteScheduler(**{"shift": 3.0, **schedule}),
    )


def flux(*, guided: bool = True, parts: dict[str, Any] | None = None) -> FluxPipeline:
    """parts: further arguments of the transformer."""
    tokenizer, long_tokenizer = clip_tokenizer(), t5_tokenizer()
    usual = {
        "patch_size": 1,
        "in_channels": 16,
        "num_layers": 1,
        "num_single_layers": 1,
        "attention_head_dim": 8,
        "num_attention_heads": 2,
        "joint_attention_dim": 16,
        "pooled_projection_dim": 8,
        "guidance_embeds": guided,
        "axes_dims_rope": (2, 2, 4),
    }
    transformer = FluxTransformer2DModel(**{**usual, **(parts or {})})
    return FluxPipeline(
        transformer=awake(transformer),
        vae=autoencoder(),
        text_encoder=text_encoder(tokenizer, projection=False),
        text_encoder_2=t5(long_tokenizer, 16),
        tokenizer=tokenizer,
        tokenizer_2=long_tokenizer,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True),
    )


def diffusion(name: str, scheduler: str, **schedule: Any) -> Any:
    """Stable Diffusion 1.5 ("sd15") or XL ("sdxl"); schedule: more arguments of the scheduler."""
    tokenizer, solver = clip_tokenizer(), unet.SCHEDULERS[scheduler](**schedule)
    encoders = tuple(text_encoder(tokenizer, projection=projection) for projection in (False, True))
    if name == "sd15":
        pipeline: Any = unet.sd15(tokenizer, encoders[0], autoencoder(levels=4), solver)
    else:
        pipeline = unet.sdxl(tokenizer, encoders, autoencoder(levels=4), solver)
    awake(pipeline.unet)
    return pipeline


MAKERS: dict[str, Callable[[], Any]] = {
    "sd3": sd3,
    "sd3 without t5": lambda: sd3(with_t5=False),
    "sd3.5": lambda: sd3(parts={"qk_norm": "rms_norm", "dual_attention_layers": (0,)}),
    "sd3 shifting": lambda: sd3(use_dynamic_shifting=True),
    "flux": flux,
    "flux unguided": lambda: flux(guided=False),
    "sd15": lambda: diffusion("sd15", "pndm"),
    "sd15 v": lambda: diffusion("sd15", "ddim", prediction_type="v_prediction"),
    "sdxl": lambda: diffusion("sdxl", "euler"),
    "sdxl ddim": lambda: diffusion("sdxl", "ddim"),
    "flux with idle parts": lambda: flux(parts={"num_layers": 2, "num_single_layers": 0}),
    **{name: model.make for name, model in MODELS.items()},
}


class Folders(dict[str, Path]):
    """The folder of each of `MAKERS` by name, made when it is first asked for."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root
        self.loaded: dict[str, Shelf] = {}

    def __missing__(self, name: str) -> Path:
        path = self.root / name.replace(" ", "_")
        with warnings.catch_warnings(), torch.random.fork_rng():
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            MAKERS[name]().save_pretrained(path)
        self[name] = path
        return path

    @contextmanager
    def loaded_once(self) -> Iterator[None]:
        """Within it, a pipeline of these is loaded at the first time, and copied at others."""
        load = DiffusionPipeline.from_pretrained

        def copied(path: Any, **options: Any) -> Any:
            if Path(path) not in self.values() or "transformer" in options or "unet" in options:
                return load(path, **options)
            key = f"{path} {options}"
            if key not in self.loaded:
                with torch.random.fork_rng():
                    self.loaded[key] = Shelf(load(path, **options))
            pipeline = self.loaded[key].copy()
            name = next(name for name, folder in self.items() if folder == Path(path))
            for attribute, value in (MODELS[name].attributes if name in MODELS else {}).items():
                setattr(pipeline, attribute, value)
            return pipeline

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(DiffusionPipeline, "from_pretrained", copied)
            yield


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return Folders(tmp_path_factory.mktemp("pipelines"))


def trained(policy: FlowPolicy) -> list[torch.nn.Parameter]:
    return [p for p in policy.parameters() if p.requires_grad]


def nudge(policy: FlowPolicy, size: float = 0.05, seed: int = 2) -> None:
    """Adds noise to every trained weight in place, as an update would."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in trained(policy):
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(size * noise.to(parameter.device))


def calls(policy: FlowPolicy) -> list[int]:
    """A list that grows by the batch size of each forward pass of the transformer."""
    sizes: list[int] = []

    def note(module: Any, positional: Any, named: dict[str, Any]) -> None:
        sizes.append(len(named["hidden_states"] if "hidden_states" in named else positional[0]))

    policy.adapter.model.register_forward_pre_hook(note, with_kwargs=True)
    return sizes


def gradient(policy: FlowPolicy) -> torch.Tensor:
    """All gradients as one vector; zeros where there is none."""
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained(policy)]
    return torch.cat([value.flatten() for value in gradients])


def gap(left: torch.Tensor, right: torch.Tensor) -> float:
    """The norm-wise relative difference."""
    return float((left - right).norm() / right.norm())


def scores_of(values: Sequence[float]) -> Scores:
    """Scores of a single reward."""
    return Scores(
        names=("reward",),
        weights=(1.0,),
        values=torch.tensor(values, dtype=torch.float64).unsqueeze(1),
        failed=torch.zeros(len(values), dtype=torch.bool),
    )


def update(
    policy: FlowPolicy,
    algorithm: FlowGRPO,
    rollouts: Rollouts,
    *,
    values: Sequence[float] | None = None,
    outputs: Mapping[str, torch.Tensor] | None = None,
    budget: int = 16384,
    first: bool = True,
) -> dict[str, float]:
    """Accumulates the gradient of an update and returns its metrics.

    values: the rewards; 0, 1, 2, ... unless set.
    outputs: the reference's outputs (`reference_mean`) and, for an update that is not the
    `first` of its step, the policy's own before the step (`old_log_probs`, `old_mean`).
    """
    scores = scores_of(range(len(rollouts)) if values is None else values)
    return updater_of(policy, algorithm, budget).backward(
        scores=scores, rollouts=rollouts, outputs=outputs or {}, first=first
    )


def images_of(rollouts: Rollouts) -> torch.Tensor:
    return torch.stack(list(rollouts.facts["pixels"])).cpu()


def pipelines_images(
    pipeline: Any,
    policy: FlowPolicy,
    rows: list[dict[str, str]],
    seeds: list[int],
    output_type: str = "np",
) -> torch.Tensor:
    """What diffusers' own call draws by a policy's evaluation settings.

    Returns images [n, 3, height, width], or latents.
    """
    pipeline.set_progress_bar_config(disable=True)
    shape = policy.adapter.latent_shape
    start = [torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    negative = policy.config.negative_prompt
    call = policy.adapter.call_arguments(guidance=policy.config.guidance, negative_prompt=negative)
    if "negative_prompt" in call:
        call["negative_prompt"] = [call["negative_prompt"]] * len(rows)
    images = pipeline(
        prompt=[row["prompt"] for row in rows],
        num_inference_steps=policy.config.evaluation_steps,
        latents=policy.adapter.call_latents(torch.stack(start)),
        height=policy.adapter.height,
        width=policy.adapter.width,
        output_type=output_type,
        **call,
    ).images
    return images if output_type == "latent" else torch.from_numpy(images).permute(0, 3, 1, 2)


def redness(completions: list[Any], **_: Any) -> list[float]:
    """A reward: how much redder than green and blue a picture is."""
    means = [ImageStat.Stat(picture).mean for picture in completions]
    return [(red - (green + blue) / 2) / 255 for red, green, blue in means]


@pytest.fixture
def lab(folders: Folders) -> SimpleNamespace:
    """`lab.policy(architecture, **settings)` makes a policy of a pipeline of `MAKERS`."""

    def settings(
        architecture: str = "sd3", *, kind: type[DiffusionPolicy] = FlowPolicy, **options: Any
    ) -> Any:
        size = {"height": 16, "width": 16, "prompt_tokens": 12}
        if architecture in MODELS:
            size = MODELS[architecture].settings(folders[architecture])
        usual = {"model": str(folders[architecture]), **size, "steps": 5, "evaluation_steps": 7}
        return kind.Config(**{**usual, **options})

    def policy(
        architecture: str = "sd3", *, kind: type[DiffusionPolicy] = FlowPolicy, **options: Any
    ) -> Any:
        torch.manual_seed(1)
        instance = kind(settings(architecture, kind=kind, **options))
        with folders.loaded_once():
            instance.place("cpu")
        return instance

    rows = [{"prompt": "a cat"}, {"prompt": "two dogs"}]
    return SimpleNamespace(
        policy=policy,
        settings=settings,
        rows=rows,
        folders=folders,
        trained=trained,
        nudge=nudge,
        calls=calls,
        gradient=gradient,
        gap=gap,
        scores_of=scores_of,
        updater=updater_of,
        update=update,
        images_of=images_of,
        pipelines_images=pipelines_images,
        awake=awake,
        clip=clip,
        redness=redness,
    )


@pytest.fixture(scope="package", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
