"""A row of lamps to turn on."""
