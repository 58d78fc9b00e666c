"""Typed columns in, inputs of the trees out: columns -> base columns -> features of linear splits, cells of lookups."""
