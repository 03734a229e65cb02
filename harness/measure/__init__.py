"""From one trial's raw data to metric values. Pure."""
