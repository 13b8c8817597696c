"""What an actor has whose network is elsewhere: it waits, hears the stop, asks again, and hands in unrolls."""

import concurrent.futures
import threading
import time

import numpy as np
import pytest

from impala.acting import actors, behaviours, chunks, policies, remote
from impala.nodes import parts
from impala.types import Discrete, Origin
from tests.acting import scripted

T = 4


def make_unroll():
    environment, unrolls = scripted.Scripted([[(3, "terminated")]] * 2), []
    spec, origin = environment.spec, Origin(0, 0, 0, 0, 0)
    logits = np.zeros((2, spec.actions.num_parameters), np.float32)
    policy = policies.FeedForwardPolicy(lambda *inputs: (logits, np.zeros(2, np.float32)), spec, 2, seed=0)
    writer = chunks.UnrollWriter(spec, 2, unroll_length=T, origin=origin, sink=unrolls.append)
    loop = actors.Actor(environment, policy, writer, lambda: 0, unroll_length=T).steps(0)
    while not unrolls:
        next(loop)
    return unrolls[0]


def done(result):
    future = concurrent.futures.Future()
    future.set_result(result)
    return future


def test_a_client_numbers_its_requests_and_asks_before_it_needs_the_answer():
    asked = []

    def method(*arguments):
        asked.append(arguments)
        return done((np.array([1]), np.array([7])))

    client = remote.Client(remote.over_rpc(method))
    environment = scripted.Scripted([[(3, "terminated")]])
    step = environment.reset(0)
    for number in range(3):
        client.observe(step)
        assert len(asked) == number + 1 and asked[-1][0] == number and len(asked[-1]) == 6
        decision = client.decide()
        assert isinstance(decision, policies.Decision) and decision.version == 7 and decision.kept == ()


@pytest.mark.parametrize("ask", ["client", "network", "sink"])
def test_who_waits_hears_the_stop(ask):
    stop, never = threading.Event(), concurrent.futures.Future()
    request = remote.over_rpc(lambda *arguments: never)
    threading.Timer(0.3, stop.set).start()
    started = time.monotonic()
    with pytest.raises(remote.Stopped):
        if ask == "client":
            client = remote.Client(request, should_stop=stop.is_set)
            client.observe(scripted.Scripted([[(3, "terminated")]]).reset(0))
            client.decide()
        elif ask == "network":
            remote.Network(request, should_stop=stop.is_set)(np.zeros(1))
        else:
            sink = remote.Sink(request, should_stop=stop.is_set)
            sink([])
            sink([])
    assert 0.2 < time.monotonic() - started < 2.0


def test_a_network_that_says_nothing_is_asked_again():
    answers = [(), (), (np.ones((1, 2)), np.zeros(1))]
    network = remote.Network(remote.over_rpc(lambda x: done(answers.pop(0))))
    logits, value = network(np.zeros(1))
    assert logits.sum() == 2 and not answers
    stop = threading.Event()
    stop.set()
    with pytest.raises(remote.Stopped):
        remote.Network(remote.over_rpc(lambda x: done(())), should_stop=stop.is_set)(np.zeros(1))


def test_a_sink_has_one_unroll_on_its_way_and_is_held_back_by_the_next():
    futures = []

    def method(chunks):
        futures.append((chunks, concurrent.futures.Future()))
        return futures[-1][1]

    sink = remote.Sink(remote.over_rpc(method))
    unroll = make_unroll()
    sink(unroll)
    assert len(futures) == 1 and [type(chunk) for chunk in futures[0][0]] == [tuple] * len(unroll)
    sink.blocked_fraction()
    threading.Timer(0.3, lambda: futures[0][1].set_result(None)).start()
    sink(unroll)
    assert len(futures) == 2 and sink.blocked_fraction() > 0.5


def test_what_is_not_finite_is_not_handed_in():
    unroll = make_unroll()
    unroll[0].r_t[T // 2] = np.nan
    sink = remote.Sink(remote.over_rpc(lambda chunks: pytest.fail("it was sent")))
    with pytest.raises(ValueError, match="r_t holds a value that is not finite"):
        sink(unroll)


def test_what_the_other_side_raised_is_raised():
    future = concurrent.futures.Future()
    future.set_exception(FloatingPointError("there"))
    with pytest.raises(FloatingPointError, match="there"):
        remote.Network(remote.over_rpc(lambda x: future))(np.zeros(1))


@pytest.mark.parametrize("core", [None, (2, 8)])
def test_fields_are_those_of_real_steps_decisions_and_outputs(core):
    environment = scripted.Scripted([[(3, "terminated")]] * 2, shape=(2,), num_stacked=3)
    spec, step = environment.spec, environment.reset(0)
    asked = []

    def outputs(*inputs):
        asked.append(inputs)
        state = [inputs[4]] if core else []
        version = np.zeros(2, np.int64)
        return np.zeros((2, spec.actions.num_parameters), np.float32), np.zeros(2, np.float32), *state, version

    behaviour = behaviours.sampled(spec.actions, core_state_shape=core)
    policy = parts.make_policy(outputs, spec, 2, seed=0, behaviour=behaviour)
    policy.observe(step)
    decision = policy.decide()
    steps, decisions = remote.decision_fields(spec, 2)
    inputs, results = remote.network_fields(spec, 2, behaviour)
    told = (decision.action, decision.version)
    for arrays, fields in ((step, steps), (told, decisions), (asked[0], inputs), (outputs(*asked[0]), results)):
        assert [(a.shape, a.dtype) for a in arrays] == [(tuple(shape), np.dtype(dtype)) for shape, dtype in fields]
    assert isinstance(spec.actions, Discrete)
