from groupwise_testing import *  # noqa: F403
