"""What runs inside a process, wherever a program puts it.

Heavy packages are imported inside functions: the launcher imports nodes without TensorFlow.
"""
