#!/usr/bin/env python3
"""What programs of a release are made of.

inventory.py notices TRIPLE      licences of everything that is linked, with their texts
inventory.py sbom TRIPLE         the same as CycloneDX 1.6 (JSON)

Read are `cargo metadata` and the packages that cargo has downloaded. Versions, checksums and the date come from the lock
file and the environment (version, commit, SOURCE_DATE_EPOCH): the same commit has the same bytes.
"""
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import tomllib
import uuid

# The program, and what it carries inside.
ROOTS = ["aliquot_driver", "aliquot_shim", "aliquot_sim_cuda", "aliquot_sim_nvml", "aliquot_sim_dcmi"]
# Linked beside cargo's packages.
BESIDE = [
    ("The Rust standard library", "MIT OR Apache-2.0", "https://github.com/rust-lang/rust"),
    ("LLVM's libunwind and compiler-rt", "Apache-2.0 WITH LLVM-exception", "https://llvm.org"),
    ("Startup files of zig", "MIT", "https://ziglang.org"),
]
TEXTS = re.compile(r"^(licen[sc]e|copying|copyright|notice|unlicense)", re.IGNORECASE)


def metadata(triple):
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", triple]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def linked(found):
    """The packages that are linked, by id, and which of them each uses. Macros and build scripts stay on the build machine."""
    packages = {package["id"]: package for package in found["packages"]}
    nodes = {node["id"]: node for node in found["resolve"]["nodes"]}
    macros = {
        id for id, package in packages.items() if all("proc-macro" in t["kind"] or "custom-build" in t["kind"] for t in package["targets"])
    }
    uses = {}
    waiting = [id for id, package in packages.items() if package["name"] in ROOTS and package["source"] is None]
    if len(waiting) != len(ROOTS):
        sys.exit(f"inventory: found {len(waiting)} of the packages {ROOTS}, expected all")
    while waiting:
        id = waiting.pop()
        if id in uses:
            continue
        normal = [d["pkg"] for d in nodes[id]["deps"] if any(kind["kind"] is None for kind in d["dep_kinds"])]
        uses[id] = sorted(set(normal) - macros)
        waiting.extend(uses[id])
    return {id: packages[id] for id in uses}, uses


def by_name(packages):
    return sorted(packages, key=lambda package: (package["name"], package["version"]))


def expression(package):
    """The licence as SPDX has it: older packages write a slash."""
    if not package["license"]:
        sys.exit(f"inventory: {package['name']} {package['version']}: found no licence, expected an SPDX expression")
    return " OR ".join(part.strip() for part in package["license"].split("/"))


def texts(package):
    folder = pathlib.Path(package["manifest_path"]).parent
    files = sorted(file for file in folder.iterdir() if file.is_file() and TEXTS.match(file.name))
    return [(file.name, file.read_text(encoding="utf-8", errors="replace").strip()) for file in files]


def notices(triple):
    packages, _ = linked(metadata(triple))
    print("Aliquot is under the Apache License 2.0 (LICENSE). Its program contains what follows.")
    for name, licence, place in BESIDE:
        print(f"\n{name}: {licence}, {place}")
    seen = {}
    for package in by_name(package for package in packages.values() if package["source"]):
        name = f"{package['name']} {package['version']}"
        print(f"\n{'=' * 80}\n{name}: {expression(package)}, {package['repository'] or 'https://crates.io/crates/' + package['name']}")
        own = texts(package)
        if not own and "Apache-2.0" not in expression(package) and "MIT" not in expression(package):
            sys.exit(f"inventory: {name}: found no licence text in the package; add it here by hand")
        if not own:
            print("\n(The package brings no text; the terms are those of its licence's name.)")
        for file, text in own:
            if text in seen:
                print(f"\n{file}: as of {seen[text]}")
            else:
                seen[text] = f"{name}, {file}"
                print(f"\n{file}:\n\n{text}")


def sbom(triple):
    packages, uses = linked(metadata(triple))
    lock = tomllib.loads(pathlib.Path("Cargo.lock").read_text())
    sums = {(entry["name"], entry["version"]): entry.get("checksum") for entry in lock["package"]}
    version, commit = os.environ["version"], os.environ["commit"]
    date = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)

    def reference(package):
        return f"pkg:cargo/{package['name']}@{package['version']}"

    def component(package):
        entry = {
            "type": "library",
            "bom-ref": reference(package),
            "name": package["name"],
            "version": package["version"],
            "licenses": [{"expression": expression(package)}],
            "purl": reference(package),
        }
        checksum = sums.get((package["name"], package["version"]))
        if checksum:
            entry["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        return entry

    program = {
        "type": "application",
        "bom-ref": f"aliquot@{version}",
        "name": "aliquot",
        "version": version,
        "licenses": [{"expression": "Apache-2.0"}],
        "properties": [{"name": "aliquot:commit", "value": commit}, {"name": "aliquot:target", "value": triple}],
    }
    shown = by_name(packages.values())
    graph = [{"ref": program["bom-ref"], "dependsOn": sorted(reference(p) for p in shown if p["name"] in ROOTS)}]
    for package in shown:
        graph.append({"ref": reference(package), "dependsOn": sorted(reference(packages[id]) for id in uses[package["id"]])})
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'aliquot:{commit}:{triple}')}",
        "version": 1,
        "metadata": {"timestamp": date.strftime("%Y-%m-%dT%H:%M:%SZ"), "component": program},
        "components": [component(package) for package in shown],
        "dependencies": graph,
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("notices", "sbom"):
        sys.exit(__doc__)
    {"notices": notices, "sbom": sbom}[sys.argv[1]](sys.argv[2])
