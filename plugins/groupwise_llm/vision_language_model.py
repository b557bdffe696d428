"""VisionLanguageModel: a language model that also reads pictures; its decisions are tokens."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from PIL import Image
from torch import Tensor

from groupwise.kit.errors import UserError
from groupwise.kit.memory import Workload
from groupwise.policy import Outputs, Policy
from groupwise.rollouts import LogProbs, Rollouts
from groupwise_llm.codec.codec import Codec
from groupwise_llm.codec.contexts import Context, Turn
from groupwise_llm.estimates import tower
from groupwise_llm.files.folder import config_of
from groupwise_llm.policy import LanguageModel
from groupwise_llm.probing.probes import Ability
from groupwise_llm.settings import Settings
from groupwise_llm.vision.album import Album
from groupwise_llm.vision.codec import PictureCodec
from groupwise_llm.vision.loading import family_class, processor_of
from groupwise_llm.vision.model import PicturedModel
from groupwise_llm.vision.picture import BEYOND
from groupwise_llm.vision.probe import check
from groupwise_llm.vision.reader import Reader
from groupwise_llm.vision.settings import VisionSettings

SAMPLE = Image.radial_gradient("L").resize((64, 48)).convert("RGB")
"""The picture that passes are tried with."""


class VisionLanguageModel(LanguageModel):
    """Vision-language models of transformers; decisions are tokens, and never those of pictures.

    Each token of a picture has an id of its own in contexts (`vision.picture`), and a column of
    trajectories, `pictures`, has one uint8 tensor per rollout with its pictures (`vision.album`).
    All else is as in `LanguageModel`.
    """

    reads_attachments: ClassVar[bool] = True
    Config: ClassVar[type[Settings]] = VisionSettings
    config: VisionSettings
    codec: PictureCodec
    causal: PicturedModel

    @classmethod
    def make_codec(
        cls, config: Settings, tokenizer: Any, ends: Collection[int], *, positions: int | None
    ) -> Codec:
        assert isinstance(config, VisionSettings)
        model = config_of(config)
        family = family_class(model)(processor_of(config), model)
        album = Album(family, family.limits(config.min_pixels, config.max_pixels))
        reader = Reader(album, fetch=config.fetch_pictures)
        return PictureCodec(reader, config, ends, positions=positions)

    def make_causal(self, model: Any, **options: Any) -> PicturedModel:
        album = self.codec.reader.album
        tokens = self.config.feature_tokens
        return PicturedModel(model, album, album.picture(SAMPLE), feature_tokens=tokens, **options)

    @classmethod
    def check_teacher(cls, config: Settings, teacher: type[Policy], teacher_config: Any) -> None:
        """Raise UserError also for a teacher to which the policy's pictures would be others."""
        super().check_teacher(config, teacher, teacher_config)
        if cls._prepares(config) != cls._prepares(teacher_config):
            raise UserError(
                f"the teacher {teacher_config.model!r} reads the policy's pictures, and prepares "
                f"them otherwise than {config.model!r}; expected a model of the same family with "
                f"the same image processor, and min_pixels and max_pixels alike"
            )

    @classmethod
    def _prepares(cls, config: Settings) -> tuple[Any, ...]:
        """How pictures are prepared: the family, their sizes, and what becomes of one."""
        album = cls._album(config)
        sizes = {"size": album.family.processor.image_processor.size, **album.limits}
        return type(album.family), sizes, album.picture(SAMPLE).first

    @classmethod
    def _album(cls, config: Settings) -> Album:
        codec = cls.make_codec(config, None, (), positions=None)
        assert isinstance(codec, PictureCodec)
        return codec.reader.album

    @classmethod
    def estimate(cls, config: Settings, load: Workload) -> Mapping[str, int]:
        """As `LanguageModel.estimate`, with a picture of `max_pixels` in each prompt, or of a
        megapixel where it is not set; see `estimates.tower`."""
        assert isinstance(config, VisionSettings)
        album = cls._album(config)
        picture = album.picture(tower.blank(config.max_pixels or tower.MEGAPIXEL))
        if config.max_prompt_tokens is None:
            longest = config.max_new_tokens + len(picture)
            config = config.model_copy(update={"max_prompt_tokens": longest})
        pictures = tower.estimate(config_of(config), config, load, album, picture)
        return {**super().estimate(config, load), **pictures}

    def _load(self) -> None:
        family_class(config_of(self.config))  # one that is unknown is refused before it is read
        super()._load()
        assert self._loaded is not None
        self.causal.exclude()
        self._loaded = replace(self._loaded, processor=self.codec.reader.family.processor)

    def _probed(self) -> Ability:
        with self.causal.showing([self.causal.sample]):
            ability = super()._probed()
            limits, name = self.codec.reader.album.limits, str(self.config.model)
            check(self.causal, ability.numerics, limits, name=name)
        return ability

    def forward(
        self,
        rollouts: Rollouts,
        decisions: slice = slice(None),
        outputs: Outputs | None = None,
        *,
        temperature: float | None = None,
    ) -> LogProbs:
        tensors = {id(own): own for own in rollouts.trajectory["pictures"]}.values()
        album = self.codec.reader.album
        with self.causal.showing([own for each in tensors for own in album.unpacked(each)]):
            return super().forward(rollouts, decisions, outputs, temperature=temperature)

    def observations(self, rollouts: Rollouts) -> Tensor:
        """As `LanguageModel.observations`, without tokens of pictures and those that stand for
        pictures, which have no log-probs."""
        ids = rollouts.tensor("completion_ids")
        excluded = torch.tensor(sorted(self.causal.family.excluded), device=ids.device)
        return super().observations(rollouts) & (ids < BEYOND) & ~torch.isin(ids, excluded)

    def _turns(self, *args: Any, **options: Any) -> list[Turn]:
        contexts: Sequence[Context] = args[1]
        with self.causal.showing([own for each in contexts for own in each.pictures]):
            return super()._turns(*args, **options)
