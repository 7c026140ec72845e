"""Size and speed of a tuned run exported to ONNX, beside the same in torch, on the CPU.

Run after run of one batch size and length, median seconds, torch and onnxruntime in turn; cores may
be shared with other work, so compare the two and not the seconds.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from measuring import median_seconds

from symprompt.opening import export_run
from symprompt.tasks.features import Batch
from symprompt.tasks.predict import StoredPrompt


def main() -> None:
    """Export the run, time both, print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", help="run folder of tune, kind sequence or pair")
    parser.add_argument("--model", default="", help="where its model is now")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 64, 128])
    flags = parser.parse_args()
    torch.set_num_threads(flags.threads)
    stored = StoredPrompt.load(flags.run)
    model = stored.prepare(flags.model, device="cpu", dtype="float32")
    weights = model.tuned.backbone.model.base_model.parameters()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = flags.threads
    with tempfile.TemporaryDirectory() as place:
        folder = export_run(flags.run, Path(place) / "onnx", to="onnx", model=flags.model)
        size = sum(path.stat().st_size for path in folder.glob("model.onnx*"))
        session = onnxruntime.InferenceSession(folder / "model.onnx", options)
    body = sum(value.numel() * value.element_size() for value in weights)
    print(f"{flags.threads} threads; graph {size / 1e6:.1f} MB, the body's weights in torch")
    print(f"{body / 1e6:.1f} MB and what was learned of it beside; medians of {flags.repeats}")
    print(f"{'rows':>5} {'tokens':>6} {'torch ms':>9} {'onnx ms':>9} {'times':>6} {'apart':>8}")
    generator = np.random.default_rng(0)
    most = len(model.tuned.backbone.vocabulary)
    for rows in flags.batches:
        for tokens in (one for one in flags.tokens if one <= stored.config.task.max_length):
            ids = generator.integers(0, most, (rows, tokens))
            full = np.ones_like(ids)
            given: dict[str, Any] = {"input_ids": ids, "attention_mask": full}
            types = any(own.name == "token_type_ids" for own in session.get_inputs())
            if types:
                given["token_type_ids"] = np.zeros_like(ids)
            batch = Batch(
                torch.from_numpy(ids),
                torch.full((rows,), tokens),
                torch.zeros(rows, tokens, dtype=torch.long) if types else None,
            )
            device = torch.device("cpu")
            in_torch = partial(model.scores, stored.task, batch)
            in_onnx = partial(session.run, None, given)
            ours = median_seconds(lambda _, run=in_torch: run(), device, flags.repeats)
            theirs = median_seconds(lambda _, run=in_onnx: run(), device, flags.repeats)
            apart = np.abs(in_torch().numpy() - in_onnx()[0])
            print(
                f"{rows:>5} {tokens:>6} {ours * 1e3:>9.2f} {theirs * 1e3:>9.2f} "
                f"{ours / theirs:>6.2f} {apart.max():>8.1e}"
            )


if __name__ == "__main__":
    main()
