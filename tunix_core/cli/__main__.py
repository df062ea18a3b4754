"""`python -m tunix_core.cli` is `tunix`."""

from tunix_core.cli.app import main

main()
