"""The lab: correction schemes compared with everything else the identical object.

grid.py says what is run, cells.py runs one training in lockstep, compare.py all of them, report.py what they mean;
offline.py compares the schemes on one batch, without training.
"""
