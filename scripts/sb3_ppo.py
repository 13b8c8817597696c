#!/usr/bin/env python
"""Prints the frames per second of Stable-Baselines3's PPO on Pong, as JSON; `scripts/compare_ppo.py` runs it.

Its settings are those of configs/ppo_baselines.yaml. Whole iterations are counted, from the end of the first.
"""

import argparse
import json
import time

import ale_py
import gymnasium
import stable_baselines3
import torch
from stable_baselines3.common import atari_wrappers, callbacks, env_util, vec_env

KINDS = {"one": vec_env.DummyVecEnv, "each": vec_env.SubprocVecEnv}


class Rate(callbacks.BaseCallback):
    """Ends the training once iterations of `seconds` in all are counted."""

    def __init__(self, seconds: float):
        super().__init__()
        self.needed, self.began, self.seconds, self.steps = seconds, None, 0.0, 0

    def _on_rollout_start(self) -> None:
        if self.num_timesteps:
            now = time.monotonic()
            self.began = self.began or (now, self.num_timesteps)
            self.seconds, self.steps = now - self.began[0], self.num_timesteps - self.began[1]

    def _on_step(self) -> bool:
        return self.seconds < self.needed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("processes", choices=KINDS, help="the environments' processes")
    parser.add_argument("seconds", type=float)
    options = parser.parse_args()
    gymnasium.register_envs(ale_py)
    environment = env_util.make_vec_env(
        "ALE/Pong-v5", 8, env_kwargs=dict(frameskip=1, repeat_action_probability=0.0, full_action_space=False),
        wrapper_class=atari_wrappers.AtariWrapper, vec_env_cls=KINDS[options.processes],
    )  # fmt: skip
    ppo = stable_baselines3.PPO(
        "CnnPolicy", vec_env.VecFrameStack(environment, 4), learning_rate=2.5e-4, n_steps=128, batch_size=256,
        n_epochs=4, gae_lambda=0.95, clip_range=0.1, clip_range_vf=0.1, ent_coef=0.01, vf_coef=0.5, max_grad_norm=0.5,
    )  # fmt: skip
    rate = Rate(options.seconds)
    ppo.learn(10**8, callback=rate)
    environment.close()
    versions = f"stable-baselines3 {stable_baselines3.__version__}, torch {torch.__version__}"
    print(json.dumps(dict(versions=versions, frames_per_second=4 * rate.steps / rate.seconds)))


if __name__ == "__main__":
    main()
