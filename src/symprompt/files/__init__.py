"""Files on disk: written whole or not at all, rows and documents read with their line numbers."""
