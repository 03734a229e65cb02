"""The command `cpu-int4`: what it prints, and its exit codes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import models
import pytest
import tiny
from safetensors.torch import load_file, save_file

from cpu_int4.cli import main
from cpu_int4.progress import Progress


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as end:  # argparse
        code = int(str(end.code))
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def int4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A quantized llama in two shards."""
    run(capsys, "quantize", models.llama(tmp_path / "m"), tmp_path / "q", "--group-size", 64, "--shard-size", "80KB")
    return tmp_path / "q"


def test_quantize_says_what_it_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Counts and reasons on standard output, progress with tensors on standard error."""
    code, out, err = run(capsys, "quantize", models.spark(tmp_path / "m"), tmp_path / "q")
    assert code == 0
    assert out.splitlines() == [
        "11 modules quantized, 2 left in bf16",
        "     2 x model.layers.*.self_attn.g_proj: N = 8 is not a multiple of 16",
        f"{tmp_path / 'q'}: 0.2 MB in 1 shard",
    ]
    assert re.fullmatch(r"quantize: 16 of 16 tensors, 100 % in \d+ s\n", err)


def test_round_trip_by_commands(tmp_path: Path, int4: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """quantize, inspect --verify, expand: all exit with 0."""
    assert run(capsys, "inspect", int4, "--verify")[0] == 0
    code, out, _ = run(capsys, "expand", int4, tmp_path / "x")
    assert (code, out) == (0, f"{tmp_path / 'x'}: 15 modules expanded, 0.7 MB in 1 shard\n")


def test_inspect_counts_bits(int4: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """4 bits and two bfloat16 for 64 weights: 4.5 bits; with the five norms of 128 in bfloat16 a little more."""
    _, out, _ = run(capsys, "inspect", int4, "--json")
    found = json.loads(out)
    weights = 320 * 128 + 2 * (128 * 128 * 2 + 64 * 128 * 2 + 3 * 256 * 128)
    assert found["bits_per_weight"]["quantized"] == 4.5
    assert found["bits_per_weight"]["model"] == (weights * 4.5 + 5 * 128 * 16) / (weights + 5 * 128)
    assert found["weights"] == {"quantized": weights, "other": 640}
    assert found["bytes"] == {"quantized": weights * 4.5 / 8, "other": 1280}
    assert found["quantized"]["model.layers.0.mlp.down_proj"] == [128, 256]
    assert found["verified"] is False


def test_inspect_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is quantized, what not and why, the embedding, sizes."""
    run(capsys, "quantize", models.spark(tmp_path / "m"), tmp_path / "q", "--skip", "layers.1.mlp.down_proj")
    code, out, _ = run(capsys, "inspect", tmp_path / "q", "--verify")
    assert code == 0
    for line in (
        "cpu_int4, format version 1: 4 bits, asymmetric, groups of 128",
        "  bits a weight, scales and zeros included: 4.250 in 10 quantized modules",
        "  embedding, which is the head too: quantized",
        "     2 x model.layers.*.self_attn.q_k_v_proj 192 x 128",
        "left in bf16: 3 modules",
        "     1 x model.layers.*.mlp.down_proj: --skip layers.1.mlp.down_proj",
        "checksums: all 36 tensors agree",
    ):
        assert line in out.splitlines()


