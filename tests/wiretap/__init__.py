"""What stock peers send, compared with the catalogue."""
