#!/usr/bin/env python3
"""Regenerates shim/symbols/{cuda,nvml}.tsv from what NVIDIA publishes on PyPI.

The driver API has one function-pointer type per ABI variant in the headers cuda*Typedefs.h (the driver's own, the profiler's,
GL's, EGL's, VDPAU's), named PFN_<symbol>_v<version>[_ptds|_ptsz]. The export that carries a variant follows from the order of its
versions (first: plain name, second: _v2, ...), with the per-thread suffix behind. The headers of functions (cuda.h,
cudaProfiler.h, ...) spell every export: a name that the rule invents and no header knows stops the run, and so does a function
that a header declares and the table lacks.
NVML has no such header of types: the names that nvml.h declares and nvidia-ml-py binds are the table, a trailing _v<n> is the
version.

Only facts go into the tables: symbol, version, stream mode, export. Nothing of the headers is kept.

usage: regenerate.py CACHE_DIR OUT_DIR      (downloads about 8 MiB into CACHE_DIR once)
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
# Headers of the driver's functions that the runtime's packages leave out.
CUDA_BESIDE = [("nvidia-cuda-profiler-api", "13.4.92")]
NVML = ("nvidia-ml-py", "13.615.71")
NVML_HEADER = ("nvidia-nvml-dev", "13.4.92")
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


def members(archive: zipfile.ZipFile, pattern: str) -> str:
    """The files whose names are of the pattern, one behind the other, without what is for Windows alone."""
    paths = [p for p in archive.namelist() if re.fullmatch(pattern, p.rsplit("/", 1)[-1])]
    text = "\n".join(archive.read(path).decode("utf-8", "replace") for path in paths)
    return re.sub(r"^#ifdef _WIN32$.*?^#endif", "", text, flags=re.MULTILINE | re.DOTALL)


# The headers of function types, and those of functions; headers of the runtime have an underscore in their names.
TYPES, FUNCTIONS = r"cuda[A-Za-z]*Typedefs\.h", r"cuda[A-Za-z]*(?<!Typedefs)\.h"


def cuda_variants(cache: pathlib.Path):
    variants, header = set(), ""
    for package, version in CUDA + CUDA_BESIDE:
        archive = wheel(cache, package, version)
        header += members(archive, FUNCTIONS)
        for symbol, number, mode in re.findall(
            r"PFN_(cu\w+?)_v(\d+)(_ptds|_ptsz)?\)\(", members(archive, TYPES)
        ):
            variants.add((symbol, int(number), mode.lstrip("_") or "legacy"))
    return variants, header


def functions(header: str, mark: str, prefix: str) -> set:
    """Names that the header declares as functions of the library."""
    code = re.sub(r"/\*.*?\*/|//[^\n]*", "", header, flags=re.DOTALL)
    return set(re.findall(rf"\b{mark}\s+({prefix}\w+)\s*\(", code))


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
            unknown.append(f"{symbol} {number} {mode}: {name} is in no header")
        rows.append((symbol, number, mode, name if mode == "legacy" else f"{name}_{mode}"))
    missing = functions(header, "CUDAAPI", "cu[A-Z]") - {name for _, _, _, name in rows}
    unknown += [f"{name} is declared and in no header of types" for name in sorted(missing)]
    if unknown:
        raise SystemExit("\n".join(unknown))
    return rows


# First versions that the library still exports for programs built against an old nvml.h, and that no header declares today.
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
    bound = re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', members(wheel(cache, *NVML), r"pynvml\.py"))
    declared = functions(members(wheel(cache, *NVML_HEADER), r"nvml\.h"), r"DECLDIR(?:\s+const char\s*\*)?", "nvml[A-Z]")
    rows = []
    for name in sorted({*bound, *declared, *NVML_FIRST}):
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
    sources = ", ".join(f"{package} {version}" for package, version in CUDA + CUDA_BESIDE)
    write(out / "cuda.tsv", f"Facts from {sources}; written by tests/symbols/regenerate.py.", rows)
    sources = ", ".join(f"{package} {version}" for package, version in (NVML, NVML_HEADER))
    write(out / "nvml.tsv", f"Facts from {sources}; written by tests/symbols/regenerate.py.", nvml_rows(cache))


if __name__ == "__main__":
    main()
