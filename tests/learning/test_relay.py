import threading
import time

import numpy as np
import pytest

from impala.learning.relay import Relay
from impala.learning.weights import Publisher
from impala.types import Weights


class Learner:
    """Counts how often its weights are asked for, and how often it has to send them."""

    def __init__(self, seconds=0.0):
        self.version, self.num_asked, self.num_sent, self._seconds = 0, 0, 0, seconds
        self.at_once = self.most_at_once = 0

    def get_weights(self, newer_than):
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        version = self.version
        time.sleep(self._seconds)
        self.num_asked += 1
        self.num_sent += version > newer_than
        self.at_once -= 1
        return version, [np.full(2, version)] if version > newer_than else []


def test_its_answers_are_the_learners():
    learner = Publisher(lambda: Weights(version, [np.full(2, version)]))
    relay = Relay(learner.get)
    for version in (0, 1, 5):
        with learner.updating():
            pass
        for newer_than in (-1, version - 1, version, version + 1):
            expected, got = learner.get(newer_than), relay.get(newer_than)
            assert got[0] == expected[0] == version and len(got[1]) == len(expected[1]) == (newer_than < version)
            for one, same in zip(got[1], expected[1]):
                np.testing.assert_array_equal(one, same)


def test_each_version_is_sent_once_and_one_request_is_under_way():
    learner = Learner(seconds=0.05)
    relay, got = Relay(learner.get_weights), []

    def actor():
        for _ in range(5):
            got.append(relay.get(-1))

    threads = [threading.Thread(target=actor) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert learner.num_sent == 1 and learner.most_at_once == 1 and len(got) == 250
    assert 5 <= learner.num_asked <= 12, "whoever asks meanwhile shares the next answer"
    assert all(version == 0 and len(arrays) == 1 for version, arrays in got)


def test_an_answer_is_no_older_than_the_question():
    """Whoever asks while a request is under way waits for one that begins later."""
    learner = Learner(seconds=0.2)
    relay = Relay(learner.get_weights)
    early = threading.Thread(target=relay.get, args=[-1])
    early.start()
    time.sleep(0.1)
    learner.version = 1  # after the first request has read version 0
    assert relay.get(-1)[0] == 1
    early.join()


def test_a_request_that_fails_is_the_askers_alone():
    faults = [ConnectionError("no learner"), ConnectionError("no learner yet")]

    def request(newer_than):
        time.sleep(0.1)
        if faults:
            raise faults.pop()
        return 3, [np.zeros(1)]

    relay, got = Relay(request), []

    def actor():
        time.sleep(0.05)
        try:
            got.append(relay.get(-1))
        except ConnectionError as error:
            got.append(error)

    waiting = [threading.Thread(target=actor) for _ in range(3)]
    for thread in waiting:
        thread.start()
    with pytest.raises(ConnectionError, match="no learner yet"):
        relay.get(-1)
    for thread in waiting:
        thread.join(5)
    failed = [str(each) for each in got if isinstance(each, ConnectionError)]
    answered = [each for each in got if not isinstance(each, ConnectionError)]
    assert failed == ["no learner"] and [(version, len(arrays)) for version, arrays in answered] == 2 * [(3, 1)]
    assert relay.get(3) == (3, [])
