"""Random streams against those of Flax: the same seeds, the same keys and counts."""

import jax
import numpy as np
import pytest

import nnx_transforms as ours
from nnx_transforms.randomness.random_methods import _FUNCTIONS, _INITIALIZERS

theirs = pytest.importorskip("flax.nnx")

NOISE = jax.random.key(7)


def seeds(nnx):
    return nnx.Rngs({"params": 3, "default": 5}, dropout=NOISE)


def several_draws(nnx):
    rngs = seeds(nnx)
    return rngs, [rngs(), rngs.params(), rngs["dropout"](), rngs.unknown(), rngs()]


def forks(nnx):
    rngs = seeds(nnx)
    rngs.params()
    return rngs, rngs.fork(), rngs.params.fork(), rngs.dropout.split(2)


def splits_by_filter(nnx):
    rngs = seeds(nnx)
    return rngs, rngs.split({"params": 2, "dropout": None, ...: (2, 3)}), rngs.split(4)


def broadcasts(nnx):
    rngs = seeds(nnx)
    return rngs, rngs.broadcast({"params": 2, "dropout": None}), rngs.broadcast((2, 3))


def split_in_place(nnx):
    rngs = seeds(nnx)
    with nnx.split_rngs(rngs, splits=3, only=nnx.Not("params")):
        inside = [stream.key[...] for _, stream in sorted(rngs.items())]
    nnx.split_rngs(rngs, splits=1, only="params", squeeze=True)
    return rngs, inside


def forked_in_place(nnx):
    rngs = seeds(nnx)
    backups = nnx.fork_rngs(rngs, split={"params": (2, 2), "dropout": None})
    inside = [stream.key[...] for _, stream in sorted(rngs.items())]
    nnx.restore_rngs(backups)
    return rngs, inside


def copied(nnx):
    rngs = seeds(nnx)
    how = {"split": {"params": 2}, "fork": "dropout", "broadcast": {...: 3}}
    return rngs, nnx.with_rngs(rngs, graph_updates=False, **how)


def reseeded(nnx):
    model = nnx.Dict(a=seeds(nnx), b=nnx.Rngs(params=1))
    before = getattr(nnx, "rnglib", nnx).backup_keys(model)
    nnx.reseed(model, params=9, dropout=NOISE)
    inside = model.a.params(), model.b.params(), model.a.dropout()
    nnx.restore_rngs(before)
    return model, inside


def mapped(nnx):
    @nnx.split_rngs(splits=4)
    @nnx.vmap(in_axes=(nnx.StateAxes({...: 0}),))
    def draw(rngs):
        return rngs.params.normal((2,))

    rngs = seeds(nnx)
    return rngs, draw(rngs), draw(rngs)


def among_pytrees(nnx):
    @nnx.jit
    def draw(tree):
        return tree["rngs"].normal((2,)), tree["stream"].uniform()

    rngs = seeds(nnx)
    return rngs, draw({"rngs": rngs, "stream": rngs.params})


PROGRAMS = [
    several_draws,
    forks,
    splits_by_filter,
    broadcasts,
    split_in_place,
    forked_in_place,
    copied,
    reseeded,
    mapped,
    among_pytrees,
]


def written(nnx, tree):
    """All keys and arrays in a result, by path."""
    if isinstance(tree, list | tuple):
        return [written(nnx, part) for part in tree]
    if nnx.graph.is_graph_node(tree):
        flat = nnx.to_flat_state(nnx.state(tree))
        return {path: data(leaf[...]) for path, leaf in flat}
    return data(tree)


def data(array):
    is_key = jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(array) if is_key else array).tolist()


@pytest.mark.filterwarnings("ignore:The 'split' argument:DeprecationWarning")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_same_keys_and_counts(program):
    assert written(ours, program(ours)) == written(theirs, program(theirs))


ARGUMENTS = {
    "ball": (2, 2.0, (3,)),
    "bernoulli": (0.5, (3,)),
    "beta": (1.0, 2.0, (3,)),
    "binomial": (5, 0.5, (3,)),
    "categorical": (np.zeros(4),),
    "chisquare": (2.0, (3,)),
    "choice": (5, (3,)),
    "dirichlet": (np.ones(3),),
    "f": (2.0, 3.0, (3,)),
    "gamma": (2.0, (3,)),
    "generalized_normal": (2.0, (3,)),
    "geometric": (0.5, (3,)),
    "lognormal": (1.0, (3,)),
    "loggamma": (2.0, (3,)),
    "multinomial": (5, np.ones(3) / 3),
    "multivariate_normal": (np.zeros(2), np.eye(2)),
    "orthogonal": (2,),
    "pareto": (2.0, (3,)),
    "permutation": (5,),
    "poisson": (2.0, (3,)),
    "randint": ((3,), 0, 9),
    "rayleigh": (2.0, (3,)),
    "t": (2.0, (3,)),
    "triangular": (0.0, 0.5, 1.0, (3,)),
    "truncated_normal": (-1.0, 1.0, (3,)),
    "wald": (2.0, (3,)),
    "weibull_min": (1.0, 2.0, (3,)),
    "double_sided_maxwell": (0.0, 1.0, (3,)),
}


def traced(nnx, name, *calls):
    """What a method computes of the seed of a stream: operations and result."""

    def program(key):
        rngs = nnx.Rngs(params=key, default=0)
        result = getattr(rngs.params, name)
        for arguments in calls:
            result = result(*arguments)
        return result, rngs.params.count[...]

    jaxpr = jax.make_jaxpr(program)(NOISE)
    # The count may go up before or after the draw.
    operations = (f"{e.primitive} {e.params.get('name', '')}" for e in jaxpr.eqns)
    return sorted(operations), jaxpr.out_avals


@pytest.mark.parametrize("name", _FUNCTIONS.split())
def test_functions_of_jax_as_methods(name):
    arguments = ARGUMENTS.get(name, ((3,),))
    assert traced(ours, name, arguments) == traced(theirs, name, arguments)


@pytest.mark.parametrize("name", _INITIALIZERS.split())
def test_initializers_as_methods(name):
    how = (1.0, "fan_in", "normal") if name == "variance_scaling" else ()
    shape = (3, 3, 2, 2) if name == "delta_orthogonal" else (3, 2)
    calls = how, (shape,)
    assert traced(ours, name, *calls) == traced(theirs, name, *calls)


def test_flax_has_no_further_methods():
    known = {*_FUNCTIONS.split(), *_INITIALIZERS.split(), "fork", "split", "broadcast"}
    public = {name for name in vars(theirs.RngStream) if not name.startswith("_")}
    assert public <= known | {"set_metadata"}


@pytest.mark.parametrize(("split", "restore"), [(ours, theirs), (theirs, ours)])
def test_what_one_library_split_the_other_restores(split, restore):
    if not hasattr(theirs, "restore_rngs"):
        pytest.skip("this release of Flax restores streams with states")
    rngs = theirs.Rngs(0)
    before = rngs.default.key[...]
    restore.restore_rngs(split.split_rngs(rngs, splits=3))
    assert rngs.default.key[...] == before
    assert rngs.default.count[...] == 1