def test_case_59_verify_finds_a_changed_byte(int4: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Headers alone see nothing; --verify names the tensor and exits with 1."""
    path = int4 / "model-00001-of-00003.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 0x10
    path.write_bytes(data)
    assert run(capsys, "inspect", int4)[0] == 0
    code, _, err = run(capsys, "inspect", int4, "--verify")
    assert code == 1
    assert re.search(r"tensor model\.\S+\.qweight: SHA-256 is \w{64}, the manifest \(cpu_int4\.json\) says \w{64}", err)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("group_size", 32, r"at group_size 32"),
        ("group_size", 7, r"group_size: 7 is not supported; supported: 32, 64, 128, 256"),
        ("format_version", 2, r"format_version: 2 is not supported; supported: 1"),
        ("bits", 8, r"bits: 8 is not supported; supported: 4"),
        ("sym", True, r"sym: True is not supported; supported: false"),
        ("quant_method", "awq", r'quant_method: \'awq\' is not supported; supported: "cpu_int4"'),
    ],
)
def test_case_59_a_configuration_that_does_not_fit_is_named(
    int4: Path, capsys: pytest.CaptureFixture[str], field: str, value: object, message: str
) -> None:
    """Each field changed by hand: refused with the field, its value and what is supported."""
    config = models.document(int4)
    config["quantization_config"][field] = value
    (int4 / "config.json").write_text(json.dumps(config))
    code, _, err = run(capsys, "inspect", int4)
    assert code == 1
    assert re.search(message, err)


def lose_shard(folder: Path) -> None:
    """One file gone."""
    (folder / "model-00002-of-00003.safetensors").unlink()


def lose_tail(folder: Path) -> None:
    """One file cut short."""
    path = folder / "model-00002-of-00003.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def lose_tensor(folder: Path) -> None:
    """The zeros of one module gone, in a file that is whole otherwise."""
    path = next(p for p in folder.glob("*.safetensors") if "model.embed_tokens.zeros" in load_file(p))
    tensors = load_file(path)
    del tensors["model.embed_tokens.zeros"]
    save_file(tensors, path)


def rename_tensor(folder: Path) -> None:
    """The zeros of one module under another name."""
    path = next(p for p in folder.glob("*.safetensors") if "model.embed_tokens.zeros" in load_file(p))
    tensors = load_file(path)
    tensors["model.embed_tokens.zero"] = tensors.pop("model.embed_tokens.zeros")
    save_file(tensors, path)


def misshape(folder: Path) -> None:
    """Scales transposed."""
    path = next(p for p in folder.glob("*.safetensors") if "model.embed_tokens.scales" in load_file(p))
    tensors = load_file(path)
    tensors["model.embed_tokens.scales"] = tensors["model.embed_tokens.scales"].t().contiguous()
    save_file(tensors, path)


def retype(folder: Path) -> None:
    """Scales in float16."""
    path = next(p for p in folder.glob("*.safetensors") if "model.embed_tokens.scales" in load_file(p))
    tensors = load_file(path)
    tensors["model.embed_tokens.scales"] = tensors["model.embed_tokens.scales"].half()
    save_file(tensors, path)


def lose_manifest(folder: Path) -> None:
    """No manifest."""
    (folder / "cpu_int4.json").unlink()


def tear_manifest(folder: Path) -> None:
    """Half a manifest."""
    path = folder / "cpu_int4.json"
    path.write_text(path.read_text()[:1000])


def newer_manifest(folder: Path) -> None:
    """A manifest of a version to come."""
    path = folder / "cpu_int4.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format_version": 2}))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lose_shard, r"model-00002-of-00003\.safetensors: .*missing"),
        (lose_tail, r"model-00002-of-00003\.safetensors: torn"),
        (lose_tensor, r"tensor model\.embed_tokens\.zeros is missing"),
        (rename_tensor, r"tensor model\.embed_tokens\.zero is not in"),
        (misshape, r"tensor model\.embed_tokens\.scales: shape is \[2, 320\], the manifest says \[320, 2\]"),
        (retype, r"tensor model\.embed_tokens\.scales: dtype is F16, the manifest says BF16"),
        (lose_manifest, r"has no cpu_int4\.json"),
        (tear_manifest, r"cpu_int4\.json: is not JSON"),
        (newer_manifest, r"cpu_int4\.json: format_version is 2; this cpu_int4 reads version 1"),
    ],
)
def test_case_64_torn_checkpoints_are_named(
    tmp_path: Path, int4: Path, capsys: pytest.CaptureFixture[str], harm: Callable[[Path], None], message: str
) -> None:
    """Every loss, by inspect and expand alike: exit code 1, the file or tensor named, no output and no target."""
    harm(int4)
    for arguments in (["inspect", int4], ["expand", int4, tmp_path / "x"]):
        code, out, err = run(capsys, *arguments)
        assert (code, out) == (1, "")
        assert re.search(message, err)
    assert not (tmp_path / "x").exists()


def test_a_foreign_directory_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plain model is no cpu_int4 checkpoint: what it lacks, and what would make one."""
    code, _, err = run(capsys, "inspect", models.llama(tmp_path / "m"))
    assert code == 1
    assert "has no quantization_config: the model is not quantized; `cpu-int4 quantize` does it" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["quantize", "{m}", "{q}", "--group-size", "48"], r"invalid choice: 48 \(choose from 32, 64, 128, 256\)"),
        (["quantize", "{m}", "{q}", "--group-size", "-1"], r"invalid choice: -1"),
        (["quantize", "{m}", "{q}", "--bits", "8"], r"unrecognized arguments: --bits 8"),
        (
            ["quantize", "{m}", "{q}", "--shard-size", "2 apples"],
            r"'2 apples' is no size; write bytes or a unit: 500MB",
        ),
        (["quantize", "{m}", "{q}", "--shard-size", "0"], r"'0' is no size"),
        (["quantize", "{m}/nowhere", "{q}"], r"nowhere: no such directory"),
        (["quantize", "{m}/config.json", "{q}"], r"config\.json: is a file, not a directory"),
        (["quantize", "{m}", "{q}", "--skip", "kproj"], r"--skip 'kproj' matches no module.*did you mean k_proj"),
        (["quantize", "{m}", "{q}", "--group-size", "256", "--strict"], r"--strict: 13 modules cannot be quantized"),
        (["quantize", "{m}", "{m}", "--force"], r"the source .* lies there"),
        (["inspect"], r"required: FOLDER"),
        ([], r"required: COMMAND"),
    ],
)
def test_a_wrong_command_line_exits_with_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    """What is wrong and what would be right, on standard error."""
    places = {"m": models.llama(tmp_path / "m"), "q": tmp_path / "q"}
    code, out, err = run(capsys, *(argument.format(**places) for argument in arguments))
    assert (code, out) == (2, "")
    assert re.search(message, err)
    assert not (tmp_path / "q").exists()


