"""Tables larger than memory, in pieces: files -> sketch -> outline -> fit. Dask's partitions go the same way."""
