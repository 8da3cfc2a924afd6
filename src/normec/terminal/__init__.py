"""What commands show in the terminal: progress, tables, notes."""
