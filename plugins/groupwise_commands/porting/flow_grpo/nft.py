"""DiffusionNFT's options: its files are flow_grpo's, with another method."""

from groupwise_commands.porting.port import Port

DECAYS = {1: (0.5, 0.001, 0), 2: (0.999, 0.0075, 75)}
"""By `decay_type`, where the decay ends, how much it grows in an update, and when that begins."""


def is_nft(port: Port) -> bool:
    return port.states("decay_type")


def write_policy(port: Port) -> None:
    """Sampling: without noise if it is `deterministic`, and no path to train on."""
    port.write("policy.name", "forward_process")
    port.write("policy.sde", "ode" if port.get("sample.deterministic") else "flow")
    trained = int(port.get("sample.num_steps") * port.get("train.timestep_fraction"))
    port.write("policy.decisions", trained, "copies at the levels of the steps that theirs trains")
    if port.get("sample.solver") == "dpm2":
        why = "images of training are drawn by the pipeline's own solver here"
        port.lose("sample.solver: dpm2", why)


def write_algorithm(port: Port) -> None:
    port.write("algorithm.name", "nft")
    port.write("algorithm.b", port.get("beta"), "their `config.beta`")
    port.write("algorithm.beta", port.get("train.beta"))
    kind = port.get("decay_type")
    if kind in DECAYS:
        decay, rise, delay = DECAYS[kind]
        port.write(
            "algorithm.decay",
            decay,
            f"decay_type {kind}; it grows per step here, theirs per update",
        )
        port.write("algorithm.decay_rise", rise)
        if delay:
            port.write("algorithm.decay_delay", delay)
    if port.get("train.adv_mode") != "all":
        port.lose_value("train.adv_mode", "all advantages count here")
