"""Progress, reports and files a person reads. Takes metrics and trajectories; changes nothing."""

from tunix_core.reporting.progress import Progress
from tunix_core.reporting.run_dir import RunDir
from tunix_core.reporting.summary import summarise, summary_table

__all__ = ["Progress", "RunDir", "summarise", "summary_table"]
