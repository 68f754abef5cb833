"""How tasks change state, and the bookkeeping that follows from each change."""
