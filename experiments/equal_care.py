"""Labelled tasks with equal care for every method: as many settings, chosen by dev, then seeds.

    python experiments/equal_care.py OUT --model MODEL --tasks conll2003=$DATA/conll2003 sst2=PLACE

Each method's rate is searched on dev, with one seed and at most 10,000 training examples; where the
best stands at the edge of the grid, one more beyond it is tried, once. The best is then trained on
all examples with three seeds, and what these reach is reported. OUT/results.json holds that, with
every seed's figures, and OUT/search.json the search; `symprompt table` prints both. Runs that are
finished are not made again, so the command may be stopped, or called for some of the methods first.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from symprompt.files.atomic import write_json
from symprompt.files.progress import show_progress
from symprompt.papers.settings import SweepSettings
from symprompt.papers.sweep import Sweep, make_sweep_plan, sweep
from symprompt.report.records import plain_results, run_records
from symprompt.runs.folder import HISTORY, Folder, Record

RATES: dict[str, tuple[float, ...]] = {
    "ft": (1e-5, 2e-5, 4e-5, 8e-5),
    "lora": (1e-4, 3e-4, 1e-3, 3e-3),
    "pt": (1e-3, 3e-3, 1e-2, 3e-2),
    "pt2": (1e-3, 3e-3, 1e-2, 3e-2),
}
SEARCHED = 10_000
SEEDS = (11, 12, 13)


def main(arguments: Sequence[str] | None = None) -> None:
    """Search, train the best with every seed, and write the records."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--name", default="", help="what the records call the model")
    parser.add_argument("--tasks", nargs="+", required=True, metavar="TASK=FOLDER")
    parser.add_argument("--methods", nargs="+", choices=RATES, default=list(RATES))
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument(
        "--rates",
        nargs="*",
        default=[],
        metavar="METHOD=RATE,RATE,...",
        help="a single one is taken as it is, without a search",
    )
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="of every run")
    parser.add_argument("--search-set", nargs="*", default=[], help="of the search alone")
    parser.add_argument("--limit", type=int, default=SEARCHED, help="examples of the search")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--note", default="")
    flags = parser.parse_args(arguments)
    found: list[Record] = []
    searched: list[Record] = []
    runs, sizes = [], {}
    for named in flags.tasks:
        task, _, place = named.partition("=")
        for method in flags.methods:
            search, rate, folders = compare(flags, task, method, place)
            own = {"model": flags.name or Path(flags.model).name, "data": task, "method": method}
            searched += _named(search, own) if search else []
            for folder in folders:
                found += [one.model_copy(update=own | {"n": None}) for one in run_records(folder)]
            details = folders[0].manifest.details
            sizes[own["model"]] = details.get("model_parameters") or 0
            runs.append(own | _about(rate, folders, search))
    for name, records in (("results", found), ("search", searched)):
        about = {"note": flags.note, "model parameters": sizes, "runs": runs}
        write_json(flags.out / f"{name}.json", plain_results(about, records))


def compare(
    flags: argparse.Namespace, task: str, method: str, place: str
) -> tuple[Sweep | None, float, list[Folder]]:
    """Return a method's search on a task, the best rate, and its runs on all examples.

    A single rate is not searched.
    """
    about: dict[str, Any] = {"recipe": f"{task}-{method}", "model": flags.model, "data": place}
    about |= {"jobs": flags.jobs}
    folder = flags.out / f"{task}-{method}"

    def plan(kind: str, rates: Iterable[float], seeds: Sequence[int], *fixed: str) -> SweepSettings:
        return SweepSettings(
            **about,
            grid=("learning.rate=" + ",".join(f"{rate:g}" for rate in rates),),
            seeds=tuple(seeds),
            set=tuple({one.partition("=")[0]: one for one in (*flags.set, *fixed)}.values()),
            out=str(folder / kind),
        )

    def run(settings: SweepSettings) -> Sweep:
        with show_progress() as tick:
            done = sweep(settings, tick=tick)
        if done.outcome.failed:
            raise SystemExit("\n".join(f"{job}: {why}" for job, why in done.outcome.failed.items()))
        return done

    given = dict(one.split("=") for one in flags.rates)
    rates = tuple(map(float, given[method].split(","))) if method in given else RATES[method]
    fixed = (f"task.train_limit={flags.limit}", *flags.search_set)
    search, best = None, rates[0]
    if len(rates) > 1:
        search = run(plan("search", rates, flags.seeds[:1], *fixed))
        best = search.best.setting["learning.rate"]
        beyond = {rates[0]: rates[0] ** 2 / rates[1], rates[-1]: rates[-1] ** 2 / rates[-2]}
        if best in beyond:
            more = float(f"{beyond[best]:.1g}")
            search = run(plan("search", (*rates, more), flags.seeds[:1], *fixed))
            best = search.best.setting["learning.rate"]
    last = plan("final", (best,), flags.seeds)
    run(last)
    return search, best, [Folder(job.config.out) for job in make_sweep_plan(last)[0].jobs]


def _named(done: Sweep, own: dict[str, Any]) -> list[Record]:
    return [
        Record(
            metric=one.metric,
            value=value,
            split="dev",
            command="tune",
            **own,
            seeds=(seed,),
            label=f"{own['method']} (rate {one.setting['learning.rate']:g})",
            settings=dict(one.setting),
        )
        for one in done.tried
        for seed, value in zip(one.seeds, one.dev, strict=True)
    ]


def _about(rate: float, folders: Sequence[Folder], search: Sweep | None) -> dict[str, Any]:
    """Return what is told of a row: its rate, its curves on dev, and the search."""
    manifest = folders[0].manifest
    return {
        "rate": rate,
        "searched on dev": {
            f"{one.setting['learning.rate']:g}": round(one.dev[0], 2)
            for one in (search.tried if search else ())
        },
        "dev by epoch": [
            [
                round(next(iter(row["dev"].values())), 2)
                for row in folder.read_json(HISTORY)["epochs"]
                if row.get("dev")
            ]
            for folder in folders
        ],
        "device": manifest.device,
        "acceleration": manifest.acceleration,
        "versions": {name: manifest.versions.get(name, "") for name in ("torch", "transformers")},
    }


if __name__ == "__main__":
    main()
