"""Whether hyper-parameters of synchronous elastic averaging can converge, in closed form."""

from dlplacer.core.errors import InputError


def require_stable(learning_rate: float, strength: float, workers: int, curvature: float) -> None:
    """Raise InputError unless synchronous EASGD shrinks errors on a quadratic loss of this curvature.

    With a = η·ρ, β = P·a and curvature h the mean of the workers and the centre follow a 2 × 2 linear map whose
    spectral radius is below 1 exactly if (2 − η·h)(2 − β) > 2a and its determinant's size is below 1; for P > 1
    differences between workers need |1 − η·h − a| < 1 as well.
    """
    shrink, pull = learning_rate * curvature, learning_rate * strength
    if not is_stable(shrink, pull, workers):
        raise InputError(
            f"elastic averaging with η·h = {shrink:g}, a = η·ρ = {pull:g} on {workers} workers diverges: "
            f"(2 − η·h)(2 − P·a) must exceed 2a, and P·a must stay below 2; lower ρ or the learning rate"
        )


def is_stable(shrink: float, pull: float, workers: int) -> bool:
    """Whether η·h = `shrink`, a = `pull` and P workers converge."""
    attraction = workers * pull
    determinant = (1 - shrink - pull) * (1 - attraction) - pull * attraction
    mean_converges = (2 - shrink) * (2 - attraction) > 2 * pull and abs(determinant) < 1 and shrink * attraction > 0
    return mean_converges and (workers == 1 or abs(1 - shrink - pull) < 1)
