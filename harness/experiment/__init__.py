"""What is asked: an experiment file, checked and resolved. Pure."""
