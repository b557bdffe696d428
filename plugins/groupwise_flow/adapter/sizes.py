"""Sizes: an adapter's pixels, tokens and frames."""

from typing import Any

from groupwise.kit.errors import UserError


class Sizes:
    """The part of an adapter that is about the size of a picture, and of its tokens.

    height, width: of pictures, in pixels; token_rows, token_columns: the same in tokens.

    patch: latent pixels along a token's side.
    frames: of a completion, 1 for pictures. With its pixels it says how many completions are
        decoded at once.
    """

    pipeline: Any
    frames: int = 1

    def _resize(self, height: int | None, width: int | None, *, section: str = "policy") -> None:
        """Set the sizes. Raises UserError for impossible ones, of this section."""
        usual = (height, width) if height and width else self.default_size
        self.height, self.width = height or usual[0], width or usual[1]
        side = self.token_side
        if self.height % side or self.width % side:
            nearest = " x ".join(str(max(1, round(n / side)) * side) for n in self._sides)
            raise UserError(
                f"{section}.height, {section}.width: this model's images have sides that are "
                f"multiples of {side} pixels, found {self.height} x {self.width}; the nearest size "
                f"is {nearest}"
            )
        self.token_rows, self.token_columns = self.height // side, self.width // side
        most = self.most_tokens
        if most is not None and max(self.token_rows, self.token_columns) > most:
            raise UserError(
                f"{section}.height, {section}.width: this model's images have at most "
                f"{most * side} pixels a side, found {self.height} x {self.width}"
            )

    def _set_time(
        self, frames: int | None, frame_rate: float | None, *, section: str = "policy"
    ) -> None:
        """Set the number of frames. Raises UserError: a picture has none."""
        for key, value in {"frames": frames, "frame_rate": frame_rate}.items():
            if value is not None:
                raise UserError(
                    f"{section}.{key}: a {type(self.pipeline).__name__} draws pictures, and only "
                    f"videos have frames; leave it out, found {value}"
                )

    @property
    def _sides(self) -> tuple[int, int]:
        return self.height, self.width

    @property
    def patch(self) -> int:
        return 1

    @property
    def token_side(self) -> int:
        """Pixels along a token's side."""
        return int(self.pipeline.vae_scale_factor) * self.patch

    @property
    def default_side(self) -> int:
        """Pixels along a picture's side where the configuration sets none."""
        size = getattr(self.pipeline, "default_sample_size", None)
        if size is None:
            raise UserError(
                f"policy.height, policy.width: set both, since a {type(self.pipeline).__name__} "
                f"does not say its usual size, and the adapter has no `default_side`"
            )
        return int(size * self.pipeline.vae_scale_factor)

    @property
    def default_size(self) -> tuple[int, int]:
        """Height and width, in pixels, where the configuration sets none."""
        return self.default_side, self.default_side

    @property
    def most_tokens(self) -> int | None:
        """Most tokens along a picture's side; None without a limit."""
        return None

    @property
    def latent_sides(self) -> tuple[int, int]:
        """Rows and columns of latent pixels."""
        return self.token_rows * self.patch, self.token_columns * self.patch

    @property
    def decoded_shape(self) -> tuple[int, ...]:
        """Of a completion as `decode` returns it, without the batch dimension."""
        frames = (self.frames,) if self.frames > 1 else ()
        return (*frames, 3, self.height, self.width)

    @property
    def is_video(self) -> bool:
        """Whether completions are videos."""
        return len(self.decoded_shape) == len(("frames", "channels", "height", "width"))

    @property
    def image_tokens(self) -> int:
        """Tokens of one frame."""
        return self.token_rows * self.token_columns
