"""PPO and Hybrid GRPO: a language model with a critic, trained by Groupwise."""
