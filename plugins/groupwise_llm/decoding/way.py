"""Way: a way to decode completions."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Way:
    """A way to decode completions; `probes` finds the fastest one that is right for a model.

    shared: a prompt's cache is computed once and repeated for its group.
    padded: prompts of different lengths share a batch, padded on the left.
    cached: the model uses a KV cache. Without one every step computes the whole row, padded on the
        right, which is right for any causal model.
    graphs: a token's kernels are captured as a CUDA graph and launched at once; only with the
        three above.
    fused: norms and rotary embeddings of captured tokens are compiled; only with graphs.
    """

    shared: bool = True
    padded: bool = True
    cached: bool = True
    graphs: bool = False
    fused: bool = False

    def __str__(self) -> str:
        if not self.cached:
            return "without a cache"
        prompts = "prompts shared" if self.shared else "prompts not shared"
        ways = prompts if self.padded else f"{prompts}, only prompts of equal length together"
        ways = f"{ways}, CUDA graphs" if self.graphs else ways
        return f"{ways}, compiled norms" if self.fused else ways
