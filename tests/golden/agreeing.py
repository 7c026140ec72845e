"""Where a run differs from its golden run: to the bit, or by more than other machines explain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

NEAR = 1e-4
"""What scores may differ by, absolutely and as a share of their size, on another machine."""

# Computed from ranks and labels; they can only agree where those do.
_DERIVED = ("metrics", "dev", "best epoch", "weights", "frequency shares", "seeds")


def near(one: float, other: float) -> bool:
    """Say whether two numbers are the same but for what machines differ by."""
    return one == other or abs(one - other) <= NEAR * (1 + max(abs(one), abs(other)))


def differences(golden: Any, found: Any, *, exact: bool) -> list[str]:
    """Return a line for every quantity that differs; none where the two agree."""
    if exact:
        return list(_exact(golden, found, ""))
    found_lines, same_choices = _close(golden, found, "")
    if not same_choices:
        return [line for line in found_lines if not _is_derived(line)]
    return found_lines


def shape_differences(golden: Any, found: Any, *, exact: bool = False, path: str = "") -> list[str]:
    """Return a line for every quantity that is missing, new or of another kind."""
    if isinstance(golden, Mapping) and isinstance(found, Mapping):
        lines = [] if set(golden) == set(found) else _other_names(golden, found, path)
        pairs = [(f"{path}/{key}", golden[key], found[key]) for key in golden if key in found]
    elif isinstance(golden, list) and isinstance(found, list):
        # How many spans or candidates an item has follows from its scores.
        lines = [] if bool(golden) == bool(found) else [f"{path}: nothing is there"]
        pairs = [(f"{path}/0", golden[0], found[0])] if golden and found else []
    else:
        number = int | float | None
        same = isinstance(golden, number) and isinstance(found, number)
        same = same or type(golden) is type(found)
        return [] if same else [f"{path}: {golden!r} was stored, {found!r} is there"]
    return lines + [
        line for place, one, other in pairs for line in shape_differences(one, other, path=place)
    ]


def _is_derived(line: str) -> bool:
    path = line.partition(":")[0]
    return any(f"/{part}/" in f"{path}/" for part in _DERIVED)


def _exact(golden: Any, found: Any, path: str) -> list[str]:
    if isinstance(golden, Mapping) and isinstance(found, Mapping):
        lines = [] if list(golden) == list(found) else _other_names(golden, found, path)
        for key in golden:
            if key in found:
                lines += _exact(golden[key], found[key], f"{path}/{key}")
        return lines
    if isinstance(golden, list) and isinstance(found, list):
        if len(golden) != len(found):
            return [f"{path}: {len(golden)} were stored, {len(found)} are there"]
        return [
            line
            for place, (one, other) in enumerate(zip(golden, found, strict=True))
            for line in _exact(one, other, f"{path}/{_name(one, place)}")
        ]
    if type(golden) is not type(found) or golden != found:
        return [f"{path}: {golden!r} was stored, {found!r} is there"]
    return []


def _other_names(golden: Mapping[str, Any], found: Mapping[str, Any], path: str) -> list[str]:
    lines = [f"{path}/{key}: is missing" for key in golden if key not in found]
    return lines + [f"{path}/{key}: was not stored" for key in found if key not in golden]


def _name(item: Any, place: int) -> str:
    """Return what a message calls an item: a fact, an example's id, or its place."""
    if isinstance(item, Mapping):
        if "subject" in item and "relation" in item:
            parts = (item.get("split"), item["relation"], item["subject"], item["object"])
            return f"[{' '.join(str(part) for part in parts if part)}]"
        if "id" in item:
            return f"[{' '.join(str(item[key]) for key in ('split', 'seed', 'id') if key in item)}]"
    return str(place)


