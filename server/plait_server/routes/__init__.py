"""One file per noun of the HTTP interface."""
