"""Bring runs on facts that earlier versions made into the present format.

Format 1 had one weight w of each relation for all that counts beside the object score, and kept
the objects' frequency weighed by a share c: joint = object + w * (subject + c * log P). In format 2
every term has weights of its own and is stored as it is: joint = object + w * subject + (w * c) *
log P, which is the same.

A file of predictions that was converted says so in its note, and the manifest is written last. A
kill leaves files of either format, each whole, and a manifest of the old one, which sends to the
upgrade; that goes on with the files that are left.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from symprompt.errors import counted
from symprompt.files import atomic
from symprompt.probing.results import FREQUENCY, SUBJECT, has_old_weights
from symprompt.runs.folder import FORMAT, MANIFEST, PREDICTIONS, Folder

_SHARES = "frequency_shares"
_NOTHING = 1e-20
"""A share that is smaller has left nothing of what it weighed."""


def convert_weights(folder: Folder, *, dry_run: bool = False) -> tuple[dict[str, Any], list[str]]:
    """Part a run's weights by terms, and convert its predictions; the manifest is left to write.

    Args:
        dry_run: say what would be changed, and change nothing.

    Returns:
        The manifest's details as they are to be, and what changed, in words.

    Raises:
        RunError: a file is damaged.
    """
    details = dict(folder.manifest.details)
    if not has_old_weights(folder):
        return details, []
    with folder.refuse_damage(MANIFEST):
        weights = {name: float(own) for name, own in details["weights"].items()}
        shares = {name: float(own) for name, own in (details.pop(_SHARES, None) or {}).items()}
        details["weights"] = {SUBJECT: weights}
        told = [f"the weights of {counted(len(weights), 'relation')} stand by term"]
        if not shares:
            return details, told
        shares = {name: own if abs(own) > _NOTHING else 0.0 for name, own in shares.items()}
        details["weights"][FREQUENCY] = {name: weights[name] * shares[name] for name in weights}
    for path in sorted((folder.path / PREDICTIONS).glob("*.safetensors")):
        name = f"{PREDICTIONS}/{path.name}"
        if atomic.read_arrays(path)[1].get("format") == FORMAT:
            continue
        # Only now compared with what the run wrote: one that was converted differs.
        arrays, about = folder.read_arrays(name)
        key = f"terms/{FREQUENCY}"
        with folder.refuse_damage(name):
            each = np.array([shares[own] for own in about["relations"]])[arrays["relation"]]
            divisor = np.where(each == 0, 1, each)[:, None]
            value = np.where(each[:, None] == 0, 0, arrays[key].astype(np.float64) / divisor)
        changed = {**arrays, key: value.astype(np.float32)}
        if not dry_run:
            folder.write_arrays(name, changed, {**about, "format": FORMAT})
        told.append(f"{name} has the objects' frequency before its weight")
    return details, told
