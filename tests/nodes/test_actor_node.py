"""The actor's reports, against a learner whose replies can be lost."""

import concurrent.futures
import threading
from types import SimpleNamespace

from impala.nodes.head import Head
from impala.nodes.reporter import Reporter
from impala.types import Episode


class Link:
    """Delivers every report to a learner; loses the reply, or the request, when told to."""

    def __init__(self):
        self.loses, self.episodes, self.shares = None, [], []
        monitor = SimpleNamespace(add_actor_report=self._add)
        self._learner = SimpleNamespace(_reports={}, _reporting=threading.Lock(), monitor=monitor)
        self.futures = self

    def _add(self, shares, episodes):
        self.episodes += episodes
        self.shares.append(shares)

    def report(self, *arguments):
        future = concurrent.futures.Future()
        if self.loses != "request":
            Head.report(self._learner, *arguments)
        if self.loses:
            future.set_exception(TimeoutError())
        else:
            future.set_result(None)
        return future


def episode(number):
    return Episode(*[number] * len(Episode._fields))


def test_every_episode_arrives_once_whatever_is_lost():
    for losses in ([], ["reply"], ["request"], ["reply", "reply", "request"], ["request", "reply"]):
        link = Link()
        reporter = Reporter(link, 0, period_seconds=0.0)
        told = iter(range(100))
        for loss in [*losses, None, None, "reply", None]:
            link.loses = loss
            reporter.add([episode(next(told)), episode(next(told))])
            assert reporter.is_due()
            reporter.send({"environment": 1.0})
        link.loses = None
        reporter.send({})
        assert [e.score for e in link.episodes] == list(range(next(told))), losses


def test_reports_of_an_actor_that_was_started_again_are_no_repetitions():
    link = Link()
    for incarnation in (1, 2):
        reporter = Reporter(link, 0, incarnation, period_seconds=0.0)
        for score in (1, 2):
            reporter.add([episode(10 * incarnation + score)])
            reporter.send({})
    assert [e.score for e in link.episodes] == [11, 12, 21, 22]


def test_nothing_is_sent_while_a_report_is_on_its_way():
    link = Link()
    reporter = Reporter(link, 0, period_seconds=0.0)
    link.report = lambda *_: concurrent.futures.Future()
    reporter.send({})
    assert not reporter.is_due()
