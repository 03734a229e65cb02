"""From the metrics of many trials to verdicts. Pure: no clock, no files, no randomness that is not handed in."""
