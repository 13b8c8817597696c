"""What a person is shown of an environment that has no screen of its own: its observation, as a picture."""

import numpy as np

# Of a board's channels; later ones are drawn over earlier ones.
_COLOURS = np.array([
    (86, 180, 233), (230, 159, 0), (0, 158, 115), (240, 228, 66), (0, 114, 178), (213, 94, 0), (204, 121, 167),
    (255, 255, 255),
], np.uint8)  # fmt: skip


def of_observation(observation: np.ndarray) -> np.ndarray:
    """Returns an observation as RGB, uint8 [H, W, 3]: a vector is one row, a board's [H, W, C] channels are colours."""
    if observation.ndim == 3:
        picture = np.zeros((*observation.shape[:2], 3), np.uint8)
        for channel in range(observation.shape[-1]):
            picture[observation[..., channel] > 0] = _COLOURS[channel % len(_COLOURS)]
        return picture
    grey = np.atleast_2d(observation).astype(np.float32)
    low, high = min(0.0, float(grey.min())), max(1.0, float(grey.max()))
    return np.repeat((255 * (grey - low) / (high - low)).astype(np.uint8)[..., None], 3, axis=-1)
