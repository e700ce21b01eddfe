"""One halving over the whole study, as steep as the ranks seen so far allow."""

from optuna_deadline.policies.adaptive_halving.policy import AdaptiveHalving

__all__ = ["AdaptiveHalving"]
