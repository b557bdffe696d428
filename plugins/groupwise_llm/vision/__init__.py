"""Vision: pictures in the contexts of a language model."""
