"""What the doctor finds, as tests ask for it."""

from __future__ import annotations

from ipg.evaluation.doctor.diagnosis import diagnose
from ipg.evaluation.doctor.finding import Finding
from ipg.evaluation.doctor.log import RunLog

__all__ = ["found"]


def found(log: RunLog) -> dict[str, Finding]:
    """The findings by their names, the worst first."""
    return {finding.name: finding for finding in diagnose(log)}
