"""VideoAdapter: the base of adapters for pipelines of videos."""

from abc import abstractmethod
from typing import Any, ClassVar

from groupwise.kit.errors import UserError
from groupwise_flow.adapter.adapter import Adapter
from groupwise_messages.video import Video


class VideoAdapter(Adapter):
    """A diffusers pipeline for videos of one size and length; `decode` returns
    [n, frames, 3, height, width].

    frames: of a video; latent_frames: the same in latents; frame_rate: frames a second.

    default_frames, default_rate: where the configuration sets none.
    """

    default_frames: ClassVar[int]
    default_rate: ClassVar[float]

    @property
    @abstractmethod
    def frame_step(self) -> int:
        """Frames for each frame of latents after the first, which stands for one."""

    def _set_time(
        self, frames: int | None, frame_rate: float | None, *, section: str = "policy"
    ) -> None:
        """Set number and rate of frames. Raises UserError for an impossible number."""
        self.frames = frames or self.default_frames
        self.frame_rate = frame_rate or self.default_rate
        before = (self.frames - 1) % self.frame_step
        if before:
            less = self.frames - before
            raise UserError(
                f"{section}.frames: this model's videos have 1 + a multiple of {self.frame_step} "
                f"frames, found {self.frames}; the nearest numbers are {less} and "
                f"{less + self.frame_step}"
            )

    @property
    def latent_frames(self) -> int:
        return 1 + (self.frames - 1) // self.frame_step

    @property
    def video_tokens(self) -> int:
        """Tokens of all frames of latents."""
        return self.latent_frames * self.image_tokens

    @property
    def decoded_shape(self) -> tuple[int, ...]:
        """With frames also where there is one."""
        return (self.frames, 3, self.height, self.width)

    @property
    def call_time(self) -> dict[str, Any]:
        """The arguments of the pipeline's call that say how long a video is."""
        return {"num_frames": self.frames}

    def call_arguments(self, *, guidance: float, negative_prompt: str) -> dict[str, Any]:
        own = super().call_arguments(guidance=guidance, negative_prompt=negative_prompt)
        return {**own, **self.call_time}

    def video(self, pixels: Any) -> Video:
        return Video(pixels, self.frame_rate)
