"""Work stealing: choosing moves, and asking workers to give tasks back."""
