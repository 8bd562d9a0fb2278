"""One module per published figure; each has NAME, TITLE and `measure(options) -> Measured`."""
