"""SWE-bench for Tunix Core: a policy works in a repository and is graded on hidden tests."""
