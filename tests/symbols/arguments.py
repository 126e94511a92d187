#!/usr/bin/env python3
"""Prints what the functions of the driver take, by NVIDIA's header of function types: an export, and a letter for each argument:
p a pointer, h a handle, an address or another 64-bit value, z a 64-bit size, w 32 bits, s 16, b 8, f a float, X a larger structure.

usage: arguments.py CACHE_DIR      (as regenerate.py)
"""

import pathlib
import re
import sys

import regenerate

NARROW = {"int": "w", "unsigned": "w", "unsigned int": "w", "cuuint32_t": "w", "unsigned short": "s", "unsigned char": "b", "float": "f",
          "CUdevice": "w", "CUdevice_v1": "w", "CUlogicalEndpointId": "w", "CUdeviceptr_v1": "w", "CUresult": "w"}
WIDE = {"size_t": "z", "unsigned long long": "z", "cuuint64_t": "z", "CUdeviceptr": "h", "CUdeviceptr_v2": "h",
        "CUmemGenericAllocationHandle": "h", "CUmemGenericAllocationHandle_v1": "h", "CUmemLocation_v1": "h",
        "CUtexObject_v1": "h", "CUsurfObject_v1": "h"}
LARGE = {"CUipcMemHandle_v1", "CUipcEventHandle_v1"}


def opaque(header: str) -> set:
    """Names of handles: pointers to structures that nobody sees, and to functions."""
    handles = set(re.findall(r"typedef struct \w+ ?\*(\w+);", header))
    return handles | set(re.findall(r"typedef [\w ]+\*?\s*\((?:CUDA_CB|CUDAAPI)? ?\*(\w+)\)", header))


def letter(argument: str, handles: set) -> str:
    if "*" in argument or "[" in argument:
        return "p"
    words = argument.replace("const ", "").split()
    kind = " ".join(words[:-1]) if len(words) > 1 else words[0]
    if kind in LARGE:
        return "X"
    if kind in handles:
        return "h"
    # Whatever else is passed by value is an enumeration.
    return NARROW.get(kind) or WIDE.get(kind) or "w"


def main() -> None:
    cache = pathlib.Path(sys.argv[1])
    rows = regenerate.exports(*regenerate.cuda_variants(cache))
    exports = {(symbol, number, mode): export for symbol, number, mode, export in rows}
    for package, version in regenerate.CUDA:
        archive = regenerate.wheel(cache, package, version)
        handles = opaque(regenerate.members(archive, regenerate.FUNCTIONS))
        header = regenerate.members(archive, regenerate.TYPES)
        for symbol, number, mode, arguments in re.findall(
            r"PFN_(cu\w+?)_v(\d+)(_ptds|_ptsz)?\)\(([^;]*)\);", header
        ):
            given = [a.strip() for a in arguments.split(",") if a.strip() not in ("", "void")]
            export = exports[symbol, int(number), mode.lstrip("_") or "legacy"]
            print(export, "".join(letter(a, handles) for a in given) or "-")


main()
