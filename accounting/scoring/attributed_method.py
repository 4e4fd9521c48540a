"""The attributed method: from a history to hazards, who broke what, and capability. Depends on the history and its
`as_of` alone. The EM is in `blame`, hours and breakdown in `exposure`, what counts as one failure in `failures`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import gammaincc, gammaincinv

from ..history.columns import FloatArray, History, sum_by
from ..history.truncate import until
from . import exposure as exposures
from . import failures as failing
from . import trust as trusting
from .em import Evidence, Model, Solution, solve
from .published_method import Options
from .stretches import Stretches


@dataclass(frozen=True)
class Attribution:
    """The result over nodes. charged: effective failures; known: of those by known culprits or events; users: how many
    users' failures charge the node; reliability: heavy hours per failure (1 / E[λ]); capability: reliability over
    1 + breakdown. blame: share of each candidate row of `failures` (known culprits included), own: the job's share per
    failure."""

    solution: Solution
    failures: failing.Failures
    ran: failing.Attempted
    exposure: exposures.Exposure
    trust: trusting.Trust
    evidence_events: Any
    known: FloatArray
    users: Any
    blame: FloatArray
    own: FloatArray
    reliability: FloatArray
    capability: FloatArray
    notes: tuple[str, ...] = ()

    @property
    def breakdown(self) -> FloatArray:
        """Overload hours weighted by the loss of efficiency, as a share of the node's window."""
        return self.exposure.breakdown

    @property
    def hazard(self) -> FloatArray:
        """Mean hazard of each node, failures per heavy hour."""
        return self.solution.hazard

    @property
    def correctness(self) -> FloatArray:
        """c of the method for each candidate row of `failures`, 1 - 2 · blame: +1 this node had no part, -1 it was it."""
        return 1.0 - 2.0 * self.blame

    def hazard_quantile(self, p: float) -> FloatArray:
        """Quantile of each node's hazard."""
        return gammaincinv(self.solution.shape, p) / self.solution.rate

    def probability_above(self, hazard: float) -> FloatArray:
        """P(λ_i > hazard) for each node."""
        return gammaincc(self.solution.shape, hazard * self.solution.rate)


def attribute(
    history: History, options: Options | None = None, model: Model | None = None, past: Stretches | None = None
) -> Attribution:
    """Score a history by the attributed method. Same history and `as_of`, same result; past: see `exposure.measure`."""
    options, model = options or Options(), model or Model()
    history = until(history, history.as_of)
    trust = trusting.from_events(history.events, len(history.nodes), history.as_of)
    measured = exposures.measure(history, options, model.half_life_days, trust, past)
    ran = failing.attempted(history)
    failures = failing.collect(history, ran, measured.weight)
    events = failing.event_evidence(history, failures)
    fade = _fading(history.as_of, model)
    known = _known_charges(history, failures, events, fade, trust)
    rows, evidence = _evidence(
        history, failures=failures, ran=ran, measured=measured, known=known, fade=fade, trust=trust, model=model
    )
    solution = solve(evidence, model)
    blame = np.where(failures.culprit, _split_culprits(failures), 0.0)
    blame[rows] = solution.blame
    own = np.where(failures.known, 0.0, solution.own)
    faded = blame * failures.weight * fade(failures.time)[failures.failure]
    reliability = 1.0 / solution.hazard
    return Attribution(
        solution, failures, ran, measured, trust, events, known, failing.users_blaming(failures, faded, len(history.nodes)),
        blame, own, reliability, reliability / (1.0 + measured.breakdown), _notes(measured, solution),
    )  # fmt: skip


def _fading(as_of: float, model: Model) -> Any:
    half_life = model.half_life_days * 86400.0
    return lambda time: np.exp2((np.minimum(time, as_of) - as_of) / half_life)


def _known_charges(history: History, failures: failing.Failures, events: Any, fade: Any, trust: trusting.Trust) -> FloatArray:
    """Charges that need no EM: known culprits, and events that are evidence on their own."""
    n = len(history.nodes)
    time = failures.time[failures.failure]
    weight = failing.known_share(failures) * failures.weight * fade(time) * trust.factor(failures.node, time)
    node, start = history.events.node[events], history.events.start[events]
    of_event = failing.EVENT_WEIGHT * fade(start) * trust.factor(node, start)
    return sum_by(failures.node, weight, n) + sum_by(node, of_event, n)


def _evidence(
    history: History, *, failures: failing.Failures, ran: failing.Attempted, measured: exposures.Exposure,
    known: FloatArray, fade: Any, trust: trusting.Trust, model: Model,
) -> tuple[Any, Evidence]:  # fmt: skip
    rows = np.flatnonzero(~failures.known[failures.failure])
    failure, node = failures.failure[rows], failures.node[rows]
    time = failures.time[failure]
    weight = measured.gain * failures.weight[rows] * failures.share[failure] * fade(time) * trust.factor(node, time)
    attempts = history.attempts
    charged = failing.charged_hours(history, ran, failures)
    n_work, n_users = max(len(attempts.works), 1), max(len(attempts.users), 1)
    log_hours = np.log1p(ran.hours[charged] / model.early_hours) * fade(ran.end[charged])
    user_of_work = np.zeros(n_work, np.int64)
    user_of_work[attempts.work] = attempts.user
    return rows, Evidence(
        failure=failure, node=node, user=failures.user[failure], row_weight=weight,
        elapsed=np.where(failures.lost & ~failures.known, np.inf, failures.elapsed),
        work=failures.work, weight=np.where(failures.known, 0.0, fade(failures.time) * failures.share),
        fixed=measured.gain * known, exposure=measured.gain * measured.weighted, gpu_type=history.nodes.gpu_type,
        work_log_hours=sum_by(attempts.work[charged], log_hours, n_work), user_of_work=user_of_work, n_users=n_users,
    )  # fmt: skip


def _split_culprits(failures: failing.Failures) -> FloatArray:
    many = sum_by(failures.failure, failures.culprit.astype(float), len(failures))
    return 1.0 / np.maximum(many[failures.failure], 1.0)


def _notes(measured: exposures.Exposure, solution: Solution) -> tuple[str, ...]:
    notes = list(measured.notes)
    if len(solution.prior_mean):
        # what a node is believed to have done before any of its own work is counted
        failures, hours = solution.prior_shape, solution.prior_shape / float(np.median(solution.prior_mean))
        notes.append(
            f"each node's failure rate is its own record joined with the average, which counts as {hours:,.0f} hours of heavy"
            f" work with {failures:.2g} failures: a node with much less work stays near the average, one with much more stands"
            " on its own record"
        )
    if not solution.converged:
        notes.append(
            f"the shares of blame had not settled after {solution.steps} rounds of weighing nodes against each other: rates and"
            " blame are less exact than usual"
        )
    return tuple(notes)
