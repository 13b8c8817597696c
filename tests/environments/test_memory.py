"""The tasks that need memory."""

import numpy as np

from impala import environments


def test_the_bit_is_shown_once_and_its_answer_counts_at_the_end_alone():
    chain = environments.make("memory_chain", num_environments=4)
    step = chain.reset(3)
    bits = step.observation[:, 2]
    assert set(np.abs(bits)) == {1.0} and set(bits) == {-1.0, 1.0} and (step.observation[:, 0] == 1).all()
    total = np.zeros(4)
    for t in range(1, 11):
        right = (bits > 0).astype(np.int32)
        chain.send(right if t == 10 else 1 - right)
        step = chain.receive()
        total += step.reward
        np.testing.assert_allclose(step.observation[:, 0], 1 - t / 10, atol=1e-6)
        assert (step.observation[:, 1] == (t == 9)).all() and not step.observation[:, 2].any()
        assert (step.is_last == (t == 10)).all() and (step.discount == (t != 10)).all()
    np.testing.assert_array_equal(total, np.ones(4))
    chain.send(np.zeros(4, np.int32))
    step = chain.receive()
    assert step.is_first.all() and set(np.abs(step.observation[:, 2])) == {1.0}


def test_a_wrong_answer_costs():
    chain = environments.make("memory_chain", num_environments=2)
    bits = chain.reset(0).observation[:, 2]
    for _ in range(10):
        chain.send((bits < 0).astype(np.int32))
        step = chain.receive()
    np.testing.assert_array_equal(step.reward, [-1, -1])


def test_the_cart_shows_where_it_is_and_not_how_fast():
    cart, whole = (environments.make(name, num_environments=3) for name in ("stateless_cartpole", "CartPole-v1"))
    step, expected = cart.reset(5), whole.reset(5)
    for t in range(30):
        np.testing.assert_array_equal(step.observation, expected.observation[:, [0, 2]])
        np.testing.assert_array_equal(step.reward, expected.reward)
        np.testing.assert_array_equal(step.is_last, expected.is_last)
        for one in (cart, whole):
            one.send(np.full(3, t % 2, np.int32))
        step, expected = cart.receive(), whole.receive()
    assert cart.spec.observation.shape == (2,) and cart.spec.name == "stateless_cartpole"
    cart.close(), whole.close()
