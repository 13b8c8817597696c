import pytest

from tests.programs import running


def pytest_collection_modifyitems(items):
    """Several processes import TensorFlow before a program does anything, which took 80 s on a busy machine."""
    for item in items:
        if "programs" in item.path.parts and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(autouse=True)
def nothing_goes_on():
    """Ends what a failed test left running, which would take the cores from all others."""
    yield
    running.kill_all()
