"""The chunk, described once: shapes, zeros, sizes."""

import threading
import time

import numpy as np
import pytest

from impala.timing import TimeAccount
from impala.types import (
    ArraySpec,
    Chunk,
    Discrete,
    EnvironmentSpec,
    Origin,
    chunk_spec,
    map_fields,
    num_bytes,
    zeros,
)

ATARI = EnvironmentSpec("x", ArraySpec((84, 80), np.uint8), actions=Discrete(6), num_stacked=4, frames_per_step=4)
FLAT = EnvironmentSpec("y", ArraySpec((3,), np.float32), actions=Discrete(2))


def test_chunk_spec_of_stacked_frames():
    """The table of DESIGN.md, section 4, for T = 20: T+1 observations, T of the rest, k−1 older planes."""
    assert chunk_spec(ATARI, 20)._asdict() == dict(
        observation=((24, 84, 80), np.uint8),
        is_first=((21,), np.bool_),
        previous_action=((), np.int32),
        previous_reward=((), np.float32),
        a_tm1=((20,), np.int32),
        logits_tm1=((20, 6), np.float32),
        r_t=((20,), np.float32),
        discount_t=((20,), np.float32),
        weights_version=((), np.int64),
        origin=((6,), np.int64),
        v_behaviour_tm1=((20,), np.float32),
        core_state=(),
        is_replayed=(),
        importance=(),
    )


def test_chunk_spec_without_stacking_has_one_observation_more_than_actions():
    spec = chunk_spec(FLAT, 7)
    assert spec.observation == ((8, 3), np.float32)
    assert spec.a_tm1.shape == (7,) and spec.logits_tm1.shape == (7, 2)


@pytest.mark.parametrize("environment", [ATARI, FLAT], ids=["stacked", "flat"])
@pytest.mark.parametrize("length", [1, 5])
def test_zeros_have_the_shapes_and_dtypes_of_the_spec(environment, length):
    spec = chunk_spec(environment, length)
    chunk = zeros(spec)
    assert chunk.core_state == () and chunk.is_replayed == ()
    for name in set(Chunk._fields) - {"core_state", "is_replayed", "importance"}:
        array, expected = getattr(chunk, name), getattr(spec, name)
        assert isinstance(array, np.ndarray) and not array.any(), name
        assert (array.shape, array.dtype) == (expected.shape, expected.dtype), name


def test_num_bytes_by_hand():
    frames, is_first = 24 * 84 * 80, 21
    scalars = 4 + 4 + 8  # previous action, previous reward, weights version
    assert num_bytes(chunk_spec(ATARI, 20)) == frames + is_first + scalars + 20 * 4 * (1 + 6 + 1 + 1 + 1) + 6 * 8


def test_what_a_chunk_has_no_field_for_is_not_kept():
    for name in ("q_tm1", "importance"):
        with pytest.raises(ValueError, match=f"kept: {name}; expected logits_tm1 or v_behaviour_tm1"):
            chunk_spec(FLAT, 2, kept={name: ArraySpec((), np.float32)})
    assert chunk_spec(FLAT, 2, kept={}).logits_tm1 == ()


def test_map_fields_zips_chunks_and_passes_empty_fields_by():
    spec = chunk_spec(FLAT, 2)
    ones = map_fields(np.ones_like, zeros(spec))
    total = map_fields(lambda x, y: x + y, ones, ones)
    assert isinstance(total, Chunk) and total.core_state == ()
    assert all((array == (True if array.dtype == bool else 2)).all() for array in total if not isinstance(array, tuple))
    recurrent = ones._replace(core_state=np.full(3, 5.0))
    assert map_fields(lambda x: -x if x.dtype != bool else x, recurrent).core_state.tolist() == [-5.0] * 3


def test_origin_names_the_columns_of_its_vector():
    assert Origin._fields == ("run", "actor", "environment", "incarnation", "seq", "task")
    assert chunk_spec(FLAT, 1).origin.shape == (len(Origin._fields),)


def test_time_account_shares_out_the_time_since_the_last_call():
    account = TimeAccount()
    for _ in range(2):
        with account.part("sleep"):
            time.sleep(0.05)
    time.sleep(0.05)
    shares = account.fractions()
    assert list(shares) == ["sleep"] and 0.3 < shares["sleep"] < 0.95
    assert account.fractions() == {}  # starts anew
    with pytest.raises(KeyError), account.part("failing"):  # what raises is accounted for too
        raise KeyError
    assert "failing" in account.fractions()


def test_a_part_that_goes_on_counts_up_to_the_moment_of_asking():
    """Otherwise the share of a long part would be 0 at first, and more than 1 the next time."""
    account = TimeAccount()
    with account.part("long"):
        time.sleep(0.1)
        asked = []
        asking = threading.Thread(target=lambda: asked.append(account.fraction("long")))
        asking.start()
        asking.join()
    assert 0.9 < asked[0] <= 1.0
    assert 0.0 < account.fraction("long") <= 1.0
