import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_collection_modifyitems(items):
    """The long files first, so that none of them is left for one worker at the end."""
    items.sort(key=lambda item: not {"programs", "lab"} & set(item.path.parts))
