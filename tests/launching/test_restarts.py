"""Who may come back, after how long, and when it is enough."""

from impala.launching.restarts import COLUMNS, Restarts


def make(max_in_a_row=4, max_per_hour=60, **how):
    return Restarts(max_in_a_row=max_in_a_row, max_per_hour=max_per_hour, **how)


def test_young_deaths_in_a_row_wait_twice_as_long_each_and_then_end_the_run():
    restarts = make(max_in_a_row=8)
    waits = [restarts.decide("actor/0", lived_seconds=10, now=100.0 * n).seconds for n in range(8)]
    for wait, expected in zip(waits, [1, 2, 4, 8, 10, 10, 10, 10], strict=True):
        assert 0.8 * expected <= wait <= 1.2 * expected
    verdict = restarts.decide("actor/0", lived_seconds=10, now=900.0)
    assert verdict.seconds is None and "actor/0 died 9 times in a row, the last time within 60 s" in verdict.reason
    assert not verdict.is_spent and restarts.count == 8


def test_a_long_life_makes_up_for_young_deaths_and_others_are_not_counted():
    restarts = make(max_in_a_row=1)
    assert restarts.decide("actor/0", lived_seconds=1, now=0.0).seconds
    assert restarts.decide("actor/1", lived_seconds=1, now=0.0).seconds
    assert restarts.decide("actor/0", lived_seconds=61, now=100.0).seconds < 1.3
    assert restarts.decide("actor/0", lived_seconds=1, now=101.0).seconds is None


def test_however_many_deaths_in_a_row_the_wait_is_a_number():
    restarts = Restarts(max_in_a_row=10**6, max_per_hour=10**6)
    for number in range(2_000):
        verdict = restarts.decide("actor/0", lived_seconds=1, now=10.0 * number)
    assert 5.0 < verdict.seconds < 20.0


def test_a_learner_that_was_never_heard_has_not_gone_back():
    restarts = make(max_in_a_row=2)
    for progress in (10, 0, 10):
        verdict = restarts.decide("learner/0", lived_seconds=600, progress=progress, now=0.0)
    assert verdict.seconds is None


def test_a_learner_without_a_checkpoint_since_has_lived_for_nothing():
    restarts = make(max_in_a_row=2)
    decide = lambda progress: restarts.decide("learner/0", lived_seconds=600, progress=progress, now=0.0)  # noqa: E731
    assert decide(10).seconds and decide(10).seconds and decide(20).seconds and decide(20).seconds
    verdict = decide(20)
    assert verdict.seconds is None and "without a checkpoint in between" in verdict.reason


def test_the_budget_is_of_the_last_hour_and_of_all():
    restarts = make(max_per_hour=2)
    assert restarts.decide("actor/0", lived_seconds=100, now=0.0).seconds
    assert restarts.decide("actor/1", lived_seconds=100, now=1000.0).seconds
    verdict = restarts.decide("actor/2", lived_seconds=100, now=3599.0)
    assert verdict.is_spent and verdict.seconds is None and "2 restarts within an hour" in verdict.reason
    assert restarts.decide("actor/2", lived_seconds=100, now=3601.0).seconds


def test_nodes_of_a_lost_host_count_once():
    restarts = make(max_per_hour=2)
    for lost_at in (0.0, 100.0):  # the second one spends the budget, and is not refused half way
        for actor in range(40):
            assert restarts.decide(f"actor/{actor}", lived_seconds=100, now=lost_at + 0.1 * actor).seconds
    assert restarts.decide("actor/0", lived_seconds=100, now=200.0).is_spent and restarts.count == 80


def test_a_host_that_is_lost_again_and_again_says_nothing_of_its_nodes():
    restarts = make(max_in_a_row=1, max_per_hour=4)
    lose = lambda at: restarts.decide("actor/0", lived_seconds=5, now=at, lost_host=True)  # noqa: E731
    assert lose(0.0).seconds < 1.3 and lose(10.0).seconds < 1.3
    assert restarts.decide("actor/0", lived_seconds=5, now=20.0).seconds, "its first death of its own"
    assert lose(30.0).seconds
    assert lose(40.0).is_spent, "but there are as many an hour as were allowed"
    assert make(max_in_a_row=0).decide("actor/0", lived_seconds=5, now=0.0, lost_host=True).seconds is None


def test_a_long_life_that_ends_with_its_host_makes_up_for_young_deaths():
    restarts = make(max_in_a_row=1)
    assert restarts.decide("actor/0", lived_seconds=5, now=0.0).seconds
    assert restarts.decide("actor/0", lived_seconds=36_000, now=10.0, lost_host=True).seconds < 1.3
    assert restarts.decide("actor/0", lived_seconds=5, now=20.0).seconds
    assert restarts.decide("actor/0", lived_seconds=5, now=30.0).seconds is None


def test_none_at_all_is_said_without_a_word():
    assert make(max_in_a_row=0).decide("actor/0", lived_seconds=1e6, now=0.0) == (None, "", False)


def test_each_is_a_row_and_a_disk_that_takes_none_costs_the_row():
    row, written = dict(node="actor/0", cause="ended with signal 9", lived_seconds=1.5, updates=3, frames=40), []
    for lost in (0, 5):
        make(write=written.extend).keep(**row, lost_frames=lost)
    assert [tuple(each) for each in written] == 2 * [COLUMNS] and written[1].items() >= dict(row, lost_frames=5).items()

    def fail(rows):
        raise OSError("No space left on device")

    restarts = make(write=fail)
    restarts.keep(**row, lost_frames=30)
    restarts.keep(**row, lost_frames=12)
    assert restarts.lost_frames == 42, "counted whatever the disk does"
