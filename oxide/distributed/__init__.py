"""Programs of several processes and machines. ``ray`` runs batches on actors of a Ray cluster."""
