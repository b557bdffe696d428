"""Registers this package's plugins as `module:attribute`, so nothing heavy is imported."""

from groupwise import hookimpl
from groupwise.hookspecs import Register


@hookimpl
def register_rewards(register: Register) -> None:
    """Registers every reward of this package under its name in a configuration."""
    here = "groupwise_clip"
    register("clip_similarity", f"{here}.similarity:ClipSimilarity", extra="clip")
    register("aesthetic", f"{here}.aesthetic:Aesthetic", extra="clip")
    register("learned_image", f"{here}.learned:LearnedImage", extra="clip")
    register("preference", f"{here}.preference:Preference", extra="clip")
    register("image_reward", f"{here}.image_reward:ImageReward", extra="clip")
    register("hps_v3", f"{here}.hps_v3:HpsV3", extra="clip")
    register("frame_consistency", f"{here}.frame_consistency:FrameConsistency", extra="clip")
    register("video_reward", f"{here}.video_reward:VideoReward", extra="clip")
