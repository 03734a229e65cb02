"""Effects: processes, /proc, cgroups, clocks, files. Measuring never knows who is winning."""
