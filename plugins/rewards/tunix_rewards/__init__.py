"""General rewards for Tunix Core."""
