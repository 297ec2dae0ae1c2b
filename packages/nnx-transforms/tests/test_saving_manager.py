"""Checkpoints that are damaged, and folders of them."""

import random
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnx_transforms as nnx
from nnx_transforms import saving

pytest.importorskip("orbax.checkpoint")


def model(value=0.0):
    return nnx.Dict(
        w=nnx.Param(jnp.full((64, 8), float(value))),
        rngs=nnx.Rngs(int(value)),
        count=nnx.Variable(int(value)),
    )


def is_model(node, value):
    same = jax.tree.map(
        lambda a, b: bool(jnp.all(a == b)), nnx.state(node), nnx.state(model(value))
    )
    return all(jax.tree.leaves(same))


def files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def cut(path, chance):
    """Cuts a file off somewhere, or removes it."""
    content = path.read_bytes()
    end = chance.randrange(len(content) + 1)
    if end == len(content):
        path.unlink()
    else:
        path.write_bytes(content[:end])


def flip(path, chance):
    """Changes a bit of a file."""
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [cut, flip])
def test_a_damaged_file_is_refused_or_did_not_matter(tmp_path, damage):
    chance = random.Random(0)
    saving.save(tmp_path / "whole", model(1.0))
    refused = 0
    for number in range(2 * len(files(tmp_path / "whole"))):
        copy = tmp_path / str(number)
        shutil.copytree(tmp_path / "whole", copy)
        chosen = files(copy)[number // 2]
        damage(chosen, chance)
        node = model(2.0)
        try:
            saving.restore(copy, node)
        except saving.DamagedCheckpointError:
            refused += 1
            assert is_model(node, 2.0), chosen
        else:
            assert is_model(node, 1.0), chosen
    # What orbax writes twice, or only to tell people, is not missed.
    assert refused >= 6


@pytest.mark.parametrize("other", [{"a": 2, "b": 3}, {"b": 3}])
def test_parts_of_two_checkpoints_are_not_one(tmp_path, other):
    def make(value, sizes):
        sizes = sizes.items()
        return nnx.Dict({key: nnx.Param(jnp.full(size, value)) for key, size in sizes})

    saving.save(tmp_path / "run", make(1.0, {"a": 3, "b": 3}))
    saving.save(tmp_path / "other", make(1.0, other))
    shutil.rmtree(tmp_path / "run" / "arrays")
    shutil.copytree(tmp_path / "other" / "arrays", tmp_path / "run" / "arrays")
    node = make(2.0, {"a": 3, "b": 3})
    with pytest.raises(saving.DamagedCheckpointError, match="'a' is another one"):
        saving.restore(tmp_path / "run", node)
    assert {*node.a.value.tolist(), *node.b.value.tolist()} == {2.0}


def test_a_saving_that_did_not_finish_is_none(tmp_path):
    saving.save(tmp_path / "run", model(1.0))
    unfinished = tmp_path / "run.orbax-checkpoint-tmp"
    (tmp_path / "run").rename(unfinished)
    node = model()
    with pytest.raises(FileNotFoundError):
        saving.restore(tmp_path / "run", node)
    with pytest.raises(saving.DamagedCheckpointError, match="did not finish"):
        saving.restore(unfinished, node)
    (tmp_path / "empty").mkdir()
    with pytest.raises(saving.DamagedCheckpointError, match="not a whole checkpoint"):
        saving.restore(tmp_path / "empty", node)
    assert is_model(node, 0.0)


def test_a_checkpoint_of_a_newer_format_says_so(tmp_path):
    saving.save(tmp_path / "run", model())
    [described] = (tmp_path / "run" / "contents").glob("metadata")
    text = described.read_text()
    described.write_text(text.replace('"format": 1', '"format": 2'))
    with pytest.raises(NotImplementedError, match="install a newer one"):
        saving.restore(tmp_path / "run", model())


@pytest.mark.parametrize("asynchronous", [True, False])
def test_the_last_ones_are_kept(tmp_path, asynchronous):
    with saving.Manager(
        tmp_path, keep=2, every=2, asynchronous=asynchronous
    ) as manager:
        saved = [manager.save(step, model(step)) for step in range(1, 8)]
        assert saved == [step in (1, 2, 4, 6) for step in range(1, 8)]
        manager.wait()
        assert manager.steps == [4, 6]
        assert manager.save(7, model(7), force=True)
    with saving.Manager(tmp_path) as manager:
        node = model()
        assert manager.steps == [6, 7]
        assert manager.restore(node) == 7 and is_model(node, 7)
        assert manager.restore(node, 6) == 6 and is_model(node, 6)
        with pytest.raises(FileNotFoundError):
            manager.restore(node, 4)
    # A step is an ordinary checkpoint.
    assert is_model(saving.restore(tmp_path / "6", model()), 6)


def test_the_last_whole_one_is_found(tmp_path):
    with saving.Manager(tmp_path) as manager:
        for step in (1, 2, 3):
            manager.save(step, model(step))
    (tmp_path / "3" / "contents" / "metadata").write_text("{")
    shutil.rmtree(tmp_path / "2" / "arrays" / "d")
    with saving.Manager(tmp_path) as manager:
        node = model()
        with pytest.warns(UserWarning, match=r"Step \d is passed over") as warnings:
            assert manager.restore(node) == 1
        assert len(warnings) == 2
        assert is_model(node, 1)
        # The run goes on, and saves these steps anew.
        assert manager.steps == [1]
        assert manager.save(2, model(2)) and manager.save(3, model(3))
    with saving.Manager(tmp_path) as manager:
        assert manager.restore(node) == 3 and is_model(node, 3)
    assert (tmp_path / "3.damaged").exists()


def test_what_would_not_be_found_is_not_saved(tmp_path):
    with saving.Manager(tmp_path) as manager:
        manager.save(5, model(5))
        assert not manager.save(5, model(5))
        with pytest.raises(ValueError, match=r"has later ones, \[5\], which `restore`"):
            manager.save(4, model(4))
        assert manager.save(4, model(4), force=True)
    with pytest.raises(ValueError, match="manager is closed"):
        manager.save(6, model(6))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["4", "5"]


def test_where_none_is_whole_nothing_is_restored(tmp_path):
    node = model(5)
    with saving.Manager(tmp_path) as manager:
        assert manager.restore(node) is None
        manager.save(1, model(1))
        manager.wait()
        (tmp_path / "1" / "contents" / "metadata").unlink()
        with (
            pytest.warns(UserWarning, match="passed over"),
            pytest.raises(saving.DamagedCheckpointError, match=r"steps \[1\]"),
        ):
            manager.restore(node)
    assert is_model(node, 5)


def test_a_checkpoint_of_another_graph_is_not_passed_over(tmp_path):
    with saving.Manager(tmp_path) as manager:
        manager.save(1, model(1))
        manager.save(2, nnx.Dict(w=nnx.Param(np.zeros(3))))
        with pytest.raises(saving.DifferentGraphError, match="rngs/default/key"):
            manager.restore(model())


def test_leftovers_of_a_killed_saving_are_removed(tmp_path):
    with saving.Manager(tmp_path) as manager:
        manager.save(1, model(1))
    shutil.copytree(tmp_path / "1", tmp_path / "2.orbax-checkpoint-tmp")
    with saving.Manager(tmp_path) as manager:
        assert manager.steps == [1]
        assert manager.save(2, model(2))
    assert sorted(p.name for p in tmp_path.iterdir() if p.name[0].isdigit()) == [
        "1",
        "2",
    ]


def test_a_manager_that_only_restores_leaves_alone_what_is_being_saved(tmp_path):
    with saving.Manager(tmp_path) as manager:
        manager.save(1, model(1))
        manager.wait()
        unfinished = tmp_path / "2.orbax-checkpoint-tmp"
        unfinished.mkdir()
        with saving.Manager(tmp_path, every=2) as other:
            assert other.steps == [1] and other.restore(model()) == 1
            assert not other.save(3, model(3))
            assert unfinished.exists()
            assert other.save(4, model(4))
            assert not unfinished.exists()
            # What another one begins from here on stays.
            unfinished.mkdir()
            assert other.save(6, model(6))
            assert unfinished.exists()


@pytest.mark.parametrize("wrong", [{"keep": 0}, {"keep": -1}, {"every": 0}])
def test_numbers_that_keep_or_save_nothing_are_refused(tmp_path, wrong):
    [(name, number)] = wrong.items()
    with pytest.raises(ValueError, match=f"{name}={number}.*expected 1 or more"):
        saving.Manager(tmp_path, **wrong)


def test_steps_that_are_no_integers_or_there_already(tmp_path):
    with saving.Manager(tmp_path) as manager:
        for step in ("3", 3.0, None):
            with pytest.raises(TypeError, match=f"{step!r}, expected an integer"):
                manager.save(step, model())
        assert manager.save(np.int64(1), model(1)) and manager.save(
            jnp.array(2), model()
        )
        assert not manager.save(2, model(2))
        with pytest.raises(ValueError, match=r"has it already.*orbax.delete\(2\)"):
            manager.save(2, model(2), force=True)
        manager.wait()
        manager.orbax.delete(2)
        assert manager.save(2, model(2), force=True)
        node = model()
        assert manager.restore(node) == 2 and is_model(node, 2)


def test_what_is_no_checkpoint_of_a_graph_is_not_called_damaged(tmp_path):
    import orbax.checkpoint as ocp

    with saving.Manager(tmp_path / "ours") as manager:
        manager.save(1, model(1))
        manager.save(2, model(2))
    with ocp.CheckpointManager(tmp_path / "theirs") as manager:
        manager.save(3, args=ocp.args.StandardSave({"w": jnp.ones(2)}))
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "plain", {"w": jnp.ones(2)})
    (tmp_path / "file").write_text("weights")
    for path, expected in {
        ".": "it is a folder with file, ours, plain, theirs. Restore",
        "ours": r"it holds the steps \[1, 2\]. Restore '.*ours/2', or use a `Manager`",
        "theirs": r"it holds the steps \[3\]",
        "theirs/3": "another program wrote it. `saving.load` reads such",
        "plain": "another program wrote it",
        "file": "it is no directory. `saving.load` reads files",
    }.items():
        with pytest.raises(ValueError, match=expected) as info:
            saving.restore(tmp_path / path, model())
        assert not isinstance(info.value, saving.DamagedCheckpointError)
    with saving.Manager(tmp_path / "theirs") as manager:
        with pytest.raises(ValueError, match="another program wrote it"):
            manager.restore(model())
        assert manager.steps == [3]
    # One of ours that is not finished, or lost its parts, is damaged.
    unfinished = tmp_path / "4.orbax-checkpoint-tmp"
    shutil.copytree(tmp_path / "theirs" / "3", unfinished)
    with pytest.raises(saving.DamagedCheckpointError, match="did not finish"):
        saving.restore(unfinished, model())
    for part in ("contents", "arrays"):
        shutil.rmtree(tmp_path / "ours" / "2" / part)
        with pytest.raises(saving.DamagedCheckpointError):
            saving.restore(tmp_path / "ours" / "2", model())
