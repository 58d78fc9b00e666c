"""What happens to a table before and around training: table -> target -> columns -> features -> fit."""
