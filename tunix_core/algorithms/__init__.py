"""Pure helpers for authors of algorithms: masked means, ratios, clips, KL estimators, group statistics.

Does not know models, optimizers or batches beyond the arrays it is given.
"""
