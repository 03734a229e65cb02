"""The part of an experiment file that says what is measured and claimed: metrics, claims, precision. Pure."""

from __future__ import annotations

from harness.experiment.amounts import FRACTION, SECONDS, whole
from harness.experiment.kinds import Choice, Quantity, Text
from harness.experiment.shapes import Key, Record
from harness.experiment.special import Cores, Isa
from harness.experiment.vocabulary import MAX_PASSES, label


def metric() -> Record:
    """A metric that the file defines itself."""
    return Record(
        "a metric",
        (
            Key("name", Text("a name", check=label), "Name of the metric event.", required=True),
            Key("unit", Text("a unit", check=label), "Unit of the reported value, such as s or B.", required=True),
            Key("better", Choice("direction", lambda: ("lower", "higher")), "lower or higher.", required=True),
            Key(
                "resolution",
                Quantity("a number", {}, above=0),
                "Smallest difference that the reading can show, in the metric's unit.",
                default="one part in a million of the value",
            ),
            Key("definition", Text(), "What is measured, in words for the report."),
        ),
    )


def precision() -> Record:
    """When to stop adding passes."""
    return Record(
        "precision",
        (
            Key("target", FRACTION, "Half width of the ratio's interval at which to stop.", required=True),
            Key("max_passes", whole(1, MAX_PASSES), "Most passes in all.", default="four times `passes`"),
            Key("budget", SECONDS, "Wall time after which no pass is added.", default="4 h"),
        ),
    )


def claim() -> Record:
    """A statement made in advance."""
    return Record(
        "a claim",
        (
            Key("id", Text("a name", check=label), "Short name, unique in the file.", required=True),
            Key("metric", Text("a metric"), "One of the file's metrics.", required=True),
            Key("arm", Text("an arm"), "The arm that the claim is about.", required=True),
            Key("versus", Text("an arm"), "The arm it is compared with.", default="the baseline"),
            Key(
                "expect",
                Text("what is expected"),
                "`ratio >= 1.8` (arm/versus), `difference <= -550 MiB` (arm - versus), `equivalent within 1%`, or"
                " `not ranked`.",
                required=True,
            ),
            Key(
                "host",
                Record(
                    "host",
                    (
                        Key("isa", Isa(), "Instruction sets the host must have, as /proc/cpuinfo names them."),
                        Key("cores", Cores(), 'Number of cores: 32 or `">= 32"`, `"<= 4"`, `"== 2"`.'),
                    ),
                ),
                "What the host must have for the claim to be judged at all.",
            ),
            Key("source", Text(), "Where the claim comes from."),
        ),
    )
