"""`harness schema`: the JSON Schema of experiment files."""

from __future__ import annotations

import argparse
import json

from harness.commands.answer import Answer
from harness.experiment.schema import json_schema


def run(_arguments: argparse.Namespace) -> Answer:
    """Print the schema; save it where the editor looks for one."""
    return Answer(out=json.dumps(json_schema(), indent=2, ensure_ascii=False))
