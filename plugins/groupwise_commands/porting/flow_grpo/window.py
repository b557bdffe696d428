"""window: which denoising steps are stochastic and trained on, for `policy.window`."""

from groupwise_commands.porting.port import Port

SHARED = "drawn for each group here, for each batch or rollout there"


def write_all(port: Port, steps: int, trained: int) -> None:
    """The first `trained` of `steps` steps: all but the last, or a fixed window."""
    if trained >= steps - 1:
        why = "the last step is never trained on here" if trained >= steps else ""
        port.write("policy.window", {"kind": "all"}, why)
    else:
        why = f"the first {trained} of {steps} steps; later ones have no noise here"
        port.write("policy.window", {"kind": "fixed", "size": trained}, why)


def write_random(port: Port, steps: int, size: int, first: int, end: int) -> None:
    """A window of `size` steps that begins at a random step, and lies in [first, end)."""
    starts = end - size - first + 1
    if first != 0 or starts < 1:
        port.lose(f"a window within steps {first} to {end}", "windows begin at step 0 or later")
        starts = max(1, end - size + 1)
    why = f"within the first {end} of {steps} steps: `until` bounds its first step; {SHARED}"
    port.write("policy.window", {"kind": "random", "size": size, "until": starts / steps}, why)
