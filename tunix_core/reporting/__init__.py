"""Progress, reports and files a person reads. Takes metrics and trajectories; changes nothing."""
