"""The table of random and human scores, against what was published with it."""

import csv
import hashlib
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from impala.monitoring import scores

PUBLISHED = Path(__file__).parents[1] / "data" / "atari57_impala_table_c1.csv"  # IMPALA, table C.1


def normalised(agent):
    with PUBLISHED.open() as file:
        return {row["game"]: scores.human_normalised(f"atari:{row['game']}", float(row[agent])) for row in csv.DictReader(file)}


def test_the_table_is_as_it_was_entered():
    lines = "\n".join(f"{game} {random} {human}" for game, (random, human) in sorted(scores.RANDOM_HUMAN.items()))
    assert len(scores.RANDOM_HUMAN) == 57
    assert hashlib.sha256(lines.encode()).hexdigest() == "127cb719de3fb77a3d1cbc8e06b3747d2310175f1372ae0ccafe577bd7a9f846"


@pytest.mark.parametrize("agent, median", [("impala_shallow", 0.932), ("impala_deep", 1.918), ("impala_deep_multitask", 0.597)])
def test_the_papers_medians_follow_from_the_papers_scores(agent, median):
    """Of 57 games: one wrong number near the middle would show."""
    assert set(normalised(agent)) == set(scores.RANDOM_HUMAN)
    assert scores.summary(normalised(agent))["median"] == pytest.approx(median, abs=5e-4)


@pytest.mark.parametrize("agent, iqm, capped", [("impala_shallow", 1.005, 0.587), ("impala_deep", 2.72, 0.784), ("impala_deep_multitask", 0.537, 0.518)])
def test_interquartile_and_capped_means(agent, iqm, capped):
    summary = scores.summary(normalised(agent))
    assert summary["interquartile_mean"] == pytest.approx(iqm, rel=0.02)
    assert summary["capped_mean"] == pytest.approx(capped, abs=1e-3)


def test_the_interquartile_mean_of_quarters_is_scipys():
    values = dict(enumerate(np.random.default_rng(0).normal(size=40)))
    expected = scipy.stats.trim_mean(list(values.values()), 0.25)
    assert scores.summary(values)["interquartile_mean"] == pytest.approx(expected)


def test_random_is_zero_and_human_one():
    for game, (random, human) in scores.RANDOM_HUMAN.items():
        assert scores.human_normalised(f"atari:{game}", random) == 0.0
        assert scores.human_normalised(f"atari:{game}", human) == pytest.approx(1.0)
    assert scores.human_normalised("catch", 1.0) is None
