from groupwise_testing import (
    Law as Law,
)
from groupwise_testing import (
    check_adapter as check_adapter,
)
from groupwise_testing import (
    check_algorithm as check_algorithm,
)
from groupwise_testing import (
    check_environment as check_environment,
)
from groupwise_testing import (
    check_policy as check_policy,
)
from groupwise_testing import (
    check_reward as check_reward,
)
from groupwise_testing import (
    check_sampler as check_sampler,
)
from groupwise_testing import (
    compare as compare,
)
from groupwise_testing import (
    hold as hold,
)
from groupwise_testing import (
    law as law,
)
from groupwise_testing import (
    play_episodes as play_episodes,
)
from groupwise_testing import (
    updater_of as updater_of,
)
