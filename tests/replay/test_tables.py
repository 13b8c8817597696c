"""The queue on a real Reverb server: its signature, its order, its bounds."""

import numpy as np
import pytest
import reverb
import tensorflow as tf

from impala.replay import table_info, tables
from impala.types import ArraySpec, Chunk, Discrete, EnvironmentSpec, chunk_spec, map_fields, num_bytes, zeros

SPECS = {
    "frames": chunk_spec(EnvironmentSpec("x", ArraySpec((84, 84), np.uint8), actions=Discrete(6), num_stacked=4), 20),
    "numbers": chunk_spec(EnvironmentSpec("y", ArraySpec((4,), np.float32), actions=Discrete(2)), 5),
}
# All fields but the state of a recurrent network, and what the dataset adds.
WRITTEN = [name for name in Chunk._fields if name not in ("core_state", "is_replayed", "importance")]


@pytest.fixture(params=SPECS)
def spec(request):
    return SPECS[request.param]


@pytest.fixture
def client(spec):
    server = reverb.Server([tables.queue(spec, 8)], port=None)
    yield reverb.Client(f"localhost:{server.port}")
    server.stop()


def numbered(spec, number):
    return map_fields(lambda array: np.full(array.shape, number, array.dtype), zeros(spec))


def write(client, chunks, timeout_ms=10_000):
    writer = client.trajectory_writer(num_keep_alive_refs=1)
    for chunk in chunks:
        writer.append({name: value for name, value in chunk._asdict().items() if name in WRITTEN})
        writer.create_item(tables.QUEUE, 1.0, {name: column[-1] for name, column in writer.history.items()})
    writer.flush(timeout_ms=timeout_ms)
    writer.close()


def test_signature_is_the_chunk_spec(spec):
    signature = tables.signature(spec)
    assert list(signature) == WRITTEN
    for name, tensor_spec in signature.items():
        field = getattr(spec, name)
        assert (tuple(tensor_spec.shape), tensor_spec.dtype, tensor_spec.name) == (
            field.shape, tf.as_dtype(field.dtype), name,
        )  # fmt: skip


def test_a_recurrent_state_is_a_column_too():
    spec = SPECS["numbers"]._replace(core_state=ArraySpec((2, 16), np.float32))
    assert tables.signature(spec)["core_state"].shape == (2, 16)


def test_reverb_takes_chunks_of_the_signature_and_gives_them_back(spec, client):
    write(client, [numbered(spec, 1)])
    (sample,) = client.sample(tables.QUEUE, 1, emit_timesteps=False, unpack_as_table_signature=True)
    for name, expected in numbered(spec, 1)._asdict().items():
        if name in WRITTEN:
            np.testing.assert_array_equal(sample.data[name], expected)
            assert sample.data[name].dtype == expected.dtype and sample.data[name].shape == expected.shape, name


@pytest.mark.parametrize("field", ["a_tm1", "observation", "origin"])
def test_reverb_refuses_another_dtype_or_shape(spec, client, field):
    array = getattr(numbered(spec, 1), field)
    for bad in (array.astype(np.float64), array[1:]):
        with pytest.raises(ValueError):
            write(client, [numbered(spec, 1)._replace(**{field: bad})])
    assert client.server_info(timeout=10)[tables.QUEUE].current_size == 0


def test_first_in_first_out_and_each_once(spec, client):
    write(client, [numbered(spec, n) for n in range(8)])
    samples = client.sample(tables.QUEUE, 8, emit_timesteps=False, unpack_as_table_signature=True)
    assert [int(sample.data["weights_version"]) for sample in samples] == list(range(8))
    assert client.server_info(timeout=10)[tables.QUEUE].current_size == 0


def test_a_full_queue_takes_no_more(spec, client):
    with pytest.raises(reverb.errors.DeadlineExceededError):
        write(client, [numbered(spec, n) for n in range(9)], timeout_ms=500)
    info = client.server_info(timeout=10)[tables.QUEUE]
    assert (info.current_size, info.max_size, info.max_times_sampled) == (8, 8, 1)


def test_num_bytes_is_what_a_chunk_holds(spec):
    assert num_bytes(spec) == sum(np.asarray(getattr(numbered(spec, 1), name)).nbytes for name in WRITTEN)


def serve(table):
    server = reverb.Server([table], port=None)
    return server, reverb.Client(f"localhost:{server.port}")


def versions(client, count):
    samples = client.sample(tables.QUEUE, count, emit_timesteps=False, unpack_as_table_signature=True)
    return [int(sample.data["weights_version"]) for sample in samples]


def test_uniform_once_gives_each_once_in_another_order_and_takes_no_more_when_full():
    spec = SPECS["numbers"]
    server, client = serve(tables.uniform_once(spec, 64))
    write(client, [numbered(spec, n) for n in range(64)])
    with pytest.raises(reverb.errors.DeadlineExceededError):
        write(client, [numbered(spec, 100)], timeout_ms=500)
    drawn = versions(client, 65)  # what was held back comes in as soon as there is room
    assert sorted(drawn) == [*range(64), 100] != drawn
    server.stop()


def test_drop_oldest_keeps_the_newest_in_order_and_holds_nobody_back():
    spec = SPECS["numbers"]
    server, client = serve(tables.drop_oldest(spec, 8))
    write(client, [numbered(spec, n) for n in range(30)])
    assert versions(client, 8) == list(range(22, 30))
    assert client.server_info(timeout=10)[tables.QUEUE].current_size == 0
    server.stop()


@pytest.mark.parametrize("kind", tables.FRESH)
def test_whether_writers_are_held_up(kind):
    """By the rate limiter's own numbers: at every fill, and again after chunks were taken out."""
    spec = SPECS["numbers"]
    server, client = serve(tables.FRESH[kind](spec, 8))
    found = []
    for count in (0, 5, 2, 1):
        write(client, [numbered(spec, n) for n in range(count)])
        found.append(table_info.holds_up_writers(table_info.info_of(client, tables.QUEUE)))
    assert found == [False, False, False, kind != "drop_oldest"], "with 0, 5, 7 and 8 of 8"
    if kind != "drop_oldest":
        with pytest.raises(reverb.errors.DeadlineExceededError):
            write(client, [numbered(spec, 9)], timeout_ms=200)
    versions(client, 2)
    assert not table_info.holds_up_writers(table_info.info_of(client, tables.QUEUE))
    assert not table_info.holds_up_writers(None)
    server.stop()
