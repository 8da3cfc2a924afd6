"""One self-contained HTML page over runs: what `normec report` writes."""
