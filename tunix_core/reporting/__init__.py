"""Progress, reports and files a person reads. Takes metrics and trajectories; changes nothing."""

from tunix_core.reporting.pipeline import pipeline_summary, pipeline_table
from tunix_core.reporting.progress import Progress
from tunix_core.reporting.run_dir import RunDir, read_rows
from tunix_core.reporting.summary import summarise, summary_table
from tunix_core.reporting.trace import write_trace

__all__ = [
    "Progress",
    "RunDir",
    "pipeline_summary",
    "pipeline_table",
    "read_rows",
    "summarise",
    "summary_table",
    "write_trace",
]
