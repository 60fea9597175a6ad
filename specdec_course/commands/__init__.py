"""One file a sub-command of `specdec`."""