def test_an_existing_target_exits_with_two(tmp_path: Path, int4: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And says how to replace it."""
    code, _, err = run(capsys, "quantize", tmp_path / "m", int4, "--group-size", 64)
    assert code == 2
    assert "exists; choose another target or replace it with --force" in err


def test_values_that_are_not_finite_exit_with_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The checkpoint is at fault, not the command line."""
    weights = tiny.weights(tiny.llama())
    weights["model.norm.weight"][5] = float("nan")
    code, _, err = run(
        capsys, "quantize", models.write(tmp_path / "m", tiny.llama(), weights), tmp_path / "q", "--group-size", 64
    )
    assert code == 1
    assert "tensor model.norm.weight: the value at [5] is nan" in err


@pytest.mark.parametrize(("text", "size"), [("1000", 1000), ("80KB", 80_000), ("1.5 GiB", 3 << 29), ("2gb", 2 * 10**9)])
def test_sizes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes, decimal and binary units, in any case."""
    seen: list[int] = []
    monkeypatch.setattr("cpu_int4.expand.expand", lambda *_, shard_bytes, **__: seen.append(shard_bytes) or 1 / 0)
    (tmp_path / "m").mkdir()
    with pytest.raises(ZeroDivisionError):
        run(capsys, "expand", tmp_path / "m", tmp_path / "x", "--shard-size", text)
    assert seen == [size]


@pytest.mark.parametrize("command", ["quantize", "expand", "inspect"])
def test_help_teaches_with_an_example(capsys: pytest.CaptureFixture[str], command: str) -> None:
    """The example in the help is a command line."""
    code, out, _ = run(capsys, command, "--help")
    assert code == 0
    assert f"  cpu-int4 {command} models/" in out


def test_help_loads_no_torch() -> None:
    """`cpu-int4 --help` answers at once: parsing imports nothing heavy."""
    script = (
        "import sys\nfrom cpu_int4.cli import main\ntry: main(['--help'])\nfinally: assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, cwd=Path(__file__).parents[1])


def test_progress_says_tensors_done_and_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A quarter done after 10 s: 30 s are left. Lines come no more often than every 5 s."""
    clock = iter([0.0, 4.0, 10.0, 40.0])
    monkeypatch.setattr("cpu_int4.progress.time.monotonic", lambda: next(clock))
    progress = Progress("quantize", tensors=2, values=400)
    progress.advance(50)
    progress.tensor_done()
    progress.advance(50)
    progress.finish()
    assert capsys.readouterr().err.splitlines() == [
        "quantize: 1 of 2 tensors, 25 %, about 30 s left",
        "quantize: 1 of 2 tensors, 25 % in 40 s",
    ]
