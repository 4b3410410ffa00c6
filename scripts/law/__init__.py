"""The runs that the law of gpt/recipe is fitted on, and the fit. `fit_law.py` does both."""
