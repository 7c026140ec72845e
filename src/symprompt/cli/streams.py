"""Files of any size that ask or predict answers, in one go or by jobs."""

from __future__ import annotations

from typing import Any

from symprompt.cli.flags import StreamFlags
from symprompt.cluster.machine import Jobs
from symprompt.errors import counted
from symprompt.files.progress import duration, show_progress
from symprompt.papers.shards import AskShard, PredictShard, ShardedFile, describe_shards
from symprompt.report.printing import show
from symprompt.tasks.trainables import Outcome


def stream_file(
    config: AskShard | PredictShard, run: Any, flags: StreamFlags, what: str
) -> Outcome | None:
    """Answer a file and print what came of it.

    Args:
        config: the run, the file and what is asked.
        run: the run, opened.
        what: one of the answers.

    Returns:
        The figures; None where the jobs were only planned.
    """
    jobs = flags.as_given
    if flags.dry_run:
        show("\n".join(describe_shards(ShardedFile(config, jobs or Jobs()).plan())))
        return None
    with show_progress() as tick:
        if jobs is None:
            done, found = config.make(run, overwrite=flags.overwrite, tick=tick)
        else:
            sharded = ShardedFile(config, jobs)
            done, found = sharded.make(overwrite=flags.overwrite, tick=tick)
    new = done.rows - done.resumed
    rate = f" ({new / done.seconds:,.1f}/s)" if done.seconds and new else ""
    before = f", {done.resumed:,} of them by an earlier run" if done.resumed else ""
    print(f"{counted(done.rows, what)} in {duration(done.seconds)}{rate}{before}: {done.out}")
    if done.bad:
        print(f"{counted(done.bad, 'row')} could not be used; lines and reasons: {done.bad_file}")
    return found
