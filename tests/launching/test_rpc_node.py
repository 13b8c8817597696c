"""Over the wire an object has the methods that its class names, and no others."""

import pytest

import impala.launching  # noqa: F401, isort: skip; installs the RPC stand-in
from impala.launching.rpc_node import RpcNode
from tests import warm

SCRIPT = """
from absl.testing import absltest
import impala.launching
import launchpad as lp
from impala.launching.rpc.client import StatusCode, StatusNotOk, list_methods
from impala.launching.rpc_node import RpcNode


class Counter:
    RPCS = ("add",)
    limit = print  # public and callable, and no method to be called

    def __init__(self):
        self.total = 0

    def add(self, number):
        self.total += number
        return self.total

    def step(self):
        self.total += 100

    def run(self):
        self.total += 1000

    def _reset(self):
        self.total = 0

    __call__ = _reset


class More(Counter):
    RPCS = (*Counter.RPCS, "twice")

    def twice(self):
        return 2 * self.total


class Wire(absltest.TestCase):
    def test_names(self):
        program = lp.Program("wire")
        nodes = [RpcNode(kind, courier_kwargs={"thread_pool_size": 4}) for kind in (Counter, More)]
        handles = [program.add_node(node, f"node{index}") for index, node in enumerate(nodes)]
        for node in nodes:
            node.disable_run()
        lp.launch(program, launch_type="test_mt", test_case=self)
        counter, more = (handle.dereference() for handle in handles)
        assert counter.add(3) == 3 and more.add(4) == 4 and more.twice() == 8
        for name in ("step", "run", "limit", "twice", "_reset", "__init__", "__call__", "RPCS", "set_courier_server"):
            with self.assertRaises(StatusNotOk) as caught:
                counter._connection.call(name)
            assert caught.exception.code == StatusCode.NOT_FOUND, (name, caught.exception)
        assert nodes[0].instance.total == 3
        assert list_methods(counter) == ["add"] and list_methods(more) == ["add", "twice"]
        print("called")


absltest.main()
"""


def test_named_methods_are_served_and_no_others():
    done = warm.run(["-c", SCRIPT], timeout=120)
    assert done.returncode == 0 and "called" in done.stdout, done.stderr[-3000:]


@pytest.mark.parametrize("names, words", [((), "names none"), (("run", "sit"), "names sit"), (("_go",), "names _go")])
def test_names_that_cannot_be_served_are_refused(names, words):
    class Node:
        RPCS = names

        def run(self):
            pass

        def _go(self):
            pass

    with pytest.raises(TypeError, match=words):
        RpcNode(Node)


def test_the_programs_nodes_serve_what_others_call():
    from impala.nodes import central_node, learner_node, solo_node, trainer_node

    learners = {"get_weights", "frames", "report", "evaluated", "status"}
    assert set(learner_node.LearnerNode.RPCS) == learners
    assert set(central_node.CentralNode.RPCS) == learners | {"address", "act"}
    assert set(trainer_node.TrainerNode.RPCS) == learners | {"address", "predict", "train"}
    assert set(solo_node.SoloNode.RPCS) == learners
