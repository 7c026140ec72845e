"""Learning rates: a warm-up, then constant, linear or exponential."""

from __future__ import annotations

import numpy as np
import pytest

from symprompt.engine.loop import rate_share


def test_rates_rise_over_the_warm_up_and_fall_to_zero() -> None:
    shares = [float(rate_share(step, 10, warmup=0.2)) for step in range(10)]
    assert shares[:3] == [0.5, 1.0, 1.0]
    assert shares[9] == pytest.approx(1 / 8)
    assert float(rate_share(0, 10)) == 1
    assert float(rate_share(10, 10)) == 0


def test_other_schedules_keep_their_height_or_lose_it_each_epoch() -> None:
    assert float(rate_share(7, 10, schedule="constant")) == 1
    assert float(rate_share(0, 10, schedule="constant", warmup=0.2)) == 0.5
    found = rate_share(7, 10, schedule="exponential", decay=0.9, epoch=2)
    assert float(found) == pytest.approx(0.81)


def test_arrays_give_each_relation_its_own_rate() -> None:
    steps, totals = np.array([[0, 0], [1, 1]]), np.array([2, 4])
    assert rate_share(steps, totals).tolist() == [[1.0, 1.0], [0.5, 0.75]]
