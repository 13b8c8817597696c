"""The program in threads, the learner's own loop disabled and stepped by hand through its handle."""

from concurrent import futures
from types import SimpleNamespace

import pytest

from impala.launching import roles, stopping, threads
from tests import warm

SCRIPT = """
import tempfile, time
from pathlib import Path
from absl.testing import absltest
from impala import config as config_lib, environments
from impala.nodes.run import Run
import os


class StepByHand(absltest.TestCase):
    def test_steps(self):
        from impala.programs import impala
        import launchpad as lp
        config = config_lib.load("configs/catch.yaml")
        spec = environments.make("catch", num_environments=1).spec
        folder = Path(tempfile.mkdtemp())
        program = impala.make_program(config, spec, Run(folder, os.getpid(), time.monotonic(), 1))
        (node,) = program.groups["learner"]
        node.disable_run()
        handle = node.create_handle()
        handle.set_client_kwargs(call_timeout=30.0)
        lp.launch(program, launch_type="test_mt", test_case=self)
        learner = handle.dereference()
        version, arrays = learner.get_weights(-1)
        assert version == 0 and len(arrays) == 8, (version, len(arrays))
        for update in range(1, 6):
            metrics = {}
            while not metrics:
                metrics = node.instance.step()  # which is no RPC
            assert learner.get_weights(-1)[0] == update
            assert metrics["num_transitions"] == 144, metrics  # 8 chunks, 18 of 20 transitions are real
        assert learner.get_weights(5) == (5, [])
        print("stepped")


absltest.main()
"""


def test_stepped_by_hand_under_test_mt():
    result = warm.run(["-c", SCRIPT], timeout=120)
    assert "OK" in result.stderr and "stepped" in result.stdout, result.stderr[-3000:]
    assert result.returncode == 0


def test_a_node_that_is_stopped_before_it_begins_has_not_failed():
    """As in a run that has ended and is resumed: its learner returns while the actor still waits for the table."""
    workers = {name: [SimpleNamespace(future=futures.Future())] for name in ("learner", "actor", "evaluator")}
    listener = SimpleNamespace(node=lambda name: SimpleNamespace(facts={}))
    nodes = threads.Threads(SimpleNamespace(_active_workers=workers), roles.Roles([]), listener)
    workers["learner"][0].future.set_result(None)
    workers["actor"][0].future.set_exception(stopping.Stopped("before the table answered"))
    assert nodes.ended() == {"learner/0": 0, "actor/0": 0} and nodes.left() == ["evaluator/0"]
    workers["evaluator"][0].future.set_exception(RuntimeError("of another kind"))
    with pytest.raises(RuntimeError, match="of another kind"):
        nodes.ended()
