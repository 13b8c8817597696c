"""A full table's memory, estimated from a table that grows."""

import pytest

from impala.replay.estimates import MemoryEstimate


def test_a_line_through_two_looks():
    memory = MemoryEstimate(10_000)
    for num_chunks, resident_mb in ((100, 210.0), (300, 230.0), (499, 250.0)):
        memory.look(num_chunks, resident_mb)
        assert memory.is_open and memory.full_mb is None
    memory.look(600, 260.0)  # 50 MB for 500 chunks, and 9,400 to come
    assert not memory.is_open and memory.full_mb == pytest.approx(260.0 + 940.0)
    memory.look(700, 9_000.0)
    assert memory.full_mb == pytest.approx(1_200.0)


def test_a_table_without_a_process_of_its_own_is_not_estimated():
    memory = MemoryEstimate(10_000)
    for num_chunks in (100, 600, 700):
        memory.look(num_chunks, None)
    assert memory.is_open and memory.full_mb is None


def test_small_full_and_shrinking_tables():
    small = MemoryEstimate(40)
    small.look(10, 200.0)
    small.look(40, 203.0)
    assert small.full_mb == pytest.approx(203.0)
    late = MemoryEstimate(10_000)
    late.look(800, 300.0)  # the first look counts for no line
    assert late.is_open
    late.look(900, 299.0)  # the allocator gave something back
    assert late.full_mb == pytest.approx(299.0)


def test_small_items_are_looked_at_for_longer():
    """A process grows at first by what has nothing to do with its items."""
    memory = MemoryEstimate(100_000, enough=20_000)
    memory.look(1_000, 250.0)
    memory.look(19_999, 400.0)
    assert memory.is_open
    memory.look(21_000, 270.0)
    assert memory.full_mb == pytest.approx(270.0 + 79.0)
