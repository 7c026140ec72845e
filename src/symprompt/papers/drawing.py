"""The report's figures: what is drawn, under which titles and captions."""

from __future__ import annotations

from pathlib import Path

from symprompt.papers.candidates import Pools, pool_curve
from symprompt.papers.groups import Loaded
from symprompt.papers.imbalance import BINS, frequency_bins
from symprompt.papers.methods import Measured
from symprompt.papers.rows import SPE
from symprompt.report import figures
from symprompt.report.pages import Picture
from symprompt.report.series import METRIC_NAMES, Bar
from symprompt.runs.statistics import METRICS, OVER_RELATIONS


def draw_pictures(
    loaded: Loaded, measured: Measured, pools: dict[str, Pools], folder: Path
) -> dict[str, list[Picture]]:
    """Draw every model's figures into a folder; return what was drawn by section."""
    drawn: dict[str, list[Picture]] = {"methods": [], "candidates": [], "imbalance": []}
    for model in loaded.plan.models:
        groups = loaded.of_model(model.name)
        if not groups:
            continue
        about = _about(loaded, model.name)
        bars = [
            Bar(
                group.row.name,
                METRIC_NAMES[metric],
                getattr(group.means[OVER_RELATIONS], metric),
                measured.intervals[group.label][OVER_RELATIONS][metric].low,
                measured.intervals[group.label][OVER_RELATIONS][metric].high,
            )
            for metric in METRICS
            for group in groups
        ]
        caption = f"{about} Mean over relations, 95 % bootstrap intervals; orange: the best."
        title = f"Methods on the model {model.name}"
        figure = figures.draw_method_rows(bars, title=title, caption=caption)
        drawn["methods"].append(_save(figure, folder, f"methods-{model.name}.png", title))
        if pools.get(model.name):
            curve = pool_curve(loaded.groups[model.name, SPE], pools[model.name])
            low, high = curve.weights
            weight = f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
            title = f"SPE on {model.name}: candidates asked back"
            caption = f"{about} Weight {weight}. Up to K = 10, P@10 cannot change."
            figure = figures.draw_k_curve(curve, title=title, caption=caption)
            name = f"candidates-{model.name}.png"
            drawn["candidates"].append(_save(figure, folder, name, title))
        lines = {
            group.row.name: [None if bin is None else bin.mrr for bin in frequency_bins(group)]
            for group in groups
        }
        counts = [bin.facts if bin else 0 for bin in frequency_bins(groups[0])]
        title = f"{model.name}: MRR by frequency of the right object"
        caption = f"{about} MRR, mean over the facts of a bin."
        figure = figures.draw_frequency(lines, BINS, counts, title=title, caption=caption)
        drawn["imbalance"].append(_save(figure, folder, f"imbalance-{model.name}.png", title))
    return drawn


def _save(figure: object, folder: Path, name: str, about: str) -> Picture:
    figures.save_figure(figure, folder / name)  # type: ignore[arg-type]
    return Picture(name, about)


def _about(loaded: Loaded, model: str) -> str:
    group = loaded.of_model(model)[0]
    seeds = max(len(other.seeds) for other in loaded.of_model(model))
    return (
        f"Model {model}; {len(set(group.relation.tolist()))} relations, {len(group.keys):,} test "
        f"facts; realistic ranks; mean over {seeds} seed{'s' if seeds > 1 else ''}."
    )
