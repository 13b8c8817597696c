"""The lab: correction schemes compared with everything else the identical object.

grid.py says what is run, cells.py runs one training in lockstep, compare.py all of them, scores.py what they mean,
report.py and figures.py show it;
offline.py compares the schemes on one batch, without training: acted.py has the batch, truths.py what it should say.
"""
