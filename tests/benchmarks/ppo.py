"""A critic or none: GRPO, PPO and Hybrid GRPO on examples/arithmetic.yaml, as many samples each.

    python tests/benchmarks/ppo.py --seeds 0 1 2 --jobs 16 --out runs/ppo

All have 256 samples a step, cut into 8 updates, as PPO usually has several: GRPO is raced with its
single one of the example, too. PPO needs no groups, and has each prompt twice instead of 16 times.
See examples/ppo; its package need not be installed.
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