def _close(golden: Any, found: Any, path: str) -> tuple[list[str], bool]:
    """Return what differs by too much, and whether all ranks and labels are the same."""
    if isinstance(golden, Mapping) and isinstance(found, Mapping):
        if "ranks" in golden and "object scores" in golden:
            return _close_fact(golden, found, path)
        if "prediction" in golden and golden["prediction"] != found.get("prediction"):
            return _close_label(golden, found, path)
        if set(golden) == set(found) == {"count", "sum", "size"}:
            return _close_sums(golden, found, path)
        pairs = {key: (golden[key], found[key]) for key in golden if key in found}
        lines, same = _other_names(golden, found, path), True
        for key, (one, other) in pairs.items():
            more, agree = _close(one, other, f"{path}/{key}")
            lines, same = lines + more, same and agree
        return lines, same
    if isinstance(golden, list) and isinstance(found, list) and len(golden) == len(found):
        lines, same = [], True
        for place, (one, other) in enumerate(zip(golden, found, strict=True)):
            more, agree = _close(one, other, f"{path}/{_name(one, place)}")
            lines, same = lines + more, same and agree
        return lines, same
    numbers = _is_number(golden) and _is_number(found)
    agree = near(golden, found) if numbers else golden == found
    return ([] if agree else [f"{path}: {golden!r} was stored, {found!r} is there"]), True


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _close_fact(
    golden: Mapping[str, Any], found: Mapping[str, Any], path: str
) -> tuple[list[str], bool]:
    """Compare a fact: scores candidate by candidate; ranks may differ where scores tie."""
    lines: list[str] = []
    for key in ("split", "relation", "subject", "object"):
        if golden.get(key) != found.get(key):
            return [f"{path}/{key}: {golden.get(key)!r} was stored, {found.get(key)!r} is there"], (
                True
            )
    if not near(golden["own score"], found["own score"]):
        lines.append(
            f"{path}/own score: {golden['own score']} was stored, {found['own score']} is there"
        )
    for kind in ("object scores", "subject scores", "joint scores"):
        if (kind in golden) != (kind in found):
            lines.append(f"{path}/{kind}: stored or there alone")
        elif kind in golden:
            lines += _close_candidates(golden, found, kind, path)
    same = golden["ranks"] == found["ranks"]
    if not same and not _may_differ(golden, found):
        lines.append(
            f"{path}/ranks: {golden['ranks']} were stored, {found['ranks']} are there, and no "
            "score ties with the object's"
        )
    return lines, same


def _close_candidates(
    golden: Mapping[str, Any], found: Mapping[str, Any], kind: str, path: str
) -> list[str]:
    before = dict(zip(golden["candidates"], golden[kind], strict=True))
    after = dict(zip(found["candidates"], found[kind], strict=True))
    lines = [
        f"{path}/{kind}/{name}: {before[name]} was stored, {after[name]} is there"
        for name in before
        if name in after and not near(before[name], after[name])
    ]
    # Another candidate may only come in at the end, where it ties with the one that went.
    last = min(golden["object scores"])
    score = dict(zip(golden["candidates"], golden["object scores"], strict=True))
    lines += [
        f"{path}/candidates/{name}: was stored, is missing, and does not tie with the last"
        for name in before
        if name not in after and not near(score[name], last)
    ]
    return lines


def _may_differ(golden: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Say whether a score that the ranks are made of ties with the object's own.

    Beyond the stored candidates other scores are not known; there one of them may have tied.
    """
    names: Sequence[str] = golden["candidates"]
    if golden["object"] not in names:
        pairs = zip(golden["ranks"].values(), found["ranks"].values(), strict=True)
        return all(abs(one - other) <= 1 for one, other in pairs)
    own = names.index(golden["object"])
    return any(
        near(golden[kind][own], golden[kind][place])
        for kind in ("object scores", "joint scores")
        if kind in golden
        for place in range(len(names))
        if place != own
    )


def _close_label(
    golden: Mapping[str, Any], found: Mapping[str, Any], path: str
) -> tuple[list[str], bool]:
    """Compare items with other labels or answers: these may differ only where scores tie."""
    message = f"{path}/prediction: {golden['prediction']!r} was stored, "
    message += f"{found.get('prediction')!r} is there"
    scores = [entry["score"] for entry in golden.get("candidates", ())]
    if len(scores) > 1 and near(scores[0], scores[1]):
        return [], False
    share = golden.get("probability")
    if share is not None and share <= 0.5 + NEAR and near(share, found.get("probability", 0.0)):
        return [], False
    return [message], False


def _close_sums(
    golden: Mapping[str, Any], found: Mapping[str, Any], path: str
) -> tuple[list[str], bool]:
    """Compare sums of learned numbers by how large these are, as they may cancel each other."""
    most = NEAR * (1 + golden["size"])
    agree = golden["count"] == found["count"]
    agree &= all(abs(golden[key] - found[key]) <= most for key in ("sum", "size"))
    return ([] if agree else [f"{path}: {golden} was stored, {found} is there"]), True
