#!/usr/bin/env python3
"""Regenerates shim/symbols/{cuda,nvml}.tsv from what NVIDIA publishes on PyPI.

The driver API has one function-pointer type per ABI variant in cudaTypedefs.h, named PFN_<symbol>_v<version>[_ptds|_ptsz].
The export that carries a variant follows from the order of its versions (first: plain name, second: _v2, ...), with the
per-thread suffix behind; cuda.h spells every export, so a name that the rule invents and the header does not know stops the run.
NVML has no such header of types: the names that nvidia-ml-py binds are the table, a trailing _v<n> is the version.

Only facts go into the tables: symbol, version, stream mode, export. Nothing of the headers is kept.

usage: regenerate.py CACHE_DIR OUT_DIR      (downloads about 7 MiB into CACHE_DIR once)
"""

import pathlib
import re
import subprocess
import sys
import zipfile

CUDA = [
    ("nvidia-cuda-runtime-cu11", "11.8.89"),
    ("nvidia-cuda-runtime-cu12", "12.9.79"),
    ("nvidia-cuda-runtime", "13.5.37"),
]
NVML = ("nvidia-ml-py", "13.615.71")
# Exports whose ordinal is not their place in the list of versions; cuda.h names them so.
IRREGULAR = {
    ("cuTexRefSetAddress2D", 4010): "cuTexRefSetAddress2D_v3",
}


def wheel(cache: pathlib.Path, package: str, version: str) -> zipfile.ZipFile:
    stem = f"{package.replace('-', '_')}-{version}-"
    found = sorted(cache.glob(stem + "*.whl"))
    if not found:
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--retries", "1",
             "--timeout", "20", "--no-deps", "-d", str(cache), f"{package}=={version}"],
            check=True,
        )
        found = sorted(cache.glob(stem + "*.whl"))
    return zipfile.ZipFile(found[0])


def member(archive: zipfile.ZipFile, name: str) -> str:
    path = next(p for p in archive.namelist() if p.endswith("/" + name) or p == name)
    return archive.read(path).decode("utf-8", "replace")


def cuda_variants(cache: pathlib.Path):
    variants, header = set(), ""
    for package, version in CUDA:
        archive = wheel(cache, package, version)
        header += member(archive, "cuda.h")
        for symbol, number, mode in re.findall(
            r"PFN_(cu\w+?)_v(\d+)(_ptds|_ptsz)?\)\(", member(archive, "cudaTypedefs.h")
        ):
            variants.add((symbol, int(number), mode.lstrip("_") or "legacy"))
    return variants, header


def exports(variants, header):
    declared = set(re.findall(r"\bcu[A-Z]\w+", header))
    versions = {}
    for symbol, number, mode in variants:
        if mode == "legacy":
            versions.setdefault(symbol, set()).add(number)
    rows, unknown = [], []
    for symbol, number, mode in sorted(variants):
        known = sorted(versions[symbol])
        # A per-thread variant is the newest ABI of its time with a suffix.
        base = max(v for v in known if v <= number)
        ordinal = known.index(base) + 1
        name = IRREGULAR.get((symbol, base)) or (symbol if ordinal == 1 else f"{symbol}_v{ordinal}")
        if name not in declared:
            unknown.append(f"{symbol} {number} {mode}: {name} is not in cuda.h")
        rows.append((symbol, number, mode, name if mode == "legacy" else f"{name}_{mode}"))
    if unknown:
        raise SystemExit("\n".join(unknown))
    return rows


# First versions that the library still exports for programs built against an old nvml.h, and that nvidia-ml-py leaves out.
NVML_FIRST = {
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetCount",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetHandleByPciBusId",
    "nvmlDeviceGetMPSComputeRunningProcesses",
    "nvmlEventSetWait",
    "nvmlInit",
}


def nvml_rows(cache: pathlib.Path):
    text = member(wheel(cache, *NVML), "pynvml.py")
    rows = []
    for name in sorted(set(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', text)) | NVML_FIRST):
        match = re.fullmatch(r"(\w+?)_v(\d+)", name)
        symbol, number = (match.group(1), int(match.group(2))) if match else (name, 1)
        rows.append((symbol, number, "legacy", name))
    return sorted(rows)


def write(path: pathlib.Path, origin: str, rows) -> None:
    lines = [f"# {origin}", "# symbol\tversion\tmode\texport"]
    lines += ["\t".join(map(str, row)) for row in rows]
    path.write_text("\n".join(lines) + "\n")


def main() -> None:
    cache, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    cache.mkdir(parents=True, exist_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    rows = exports(*cuda_variants(cache))
    sources = ", ".join(f"{package} {version}" for package, version in CUDA)
    write(out / "cuda.tsv", f"Facts from {sources}; written by tests/symbols/regenerate.py.", rows)
    write(out / "nvml.tsv", f"Facts from {NVML[0]} {NVML[1]}; written by tests/symbols/regenerate.py.", nvml_rows(cache))


if __name__ == "__main__":
    main()
