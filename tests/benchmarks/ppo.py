"""With and without a critic: GRPO, PPO and Hybrid GRPO on examples/arithmetic.yaml.

    python tests/benchmarks/ppo.py --seeds 0 1 2 --jobs 16 --out runs/ppo

All have 256 samples in a step and 8 updates, since PPO usually makes several; GRPO is also run with
one update, as in the example. PPO needs no groups, so it draws each prompt twice instead of 16
times. See examples/ppo; its package need not be installed.
"""

import os

from race import ROOT, Race, main

SEVERAL = ["train.updates_per_rollout=8"]
GROUPS_OF_TWO = ["train.groups_per_step=128", "train.group_size=2"]
CRITIC = ["policy.name=groupwise_ppo.policy:LanguageModelWithCritic", "policy.critic_rate=10"]
HYBRID = [*CRITIC, "algorithm.name=groupwise_ppo.hybrid:HybridGRPO"]
PPO = [*CRITIC, "algorithm.name=groupwise_ppo.ppo:PPO"]

if __name__ == "__main__":
    paths = [str(ROOT / "examples" / "ppo" / "src"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    main(
        Race(
            config=ROOT / "examples" / "arithmetic.yaml",
            variants={
                "grpo, one update": [],
                "grpo": SEVERAL,
                "ppo": [*PPO, *SEVERAL, *GROUPS_OF_TWO],
                "ppo, groups of 16": [*PPO, *SEVERAL],
                "hybrid_grpo": [*HYBRID, *SEVERAL],
            },
            goal=0.85,
        )
    )
