"""Whether training is sound: gradients that are numbers, and an engine that agrees with the trainer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from tunix_core.config import TrainerConfig
from tunix_core.errors import Disagreement, NotFinite
from tunix_core.trainer.steps import Report
from tunix_core.types import Group

log = logging.getLogger(__name__)
Keep = Callable[[int, Sequence[Group]], None]
BROKEN_IN_A_ROW = 3  # steps without a finite gradient that end the run


def drop(version: int, groups: Sequence[Group]) -> None:
    """A `Keep` for when nobody will look."""


class Health:
    """Watches a trainer's steps.

    Args:
        config: its bounds.
        keep: given the version and the groups of a step whose gradient was not finite.
    """

    def __init__(self, config: TrainerConfig, keep: Keep) -> None:
        self._config, self._keep = config, keep
        self._groups = list[Group]()
        self._broken = 0
        self._warned = False

    def take(self, group: Group) -> None:
        """A group of the step that comes next."""
        self._groups.append(group)

    def check(self, version: int, reports: Sequence[Report], metrics: Mapping[str, float]) -> dict[str, float]:
        """Judges a step taken at `version`; gives "not_finite", how many of its updates were no numbers.

        Raises:
            NotFinite: this happened to BROKEN_IN_A_ROW steps in a row.
            Disagreement: "agreement_max" is over `max_disagreement`.
        """
        groups, self._groups = self._groups, []
        broken = sum(bool(report.broken) for report in reports)
        if broken:
            self._keep(version, groups)
            self._on_broken(version)
        elif any(report.applied for report in reports):
            self._broken = 0
        self._compare(version, metrics)
        return {"not_finite": float(broken)}

    def _on_broken(self, version: int) -> None:
        self._broken += 1
        log.warning("step %d: the gradient is not finite; nothing was changed, and its groups are kept", version)
        if self._broken >= BROKEN_IN_A_ROW:
            raise NotFinite(
                f"the gradient of {self._broken} steps in a row, up to step {version}, was not finite. Look at the "
                "groups kept for each; then lower trainer.learning_rate, or resume from a checkpoint before them."
            )

    def _compare(self, version: int, metrics: Mapping[str, float]) -> None:
        found, warn, most = metrics["agreement_max"], self._config.warn_disagreement, self._config.max_disagreement
        text = (
            f"step {version}: trainer and engine disagree by up to {found:.2g} (mean {metrics['agreement_mean']:.2g}) "
            "about the log-probability of tokens that this very version sampled"
        )
        if most is not None and found > most:
            raise Disagreement(
                f"{text}, over trainer.max_disagreement = {most:g}. They must compute the same: the same dtype and "
                "model; or raise the bound, if this is how much they may round apart."
            )
        if warn is not None and found > warn and not self._warned:
            self._warned = True
            log.warning("%s, over trainer.warn_disagreement = %g; said once", text, warn)
