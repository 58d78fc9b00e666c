"""One HTML page about a fitted model: the public name of `softwood.explain.report`."""

from softwood.explain.report import write_report

__all__ = ["write_report"]
