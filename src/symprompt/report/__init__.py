"""Tables, figures and pages, computed from stored predictions and never from a live model."""
