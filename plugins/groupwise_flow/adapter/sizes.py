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

    def _resize(self, height: int | None, width: int | None) -> None:
        """Set the sizes. Raises UserError for impossible ones."""
        self.height, self.width = height or self.default_side, width or self.default_side
        side = self.token_side
        if self.height % side or self.width % side:
            raise UserError(
                f"policy.height, policy.width: this model's images have sides that are multiples "
                f"of {side} pixels, found {self.height} x {self.width}"
            )
        self.token_rows, self.token_columns = self.height // side, self.width // side
        most = self.most_tokens
        if most is not None and max(self.token_rows, self.token_columns) > most:
            raise UserError(
                f"policy.height, policy.width: this model's images have at most {most * side} "
                f"pixels a side, found {self.height} x {self.width}"
            )

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
