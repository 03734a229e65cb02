"""The command `cpu-int4`: parse arguments, call, print, choose the exit code. Heavy libraries load after parsing."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cpu_int4.format import GROUP_SIZES, CheckpointError

if TYPE_CHECKING:
    _Commands = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 (argparse has no public name for it)

_EXAMPLE: Final = """\
example:
  cpu-int4 quantize models/SmolLM2-135M models/SmolLM2-135M-int4 --group-size 64
  cpu-int4 inspect models/SmolLM2-135M-int4 --verify
  vllm serve models/SmolLM2-135M-int4          # the plugin recognises the checkpoint
  cpu-int4 expand models/SmolLM2-135M-int4 models/SmolLM2-135M-int4-bf16   # the same weights for any engine

exit codes: 0 all well; 1 a checkpoint is torn, foreign or cannot be quantized, or the disk failed; 2 the command line
or a folder it names is wrong
"""
_QUANTIZE: Final = """\
Quantize a Hugging Face directory (safetensors in one file or in shards; float32, float16 or bfloat16; tied or untied)
to 4 bits: round to nearest, asymmetric, one scale and zero in bfloat16 for each GROUP_SIZE weights along K.

Quantized are the linear layers of the decoder, the token embedding, and a head of its own where the two are not tied.
Norms and biases never are. A module whose K is no multiple of the group size or whose N is no multiple of 16 stays in
bfloat16, as do its companions in a layer that vLLM fuses (q_proj, k_proj, v_proj; gate_proj, up_proj): they are listed,
counted and written into modules_not_converted. The target appears whole or not at all; the source is never changed.
"""
_QUANTIZE_EXAMPLE: Final = """\
example: keep the first layer and every down_proj in bfloat16, in groups of 32, replacing an earlier attempt:
  cpu-int4 quantize models/m models/m-int4 --group-size 32 --skip layers.0 --skip down_proj --force
"""
_EXPAND: Final = """\
Write a cpu_int4 checkpoint as a plain one in bfloat16. The weights are, bit for bit, those that the plugin's path for
wide batches computes, so the expanded model shows what the quantized one should answer. Checksums are compared on the
way.
"""
_INSPECT: Final = """\
Say what a cpu_int4 checkpoint holds: bits a weight, what is quantized, what is not and why, sizes. Missing, surplus and
misshapen tensors are named; --verify also reads every tensor and compares its checksum.
"""
_EXPAND_EXAMPLE: Final = """\
example:
  cpu-int4 expand models/m-int4 models/m-int4-bf16
"""
_INSPECT_EXAMPLE: Final = """\
example: is everything there, and what does it cost?
  cpu-int4 inspect models/m-int4 --verify
