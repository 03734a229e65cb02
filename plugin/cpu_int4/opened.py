"""A cpu_int4 checkpoint as the commands open it: configuration, manifest and shards agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cpu_int4.checkpoint import Checkpoint, open_checkpoint
from cpu_int4.fields import Settings, SettingsError, parse
from cpu_int4.format import Manifest, NoManifest, part_names, read_manifest
from cpu_int4.quantize import quantization_of
from cpu_int4.source import CONFIG_FILE, Source, SourceError, StoredTensor, open_source


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A checkpoint whose headers are checked; its bytes are not."""

    source: Source
    checkpoint: Checkpoint
    settings: Settings
    left: Mapping[str, str]  # module left in bfloat16: why

    def parts(self, module: str) -> tuple[StoredTensor, ...]:
        """The stored qweight, scales and zeros of a quantized module."""
        return tuple(self.source.tensors[name] for name in part_names(module))


def open_quantized(folder: Path) -> Opened:
    """Read configuration, manifest and headers. Raise `CheckpointError` with a line for each thing that is wrong."""
    source = open_source(folder)
    settings = _settings(source)
    checkpoint = open_checkpoint(folder, settings.group_size)
    match read_manifest(folder):
        case NoManifest(why=why):
            raise SourceError(why)
        case Manifest(left=left):
            return Opened(source=source, checkpoint=checkpoint, settings=settings, left=left)


def _settings(source: Source) -> Settings:
    fields = quantization_of(source.config)
    if not fields:
        raise SourceError(
            f"{source.folder / CONFIG_FILE}: has no quantization_config: the model is not quantized;"
            " `cpu-int4 quantize` does it"
        )
    try:
        return parse(fields, {})
    except SettingsError as error:
        raise SourceError(f"{source.folder / CONFIG_FILE}: {error}") from error
