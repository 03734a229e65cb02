"""Measurements of LLM inference on CPUs that a reviewer can trust."""

__version__ = "0.1.0"