"""
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KB|MB|GB|KIB|MIB|GIB)?", re.IGNORECASE)
_UNITS: Final = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = _parser().parse_args(arguments)
    from cpu_int4.folder import FolderError
    from cpu_int4.selection import SelectionError

    _one_thread()
    try:
        return int(options.run(options))
    except (FolderError, SelectionError) as error:
        return _fail(error, 2)
    except (CheckpointError, OSError) as error:
        return _fail(error, 1)
    except KeyboardInterrupt:
        return _fail("interrupted; the target is as it was", 1)


def _quantize(options: argparse.Namespace) -> int:
    from cpu_int4.quantize import quantize
    from cpu_int4.selection import Options

    written = quantize(
        options.source,
        options.target,
        Options(
            group_size=options.group_size, embedding=options.embedding, skip=tuple(options.skip), strict=options.strict
        ),
        shard_bytes=options.shard_size,
        force=options.force,
        say=_say,
    )
    print(_selection_text(written.selection.quantized, written.selection.left, written.selection.dropped))
    print(f"{options.target}: {_size_text(written.size, written.shards)}")
    return 0


def _expand(options: argparse.Namespace) -> int:
    from cpu_int4.expand import expand

    done = expand(options.source, options.target, shard_bytes=options.shard_size, force=options.force, say=_say)
    print(f"{options.target}: {done.modules} modules expanded, {_size_text(done.size, done.shards)}")
    return 0


def _inspect(options: argparse.Namespace) -> int:
    from cpu_int4.checkpoint import verify_bytes
    from cpu_int4.inspection import document, summarise, text
    from cpu_int4.opened import open_quantized

    opened = open_quantized(options.folder)
    summary = summarise(opened)
    if not options.json:
        print(text(summary))
    if options.verify:
        verify_bytes(opened.checkpoint)
    if options.json:
        print(json.dumps(document(summary, verified=options.verify), indent=2))
    elif options.verify:
        print(f"checksums: all {len(opened.checkpoint.tensors)} tensors agree")
    return 0


def _selection_text(quantized: Sequence[str], left: Mapping[str, str], dropped: Mapping[str, str]) -> str:
    from cpu_int4.selection import grouped

    lines = [f"{len(quantized)} modules quantized, {len(left)} left in bf16"]
    lines += [f"  {count:4} x {kind}: {reason}" for (kind, reason), count in grouped(left).items()]
    lines += [f"  {module} not written: {reason}" for module, reason in dropped.items()]
    return "\n".join(lines)


def _size_text(size: int, shards: int) -> str:
    return f"{size / 1e6:,.1f} MB in {shards} shard{'s' if shards > 1 else ''}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cpu-int4",
        description="4-bit checkpoints for vLLM's CPU backend: make, expand and inspect them.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    quantize = _command(commands, "quantize", "from a Hugging Face directory to 4 bits", _QUANTIZE, _QUANTIZE_EXAMPLE)
    _add_folders(quantize, "the Hugging Face directory to quantize")
    _add_quantize_options(quantize)
    _add_writing_options(quantize)
    quantize.set_defaults(run=_quantize)
    expand = _command(commands, "expand", "back to a plain checkpoint in bfloat16", _EXPAND, _EXPAND_EXAMPLE)
    _add_folders(expand, "the cpu_int4 checkpoint to expand")
    _add_writing_options(expand)
    expand.set_defaults(run=_expand)
    inspect = _command(
        commands, "inspect", "what a checkpoint holds, and whether it is whole", _INSPECT, _INSPECT_EXAMPLE
    )
    inspect.add_argument("folder", type=_directory, metavar="FOLDER", help="the cpu_int4 checkpoint")
    inspect.add_argument("--json", action="store_true", help="for programs, alone on standard output")
    inspect.add_argument("--verify", action="store_true", help="read every tensor and compare its checksum")
    inspect.set_defaults(run=_inspect)
    return parser


def _command(commands: _Commands, name: str, line: str, description: str, example: str) -> argparse.ArgumentParser:
    return commands.add_parser(
        name, help=line, description=description, epilog=example, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def _add_folders(parser: argparse.ArgumentParser, source: str) -> None:
    parser.add_argument("source", type=_directory, metavar="SOURCE", help=source)
    parser.add_argument("target", type=Path, metavar="TARGET", help="the folder to make; its parent is made if need be")


def _add_quantize_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--group-size",
        type=int,
        choices=GROUP_SIZES,
        default=128,
        help="weights that share a scale and a zero: fewer are more accurate and cost more (32: 5 bits a weight; 128:"
        " 4.25; default: 128)",
    )
    parser.add_argument(
        "--embedding",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="quantize the token embedding, and a head of its own like it (default: yes)",
    )
    parser.add_argument(
        "--skip",
        action="append",
        default=[],
        metavar="NAME",
        help="leave modules in bfloat16: whole parts of their names (down_proj, layers.1, model.layers.0.mlp) or a"
        " regular expression to be found in them ('layers\\.[01]\\.'); may be repeated",
    )
    parser.add_argument(
        "--strict", action="store_true", help="refuse modules whose shape does not fit, instead of leaving them in bf16"
    )


def _add_writing_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--shard-size",
        type=_size,
        default=_size("2GB"),
        metavar="SIZE",
        help="largest shard, such as 500MB (default: 2GB)",
    )
    parser.add_argument("--force", action="store_true", help="replace TARGET if it is a model's folder")


def _directory(text: str) -> Path:
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(
            f"{text}: {'is a file, not a directory' if path.exists() else 'no such directory'}"
        )
    return path


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    size = round(float(match[1]) * _UNITS[(match[2] or "B").upper()]) if match else 0
    if size < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write bytes or a unit: 500MB, 2GB, 1.5GiB")
    return size


def _one_thread() -> None:
    """One thread computes. The operations on a chunk take microseconds, so a second thread mostly waits at barriers: on
    a busy two-core host that made a weight of 13312 x 2048 take 2 to 7 s, where one thread needs 0.1 s.
    """
    import torch

    torch.set_num_threads(1)


def _say(message: object) -> None:
    print(f"cpu-int4: {message}", file=sys.stderr)


def _fail(error: object, code: int) -> int:
    for line in str(error).splitlines():
        _say(f"error: {line}" if not line.startswith(" ") else line)
    return code


if __name__ == "__main__":
    sys.exit(main())
