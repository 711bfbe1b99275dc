"""Seconds to fold new users into a fit, and how well they are then predicted.

    python -m bench.fold_in --data ml-1m --latent-dim 10 40 --max-topics 64

Some users' ratings are left out of the fit. A few of each are folded in, the others
are predicted: by the fit with these users in it, and as the prior predicts a new one.
The first call compiles; it is told apart from those after it, each with another seed.
"""

import argparse
import sys
import time

import numpy as np

from bench import machine
from im3f_jax.errors import InputError

__all__ = ["main", "measure", "split_users"]


def split_users(user, number, each, seed=0):
    """Choose users, and some ratings of each.

    Parameters
    ----------
    user : ndarray of int, shape (N,)
        User of each rating.
    number, each : int
        Users, and ratings of each that are folded in; at least one more is predicted.
    seed : int
        Of the choice.

    Returns
    -------
    tuple of ndarray of bool, shape (N,)
        Ratings that are folded in, and those that are predicted.

    Raises
    ------
    InputError
        Where not so many users have so many ratings.
    """
    rng = np.random.default_rng(seed)
    found, count = np.unique(user, return_counts=True)
    enough = found[count > each]
    if len(enough) < number:
        raise InputError(
            f"{len(enough)} users have more than {each} ratings, not {number}"
        )
    chosen = np.isin(user, rng.choice(enough, number, replace=False))
    order = rng.permutation(len(user))
    order = order[np.argsort(user[order], kind="stable")]
    start = np.searchsorted(user[order], user[order])
    given = np.zeros(len(user), bool)
    given[order] = np.arange(len(user)) - start < each
    return chosen & given, chosen & ~given


def measure(data, latent_dim, truncation, number, each, warmup, kept, calls):
    """Fit without some users, fold them in, predict what they rated.

    Returns
    -------
    dict
        "seconds" of every call after the first, their "median", "first_call" (it
        compiles), "fit_seconds", and "rmse": of the fit with the users in it
        ("folded"), and of the fit without them ("prior").
    """
    import im3f_jax as im3f
    from bench import throughput

    columns = throughput.load(data)
    ratings = im3f.Ratings.from_arrays(*columns[1:4], duplicates="keep")
    given, asked = split_users(ratings.user, number, each)
    new, asked = ratings.select(given), ratings.select(asked)
    train = ratings.select(~np.isin(ratings.user, new.user))
    # Nobody can rate what nobody else has rated.
    known = np.unique(train.item)
    new = new.select(np.isin(new.item, known))
    model = (
        im3f.IM3F(latent_dim, max_user_topics=truncation, max_item_topics=truncation)
        if truncation
        else im3f.BPMF(latent_dim)
    )
    begin = time.perf_counter()
    posterior = model.fit(train, num_warmup=warmup, num_samples=kept, progress=False)
    ends = [time.perf_counter()]
    fit_seconds = ends[0] - begin
    for seed in range(1 + calls):
        folded = posterior.fold_in(new, seed=seed)
        ends.append(time.perf_counter())
    first, *seconds = np.diff(ends).tolist()
    rmse = {
        name: one.evaluate(asked, log_score=False)["rmse"]
        for name, one in (("folded", folded), ("prior", posterior))
    }
    return {
        "latent_dim": latent_dim,
        "columns": [posterior.spec.num_user_topics, posterior.spec.num_item_topics],
        "kept_draws": posterior.num_kept,
        "new_users": number,
        "new_ratings": len(new),
        "predicted_ratings": len(asked),
        "device": posterior.device,
        "fit_seconds": fit_seconds,
        "first_call": first,
        "seconds": seconds,
        "median": float(np.median(seconds)),
        "rmse": rmse,
    }


def main(argv=None):
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.fold_in",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", default="ml-1m", help="as of bench.throughput")
    parser.add_argument(
        "--latent-dim", type=int, nargs="+", default=[10, 40], metavar="D"
    )
    parser.add_argument("--max-topics", type=int, default=64, metavar="K")
    parser.add_argument("--new-users", type=int, default=1000, metavar="N")
    parser.add_argument("--ratings", type=int, default=20, metavar="N", help="of each")
    parser.add_argument("--num-warmup", type=int, default=50, metavar="N")
    parser.add_argument("--kept", type=int, default=50, metavar="N")
    parser.add_argument("--calls", type=int, default=3, metavar="N")
    parser.add_argument("--json-name", default="fold_in", metavar="NAME")
    options = parser.parse_args(argv)
    from bench import throughput

    started, runs = machine.describe(), []
    try:
        throughput.check_name(options.data)
        for dim in options.latent_dim:
            run = measure(
                options.data,
                dim,
                options.max_topics,
                options.new_users,
                options.ratings,
                options.num_warmup,
                options.kept,
                options.calls,
            )
            runs.append(run)
            print(
                f"D = {dim}: {run['new_users']} users of {options.ratings} ratings "
                f"into {run['kept_draws']} draws: {run['median']:.2f} s (first call "
                f"{run['first_call']:.1f} s), RMSE {run['rmse']['folded']:.4f}, "
                f"without their ratings {run['rmse']['prior']:.4f}",
                flush=True,
            )
    except InputError as error:
        print(f"bench.fold_in: {error}", file=sys.stderr)
        return 2
    payload = {"data": options.data, "truncation": options.max_topics, "runs": runs}
    path = machine.write_result(options.json_name, payload, started)
    print(f"written: bench/results/{path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
