"""What a command's start costs: scipy.stats alone takes a second, and nothing here needs it."""

import subprocess
import sys

import pytest

SCORERS = (
    "accounting.scoring.attributed_method, accounting.scoring.groups, accounting.scoring.outliers, accounting.scoring.failures, "
    "accounting.evaluation.effect, accounting.evaluation.backtest"
)


@pytest.mark.parametrize(("modules", "unwanted"), [(SCORERS, "scipy.stats"), ("accounting.cli.collect", "scipy")])
def test_start_is_light(modules: str, unwanted: str) -> None:
    code = f"import sys, {modules}; sys.exit({unwanted!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_poisson_quantile_is_that_of_scipy_stats() -> None:
    import numpy as np
    from scipy.stats import poisson

    from accounting.scoring.failures import _poisson_quantile

    rates = np.concatenate([[0.0], np.logspace(-9, 5, 500)])
    for p in (1 - 1e-6, 0.99, 0.5):
        assert (_poisson_quantile(p, rates) == poisson.ppf(p, rates)).all()
