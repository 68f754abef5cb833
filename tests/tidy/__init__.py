"""Rules about the code and the documentation."""
