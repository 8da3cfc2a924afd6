"""What the commands do, one function each."""
