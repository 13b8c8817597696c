"""An environment whose every number can be foretold, so that chunk streams can be written down by hand."""

import numpy as np

from impala.types import ArraySpec, Discrete, EnvironmentSpec, Step


class Scripted:
    """Plays given episodes again and again; a frame's pixels tell which episode and what time it is.

    It shares no code with `environments.boundaries`: what it says is what the rest must agree with.

    Args:
      scripts: of each environment, [(number of steps, "terminated" | "truncated" | "both"), …].
      num_stacked: k of the spec.
      shape: of a frame, uint8; shape=() makes one number of it.
      actions: of the spec, by default Discrete(3); they change nothing.
      lives_lost: {(episode, time)} at which the discount is 0 in the midst of an episode.
    """

    def __init__(self, scripts, *, num_stacked=4, shape=(2, 2), actions=None, lives_lost=(), frames_per_step=1):
        self.spec = EnvironmentSpec("scripted", ArraySpec(shape, np.uint8), actions or Discrete(3), num_stacked, frames_per_step)
        self.num_environments = len(scripts)
        self.num_sent, self.actions = 0, []
        self._scripts, self._lives_lost = scripts, set(lives_lost)

    def reset(self, seed):
        del seed
        self._episode, self._time = np.zeros(self.num_environments, int), np.zeros(self.num_environments, int)
        n = self.num_environments
        return Step(self._observe(), np.zeros(n, "f4"), np.ones(n, "f4"), np.ones(n, bool), np.zeros(n, bool))

    def send(self, action):
        self.num_sent += 1
        self.actions.append(np.array(action))

    def receive(self):
        rows = [self._advance(n) for n in range(self.num_environments)]
        reward, discount, is_first, is_last = map(np.array, zip(*rows))
        return Step(self._observe(), reward.astype("f4"), discount.astype("f4"), is_first, is_last)

    def close(self):
        pass

    def _advance(self, n):
        length, _ = self._script(n)
        if self._time[n] == length:  # the episode is over: this step resets
            self._episode[n] += 1
            self._time[n] = 0
            return 0.0, 1.0, True, False
        self._time[n] += 1
        is_last = bool(self._time[n] == length)
        episode, time = int(self._episode[n]), int(self._time[n])
        ends = is_last and self._script(n)[1] != "truncated"
        discount = 0.0 if ends or (episode, time) in self._lives_lost else 1.0
        return reward(n, episode, time), discount, False, is_last

    def _script(self, n):
        return self._scripts[n][self._episode[n] % len(self._scripts[n])]

    def _observe(self):
        pixels = [pixel(n, e, t) for n, (e, t) in enumerate(zip(self._episode, self._time))]
        return np.array([np.full(self.spec.observation.shape, p, np.uint8) for p in pixels])


def pixel(n, episode, time):
    """Of environment n; never 0, which is what a plane before its episode holds."""
    return (1 + 7 * n + 20 * episode + time) % 255 + 1


def reward(n, episode, time):
    """What the step to `time` brings; beyond [−1, 1], so that a clipped one would show."""
    return 100.0 * n + 10.0 * episode + time + 0.5


class Recording:
    """A `Logits` that prefers action (calls so far + 1) mod A and keeps what it was shown."""

    def __init__(self, num_actions):
        self._num_actions = num_actions
        self.windows, self.is_first, self.logits, self.values = [], [], [], []

    def __call__(self, window, is_first):
        self.windows.append(window.copy())
        self.is_first.append(is_first.copy())
        logits = np.tile(np.arange(self._num_actions, dtype=np.float32) / 10, (window.shape[1], 1))
        logits[:, (len(self.logits) + 1) % self._num_actions] += 50.0
        logits += np.arange(window.shape[1], dtype=np.float32)[:, None] / 100  # no environment has another's logits
        self.logits.append(logits)
        self.values.append(len(self.logits) + np.arange(window.shape[1], dtype=np.float32) / 10)
        return logits, self.values[-1]
