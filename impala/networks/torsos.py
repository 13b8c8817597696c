"""Choose one torso: observations and is_first, time-major, to features [n·B, F].

| name      | layers | source |
|---|---|---|
| `mlp`     | hidden sizes of your choice, tanh | – |
| `minatar` | conv 16@3×3, dense 128 | MinAtar, Young & Tian 2019 |
| `shallow` | conv 16@8×8/4, 32@4×4/2, dense 256 | A3C, Mnih et al. 2016 |
| `nature`  | conv 32@8×8/4, 64@4×4/2, 64@3×3/1, dense 512 | DQN, Mnih et al. 2015 |
| `resnet`  | 3 × (conv 3×3, max-pool 3×3/2, 2 residual blocks) with 16, 32, 32 channels, dense 256 | IMPALA, figure 3 |

Layers start orthogonal with gain √2 (Engstrom et al. 2020 measure what that is worth to policy gradients).

How frames enter: `networks/features.py`. A torso of one's own, `package.module:name`, is called with those arguments of
`make`, and `num_stacked`, that it takes.
"""

import itertools
from collections.abc import Sequence

from impala import own
from impala.networks.atari_torso import AtariTorso
from impala.networks.features import NORMALISATIONS, Builder, Torso
from impala.networks.resnet import ResNet
from impala.networks.small_torsos import MinAtarTorso, Mlp
from impala.types import EnvironmentSpec


def make(
    name: str, environment: EnvironmentSpec, *, hidden_sizes: Sequence[int] = (), normalisation: str = "median",
    seed: int = 0, bfloat16: bool = False,
) -> Torso:  # fmt: skip
    """Makes the torso called `name` for what `environment` shows; `hidden_sizes` serve the MLP."""
    of_frames, num_stacked = NORMALISATIONS[normalisation], environment.num_stacked
    if own.is_own(name):
        options = dict(hidden_sizes=hidden_sizes, normalisation=normalisation, seed=seed, bfloat16=bfloat16)
        return own.call(own.load(name), environment=environment, num_stacked=num_stacked, **options)
    build = Builder(itertools.count(seed * 1000), "mixed_bfloat16" if bfloat16 else "float32")
    if name == "mlp":
        return Mlp(hidden_sizes, build)
    if name == "minatar":
        return MinAtarTorso(build)
    if name == "shallow":
        return AtariTorso([(16, 8, 4), (32, 4, 2)], 256, num_stacked, of_frames, build)
    if name == "nature":
        return AtariTorso([(32, 8, 4), (64, 4, 2), (64, 3, 1)], 512, num_stacked, of_frames, build)
    if name == "resnet":
        return ResNet((16, 32, 32), 256, num_stacked, of_frames, build)
    raise ValueError(f"network.torso: {name!r} is unknown; expected mlp, minatar, shallow, nature or resnet")
