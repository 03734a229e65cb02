"""Fake arms, fake clock, fake process tree: shipped, so that users can test their own drivers."""
