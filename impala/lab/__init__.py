"""The lab: correction schemes compared, with everything else identical.

grid.py says what is run, cells.py runs one training in lockstep, compare.py runs all of them, scores.py works out what
the results mean, report.py and figures.py show them. offline.py compares the schemes on one batch, without training:
acted.py makes the batch, truths.py the values that targets are compared with.
"""
