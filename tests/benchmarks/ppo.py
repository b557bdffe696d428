"""A critic or none: GRPO, PPO and Hybrid GRPO on examples/arithmetic.yaml, as many samples each.

    python tests/benchmarks/ppo.py --seeds 0 1 2 --jobs 16 --out runs/ppo

PPO needs no groups, and has each prompt twice, the least that a run takes, where GRPO has it 16
times; both are raced in both forms. See examples/ppo; its package need not be installed.
"""

import os

from race import ROOT, Race, main

GROUPS_OF_TWO = ["train.groups_per_step=128", "train.group_size=2"]
CRITIC = ["policy.name=groupwise_ppo.policy:LanguageModelWithCritic", "policy.critic_rate=10"]
PPO = [*CRITIC, "algorithm.name=groupwise_ppo.ppo:PPO"]

if __name__ == "__main__":
    paths = [str(ROOT / "examples" / "ppo" / "src"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    main(
        Race(
            config=ROOT / "examples" / "arithmetic.yaml",
            variants={
                "grpo": [],
                "grpo, groups of 2": GROUPS_OF_TWO,
                "ppo": PPO,
                "ppo, groups of 2": [*PPO, *GROUPS_OF_TWO],
                "hybrid_grpo": [*CRITIC, "algorithm.name=groupwise_ppo.hybrid:HybridGRPO"],
            },
            goal=0.85,
        )
    )
