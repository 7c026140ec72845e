"""Write golden runs anew: ``python tests/golden/freeze.py [NAME ...]``; without names all of them.

Golden runs hold what every flow computes. Write them anew only in a commit that says which meaning
changed and why; a change of layout or speed must leave them as they are.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch

HERE = Path(__file__).resolve().parent
MACHINE = HERE / "machine.json"


def this_machine() -> dict[str, str]:
    """Return what bits depend on: the version of torch and the kind of CPU."""
    cpu = platform.processor()
    about = Path("/proc/cpuinfo")
    if about.is_file():
        # The name alone may be shared by generations; what they can compute with is not.
        kept = ("model name", "cpu family", "model", "flags")
        lines = about.read_text(encoding="utf-8").split("\n\n")[0].splitlines()
        pairs = [[word.strip() for word in line.split(":", 1)] for line in lines if ":" in line]
        cpu = "; ".join(value for key, value in pairs if key in kept)
        cpu = f"{cpu.split(';')[0]} {hashlib.sha256(cpu.encode()).hexdigest()[:12]}"
    return {"torch": torch.__version__, "cpu": cpu}


def write(path: Path, value: Any) -> None:
    """Write JSON, compact, an item a line."""
    items = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    path.write_text(items.replace(',{"', ',\n{"') + "\n", encoding="utf-8")


def load(name: str) -> Any:
    """Read the golden run of a flow."""
    return json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))


def main(names: list[str]) -> None:
    """Make the flows and write what is kept of each."""
    from flows import FLOWS, Inputs, make

    unknown = [name for name in names if name not in FLOWS]
    if unknown:
        raise SystemExit(f"no flows: {', '.join(unknown)}; flows are: {', '.join(FLOWS)}")
    with tempfile.TemporaryDirectory() as place:
        inputs = Inputs(Path(place, "inputs"))
        inputs.folder.mkdir()
        for name in names or FLOWS:
            folder = Path(place, name)
            folder.mkdir()
            start = time.perf_counter()
            write(HERE / f"{name}.json", make(FLOWS[name], inputs, folder))
            size = (HERE / f"{name}.json").stat().st_size / 1000
            print(f"{name}: {time.perf_counter() - start:.1f} s, {size:.1f} kB", flush=True)
    if not names:
        for path in HERE.glob("*.json"):
            if path.stem not in FLOWS and path != MACHINE:
                path.unlink()
    write(MACHINE, this_machine())


if __name__ == "__main__":
    main(sys.argv[1:])
