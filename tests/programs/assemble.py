"""Gives kernels' text to the vendor's own compiler, without a card.

The file holds texts with a line `// end` behind each. Prints `ok TARGET ARCHITECTURE KERNEL BYTES`, of its machine code, for each
text and each architecture that is not older than its target; what is refused is printed with the compiler's words, and fails.
"""

import ctypes
import importlib.util
import pathlib
import re
import struct
import sys

ARCHITECTURES = (75, 80, 90, 100, 120)
PTX = 2


def library():
    found = importlib.util.find_spec("nvidia")
    for place in found.submodule_search_locations:
        for path in sorted(pathlib.Path(place).glob("*/lib/libnvJitLink.so.*")):
            return ctypes.CDLL(str(path))
    sys.exit("libnvJitLink is not there")


def compiled(jit, text, architecture):
    def call(name, *words):
        return getattr(jit, f"__nvJitLink{name}_13_0")(*words)

    handle, size = ctypes.c_void_p(), ctypes.c_size_t()
    options = (ctypes.c_char_p * 1)(f"-arch=sm_{architecture}".encode())
    code = call("Create", ctypes.byref(handle), 1, options)
    code = code or call("AddData", handle, PTX, text, ctypes.c_size_t(len(text)), b"kernel")
    code = code or call("Complete", handle)
    if code:
        call("GetErrorLogSize", handle, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value + 1)
        call("GetErrorLog", handle, log)
        raise ValueError(f"{code}: {log.value.decode(errors='replace')}")
    call("GetLinkedCubinSize", handle, ctypes.byref(size))
    made = ctypes.create_string_buffer(size.value)
    call("GetLinkedCubin", handle, made)
    return code_of(made.raw)


def code_of(elf):
    """Name and size of the only kernel's machine code."""
    (sections,) = struct.unpack_from("<Q", elf, 40)
    size, count, names = struct.unpack_from("<HHH", elf, 58)
    heads = [struct.unpack_from("<IIQQQQ", elf, sections + at * size) for at in range(count)]
    for name, _, _, _, _, length in heads:
        start = heads[names][4] + name
        text = elf[start : elf.index(b"\0", start)].decode()
        if text.startswith(".text."):
            return f"{text[6:]} {length}"
    raise ValueError("no code")


def main():
    jit, failed = library(), 0
    for text in pathlib.Path(sys.argv[1]).read_text().split("// end\n"):
        target = re.search(r"\.target sm_(\d+)", text)
        if not target:
            continue
        for architecture in ARCHITECTURES:
            if architecture < int(target[1]):
                continue
            try:
                print("ok", target[1], architecture, compiled(jit, text.encode() + b"\0", architecture))
            except ValueError as error:
                failed = 1
                print(target[1], architecture, error)
    return failed


sys.exit(main())
